"""Seeded cases for the comparison with the installed torch.

A case is plain data (so that a failure prints as something to read and rerun); `build` turns it into fresh objects
for either loader class. Cases hold nothing that makes the stock loader hang (results that cannot be pickled).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from helpers import datasets as d

FLOATS = ("float32", "float64", "float16")
TENSOR_DTYPES = (
    "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128"
).split()
NUMPY_DTYPES = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "complex64")
SHAPES = ((), (1,), (3,), (2, 3), (0,), (2, 0, 3), (4, 1, 2), (17,))
ERROR_KINDS = tuple(k for k in d.ERRORS if k != "stop")


@dataclass(frozen=True)
class Case:
    """One comparison: how to build the loader and how to run it."""

    number: int
    dataset: tuple[Any, ...]
    sampler: tuple[Any, ...] | None = None
    batch_sampler: tuple[Any, ...] | None = None
    args: dict[str, Any] = field(default_factory=dict)
    collate: str | None = None
    init: str | None = None
    generator: int | None = None
    epochs: int = 1
    stop_after: int | None = None
    method: str | None = None

    @property
    def workers(self) -> int:
        return int(self.args.get("num_workers", 0))


# --- generation -------------------------------------------------------------------------------------------------


def _leaf(r: random.Random) -> tuple[Any, ...]:
    roll = r.random()
    if roll < 0.3:
        form = r.choices(("plain", "transposed", "strided", "expanded", "offset"), (8, 1, 1, 1, 1))[0]
        return ("tensor", r.choice(TENSOR_DTYPES), r.choice(SHAPES), form)
    if roll < 0.45:
        return ("array", r.choice(NUMPY_DTYPES), r.choice(SHAPES), r.choice(("plain", "plain", "fortran", "strided")))
    if roll < 0.5:
        return ("npscalar", r.choice([t for t in NUMPY_DTYPES if t != "complex64"]))
    if roll < 0.92:
        return (r.choice(("int", "int", "float", "bool", "str", "bytes", "intfloat", "special", "bigint", "boolint")),)
    return (
        r.choice(
            (
                "floatint",
                "f64f32",
                "counter",
                "empty_list",
                "empty_dict",
                "range",
                "typed",
                "bytearray",
                "size",
                "parameter",
            )
        ),
    )


def _odd_leaf(r: random.Random) -> tuple[Any, ...]:
    """Leaves that default_collate refuses or treats oddly."""
    return r.choice(
        (
            ("none",),
            ("maybe",),
            ("complex",),
            ("set",),
            ("record",),
            ("hugeint",),
            ("strarray",),
            ("structured",),
            ("objarray",),
            ("datetime",),
            ("unequal",),
            ("ragged", 2),
            ("ragged", 3),
            ("ragged_array",),
            ("missing", ("a", ("int",)), ("b", ("float",))),
            ("extra", ("a", ("int",)), ("b", ("str",))),
            ("f32f64",),
        )
    )


def _schema(r: random.Random, depth: int = 0) -> tuple[Any, ...]:
    if depth >= 3 or r.random() < (0.35 if depth == 0 else 0.6):
        return _odd_leaf(r) if r.random() < 0.08 else _leaf(r)
    kind = r.choice(
        "tuple tuple list dict dict ordered defaultdict userdict subdict intdict point sublist userlist deque".split()
    )
    if kind == "point":
        return ("point", _schema(r, depth + 1), _schema(r, depth + 1))
    parts = [_schema(r, depth + 1) for _ in range(r.choice((1, 2, 2, 3)))]
    if kind.endswith("dict") or kind == "ordered":
        return (kind, *zip("abc"[: len(parts)], parts, strict=True))
    return (kind, *parts)


def _map_dataset(r: random.Random, n: int) -> tuple[Any, ...]:
    roll = r.random()
    if roll < 0.5:
        if r.random() < 0.16 and n:
            at = tuple(sorted(r.sample(range(n), r.randint(1, min(2, n)))))
            return ("map", _schema(r), n, r.choice(ERROR_KINDS), at)
        return ("map", _schema(r), n, "", ())
    if roll < 0.6:
        kind = r.choice(("getitems", "getitems", "getitems_off", "getitems_batch"))
        at = (r.randrange(n),) if n and r.random() < 0.15 else ()
        return (kind, _schema(r), n, r.choice(ERROR_KINDS), at)
    return r.choice(
        (
            ("list", _schema(r), n),
            ("range", n),
            ("tensor", n),
            ("tensordataset", n),
            ("concat", _schema(r), n),
            ("subset", _schema(r), n),
            ("stack", n),
            ("stackdict", n),
            ("random", n),
            ("random", n),
            ("info", n),
            ("rawkey", n),
            ("array", n),
        )
    )


def _sampler(r: random.Random, n: int) -> tuple[Any, ...] | None:
    values = [r.randrange(n) for _ in range(r.choice((0, 1, n, n + 3)))] if n else []
    options: list[tuple[Any, ...]] = [
        ("sequential",),
        ("random", {}),
        ("random", {"replacement": True}),
        ("random", {"num_samples": max(1, n // 2)}),
        ("random", {"num_samples": 2 * n + 1}),
        ("random", {"replacement": True, "num_samples": 40}),
        ("random_gen", r.randrange(1000)),
        ("subset", values),
        ("weighted", n, r.choice((True, False)), r.randrange(1, n + 1) if n else 1),
        ("distributed", r.choice((2, 3)), r.randrange(2), r.choice((True, False)), r.choice((True, False))),
        ("list", values, ""),
        ("list", values, r.choice(ERROR_KINDS)),
        ("nolen", values),
        ("plainlist", values),
        ("drawing", n),
        ("tensorindex", values),
        ("counting", values),
    ]
    return r.choice(options) if n else r.choice((("sequential",), ("list", [], ""), ("list", [], "value")))


def _batch_sampler(r: random.Random, n: int) -> tuple[Any, ...]:
    batches = [[r.randrange(n) for _ in range(r.choice((1, 2, 3, 5)))] for _ in range(r.randint(0, 6))]
    return r.choice(
        (
            ("batch", r.randint(1, 5), r.choice((True, False)), r.choice(("sequential", "random"))),
            ("list", batches, ""),
            ("list", batches, r.choice(ERROR_KINDS)),
            ("nolen", batches),
            ("tuples", batches),
            ("tensors", batches),
            ("counting", batches),
            ("plainlist", batches),
        )
    )


def _iterable(r: random.Random, n: int) -> tuple[Any, ...]:
    split = r.choice(("stride", "stride", "uneven", "all"))
    roll = r.random()
    if roll < 0.55:
        return ("iter", _schema(r), n, split, "", -1, "next")
    if roll < 0.7:
        return ("iter", _schema(r), n, split, r.choice(ERROR_KINDS), r.randrange(max(n, 1)), r.choice(("next", "iter")))
    if roll < 0.85:
        return (r.choice(("sizediter", "wronglen")), _schema(r), n, split)
    return r.choice((("randomiter", n), ("selfiter", n)))


def generate(number: int, seed: int, method: str | None = None) -> Case:
    """Case `number` of the series `seed`. `method` forces worker processes of that start method."""
    r = random.Random(f"{seed}/{number}/{method}")
    n = r.choice((0, 1, 4, 7, 10, 10, 16, 23))
    workers = r.choice((1, 2, 2, 3)) if method or r.random() < 0.18 else 0
    args: dict[str, Any] = {}
    sampler = batch_sampler = None
    if r.random() < 0.2:
        dataset = _iterable(r, n)
        if r.random() < 0.9:
            args["batch_size"] = r.choice((None, 1, 2, 3, 4, 30))
        if args.get("batch_size", 1) is not None and r.random() < 0.4:
            args["drop_last"] = True
    else:
        dataset = _map_dataset(r, n)
        mode = r.random()
        if mode < 0.15 and n:
            batch_sampler = _batch_sampler(r, n)
        else:
            if r.random() < 0.9:
                args["batch_size"] = r.choice((None, 1, 2, 3, 4, 4, 30))
            if args.get("batch_size", 1) is not None and r.random() < 0.3:
                args["drop_last"] = r.choice((True, False))
            if mode < 0.45:
                sampler = _sampler(r, n)
            elif mode < 0.7 and n:
                args["shuffle"] = True
    if workers:
        args["num_workers"] = workers
        if r.random() < 0.3:
            args["persistent_workers"] = True
        if r.random() < 0.4:
            args["prefetch_factor"] = r.choice((1, 2, 3, 5))
        if r.random() < 0.12:
            args["in_order"] = False
        if r.random() < 0.1:
            args["timeout"] = 50
    if r.random() < 0.05:
        args["pin_memory"] = True
    collate = None
    if r.random() < 0.35:
        collate = r.choice(
            (
                "identity as_tuple wrapped wrapped_twice lengths view_of_collated drawing raising raise_on_short "
                "to_record sparse identity"
            ).split()
        )
    if args.get("in_order") is False and workers > 1:
        # Which worker does what is up to timing then, and with it every draw from a worker's streams.
        if dataset[0] in ("random", "info", "randomiter"):
            dataset = ("map", _schema(r), n, "", ())
        if collate == "drawing":
            collate = None
    init = None
    if r.random() < (0.3 if workers else 0.05):
        init = r.choice("init_nothing init_seed init_raise init_raise_second init_mark".split())
    timing = args.get("in_order") is False and workers > 1
    return Case(
        number=number,
        dataset=dataset,
        sampler=sampler,
        batch_sampler=batch_sampler,
        args=args,
        collate=collate,
        init=init,
        generator=r.randrange(2**40) if r.random() < 0.25 else None,
        # A start that failed is forgotten by stock's persistent workers in the next epoch; not by ours. Listed.
        epochs=1 if workers and (init or "").startswith("init_raise") else r.choice((1, 1, 2, 3) if not workers else (1, 2)),
        stop_after=r.randint(0, 3) if r.random() < 0.1 and not timing else None,
        method=method if workers else None,
    )


# --- building ---------------------------------------------------------------------------------------------------


def _build_dataset(spec: tuple[Any, ...]) -> Any:
    kind, *a = spec
    builders: dict[str, Any] = {
        "map": d.MapDS,
        "getitems": d.GetItems,
        "getitems_off": d.GetItemsOff,
        "getitems_batch": d.GetItemsBatch,
        "list": lambda schema, n: [d.make(schema, i) for i in range(n)],
        "range": range,
        "tensor": lambda n: torch.arange(n * 3).reshape(n, 3),
        "array": lambda n: torch.arange(n * 3).reshape(n, 3).numpy(),
        "tensordataset": lambda n: TensorDataset(torch.arange(n * 2.0).reshape(n, 2), torch.arange(n)),
        "concat": lambda s, n: ConcatDataset([d.MapDS(s, n // 2), d.MapDS(s, n - n // 2)]),
        "subset": lambda s, n: Subset(d.GetItems(s, 2 * n + 1), [(5 * i) % (2 * n + 1) for i in range(n)]),
        "stack": lambda n: StackDataset(d.MapDS(("int",), n), d.MapDS(("float",), n)),
        "stackdict": lambda n: StackDataset(a=d.MapDS(("str",), n), b=d.MapDS(("tensor", "int32", (2,)), n)),
        "random": d.RandomDS,
        "info": d.InfoDS,
        "rawkey": d.RawKeyDS,
        "iter": d.IterDS,
        "sizediter": d.SizedIter,
        "wronglen": d.WrongLen,
        "randomiter": d.RandomIter,
        "selfiter": d.SelfIter,
    }
    return builders[kind](*a)


def _build_sampler(spec: tuple[Any, ...], dataset: Any) -> Any:
    kind, *a = spec
    if kind == "random_gen":
        return RandomSampler(dataset, generator=torch.Generator().manual_seed(a[0]))
    builders: dict[str, Any] = {
        "sequential": lambda: SequentialSampler(dataset),
        "random": lambda kw: RandomSampler(dataset, **kw),
        "subset": SubsetRandomSampler,
        "weighted": lambda n, rep, k: WeightedRandomSampler([1.0 + i for i in range(n)], k, replacement=rep),
        "distributed": lambda w, k, sh, dr: DistributedSampler(dataset, w, k, shuffle=sh, drop_last=dr, seed=3),
        "list": d.ListSampler,
        "nolen": d.NoLenSampler,
        "plainlist": list,
        "drawing": d.DrawingSampler,
        "tensorindex": lambda values: d.ListSampler([torch.tensor(v) for v in values]),
        "counting": d.CountingSampler,
        "tuples": lambda values: d.ListSampler([tuple(v) for v in values]),
        "tensors": lambda values: d.ListSampler([torch.tensor(v) for v in values]),
    }
    return builders[kind](*a)


def build(case: Case, loader: Any) -> Any:
    """A loader of the given class for the case, from fresh objects. May raise, as the constructor may."""
    dataset = _build_dataset(case.dataset)
    kwargs = dict(case.args)
    if case.generator is not None:
        kwargs["generator"] = torch.Generator().manual_seed(case.generator)
    if case.sampler is not None:
        kwargs["sampler"] = _build_sampler(case.sampler, dataset)
    if case.batch_sampler is not None:
        if case.batch_sampler[0] == "batch":
            _, size, drop, inner = case.batch_sampler
            base = SequentialSampler(dataset) if inner == "sequential" else RandomSampler(dataset)
            kwargs["batch_sampler"] = BatchSampler(base, size, drop)
        else:
            kwargs["batch_sampler"] = _build_sampler(case.batch_sampler, dataset)
    if case.collate:
        kwargs["collate_fn"] = getattr(d, case.collate)
    if case.init:
        kwargs["worker_init_fn"] = getattr(d, case.init)
    if case.method:
        kwargs["multiprocessing_context"] = case.method
    return loader(dataset, **kwargs)
