"""Datasets, samplers, collate functions and exceptions for the tests. All can be pickled by reference."""

from __future__ import annotations

import array
import os
import random
import signal
import time
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

Point = namedtuple("Point", "x y")


class SubList(list):  # type: ignore[type-arg]
    """A list subclass: collation keeps the type."""


class SubDict(dict):  # type: ignore[type-arg]
    """A dict subclass with an attribute: collation keeps both."""

    tag: str = "none"


@dataclass
class Record:
    """Neither mapping nor sequence: default_collate refuses it, other collate functions may pass it on."""

    index: int
    value: Any = None


class TwoArgs(Exception):
    """Cannot be rebuilt from one string."""

    def __init__(self, a: str, b: int) -> None:
        super().__init__(f"{a}-{b}")
        self.a = a
        self.b = b

    def __reduce__(self) -> Any:
        return (TwoArgs, (self.a, self.b))


class WithMessage(Exception):
    """Has the class attribute `message` that torch's re-raise looks at."""

    message = "preset"

    def __init__(self, message: str = "preset") -> None:
        super().__init__(message)


class Quiet(ValueError):
    """A plain subclass of a builtin."""


# --- samples from a schema --------------------------------------------------------------------------------------

_TENSOR_DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128"
    ).split()
}


def make(schema: tuple[Any, ...], i: int) -> Any:
    """The sample number `i` of a schema: a pure function of both."""
    kind, *args = schema
    return _MAKERS[kind](i, *args)


def _np_values(i: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.Generator(np.random.PCG64(i * 7919 + len(shape)))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("float", "complex")):
        values = rng.standard_normal(shape)
        return (values + 1j * values[..., ::1] if dtype.startswith("complex") else values).astype(dtype)
    return rng.integers(0, 100, shape).astype(dtype)


def _make_tensor(i: int, dtype: str, shape: tuple[int, ...], form: str = "plain") -> torch.Tensor:
    base = "float32" if dtype == "bfloat16" else dtype
    t = torch.from_numpy(np.ascontiguousarray(_np_values(i, base, shape)).copy()).reshape(shape)
    t = t.to(_TENSOR_DTYPES[dtype])
    if form == "transposed" and t.dim() >= 2:
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if form == "strided" and t.dim() >= 1 and t.shape[0]:
        return torch.cat([t, t])[::2]
    if form == "expanded" and t.dim() >= 1:
        return t.reshape(-1)[:1].expand(4) if t.numel() else t
    if form == "offset" and t.dim() == 1:
        return torch.cat([t[:1], t])[1:]
    return t


def _make_array(i: int, dtype: str, shape: tuple[int, ...], form: str = "plain") -> np.ndarray:
    a = np.asarray(_np_values(i, dtype, shape))
    if form == "fortran":
        return np.asfortranarray(a)
    if form == "readonly":
        a.flags.writeable = False
    if form == "strided" and a.ndim:
        return np.concatenate([a, a])[::2]
    return a


_MAKERS: dict[str, Any] = {
    "tensor": _make_tensor,
    "array": _make_array,
    "ragged": lambda i, first: torch.full((first + i % 2,), float(i)),
    "ragged_array": lambda i: np.full((2 + i % 2,), i),
    "npscalar": lambda i, dtype: np.dtype(dtype).type(i % 100),
    "datetime": lambda i: np.datetime64("2020-01-01") + i,
    "strarray": lambda i: np.array(["a", "b"]),
    "structured": lambda i: np.array([(i, 1.5)], dtype=[("a", "i4"), ("b", "f4")]),
    "objarray": lambda i: np.array([{"a": i}, None], dtype=object),
    "int": lambda i: i * 3 - 5,
    "bigint": lambda i: 2**62 + i,
    "hugeint": lambda i: 2**63 + i,
    "float": lambda i: i / 7,
    "special": lambda i: [float("nan"), float("inf"), -0.0][i % 3],
    "bool": lambda i: i % 3 == 0,
    "intfloat": lambda i: i if i % 2 == 0 else i + 0.5,
    "floatint": lambda i: i if i % 2 else i + 0.5,
    "boolint": lambda i: i % 2 == 0 if i % 3 else i,
    "str": lambda i: f"item {i} \u00e9",
    "bytes": lambda i: bytes([i % 256, 0, 255]),
    "none": lambda i: None,
    "maybe": lambda i: None if i % 5 == 3 else i,
    "complex": lambda i: complex(i, 1),
    "set": lambda i: {i},
    "record": lambda i: Record(i, "v"),
    "f32f64": lambda i: torch.tensor([i / 3], dtype=torch.float32 if i % 2 == 0 else torch.float64),
    "f64f32": lambda i: torch.tensor([i / 3], dtype=torch.float64 if i % 2 == 0 else torch.float32),
    "tuple": lambda i, *parts: tuple(make(p, i) for p in parts),
    "list": lambda i, *parts: [make(p, i) for p in parts],
    "sublist": lambda i, *parts: SubList(make(p, i) for p in parts),
    "userlist": lambda i, *parts: UserList(make(p, i) for p in parts),
    "deque": lambda i, *parts: deque(make(p, i) for p in parts),
    "point": lambda i, a, b: Point(make(a, i), make(b, i)),
    "dict": lambda i, *items: {k: make(p, i) for k, p in items},
    "intdict": lambda i, *items: {n: make(p, i) for n, (_, p) in enumerate(items)},
    "ordered": lambda i, *items: OrderedDict((k, make(p, i)) for k, p in reversed(items)),
    "defaultdict": lambda i, *items: defaultdict(list, {k: make(p, i) for k, p in items}),
    "userdict": lambda i, *items: UserDict({k: make(p, i) for k, p in items}),
    "subdict": lambda i, *items: _subdict({k: make(p, i) for k, p in items}, i),
    "counter": lambda i: Counter({"a": i, "b": 2}),
    "missing": lambda i, *items: {k: make(p, i) for k, p in items if not (k == "a" and i % 4 == 2)},
    "extra": lambda i, *items: {**{k: make(p, i) for k, p in items}, **({"zz": 1} if i % 4 == 2 else {})},
    "unequal": lambda i: [1] * (2 + (i % 3 == 2)),
    "empty_list": lambda i: [],
    "empty_dict": lambda i: {},
    "range": lambda i: range(i, i + 3),
    "typed": lambda i: array.array("i", [i, i + 1]),
    "bytearray": lambda i: bytearray([i % 256, 7]),
    "size": lambda i: torch.Size([i, 2]),
    "parameter": lambda i: torch.nn.Parameter(torch.full((2,), float(i)), requires_grad=False),
}


def _subdict(items: dict[Any, Any], i: int) -> SubDict:
    d = SubDict(items)
    d.tag = f"tag {i}"
    return d


# --- map-style datasets -----------------------------------------------------------------------------------------


class MapDS(Dataset[Any]):
    """Samples of a schema; raises `error` (a name in ERRORS) at the given indices."""

    def __init__(self, schema: tuple[Any, ...], n: int, error: str = "", at: tuple[int, ...] = ()) -> None:
        self.schema, self.n, self.error, self.at = schema, n, error, at

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: Any) -> Any:
        i = int(i)
        if i in self.at:
            raise_error(self.error, i)
        return make(self.schema, i)


class NoLen:
    """Map-style by duck typing: no base class, no length."""

    def __init__(self, schema: tuple[Any, ...]) -> None:
        self.schema = schema

    def __getitem__(self, i: Any) -> Any:
        return make(self.schema, int(i))


class GetItems(MapDS):
    """Has `__getitems__`, which gives marked samples, so that it shows which of the two was used."""

    def __getitems__(self, indices: Any) -> list[Any]:
        if any(int(i) in self.at for i in indices):
            raise_error(self.error, int(indices[0]))
        return [("bulk", make(self.schema, int(i))) for i in indices]


class GetItemsOff(MapDS):
    """`__getitems__` is there and switched off."""

    __getitems__ = None


class GetItemsBatch(MapDS):
    """`__getitems__` gives one array instead of a list of samples."""

    def __getitems__(self, indices: Any) -> Any:
        return np.asarray([int(i) for i in indices])


class KeyDS:
    """A mapping from strings to samples."""

    def __init__(self, schema: tuple[Any, ...], n: int) -> None:
        self.data = {f"k{i}": make(schema, i) for i in range(n)}

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]


class RawKeyDS:
    """Returns the type and repr of the key that it was given."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: Any) -> Any:
        return f"{type(key).__name__}:{key}"


class RandomDS(Dataset[Any]):
    """Draws from all three global generators."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        return {
            "i": i,
            "python": random.random(),
            "numpy": np.random.rand(2),
            "torch": torch.rand(2),
            "normal": torch.randn(1),
            "gauss": random.gauss(0, 1),
        }


class InfoDS(Dataset[Any]):
    """What `get_worker_info()` says inside the worker."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        info = get_worker_info()
        if info is None:
            return (i, "main", -1, -1, -1, "")
        return (i, "worker", info.id, info.num_workers, info.seed, type(info.dataset).__name__)


class EnvDS(Dataset[Any]):
    """Process facts that user code may look at."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        import multiprocessing

        return (
            i,
            torch.get_num_threads(),
            multiprocessing.current_process().daemon,
            multiprocessing.parent_process() is not None,
            torch.is_grad_enabled(),
        )


class Slow(Dataset[Any]):
    """Index after a short sleep."""

    def __init__(self, n: int, seconds: float = 0.0, every: int = 1) -> None:
        self.n, self.seconds, self.every = n, seconds, every

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        if i % self.every == 0:
            time.sleep(self.seconds)
        return i


class Image(Dataset[Any]):
    """Float tensors whose content tells the index: every element is the index."""

    def __init__(self, n: int, shape: tuple[int, ...] = (3, 8, 8), sleep: float = 0.0) -> None:
        self.n, self.shape, self.sleep = n, shape, sleep

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        if self.sleep:
            time.sleep(self.sleep)
        return torch.full(self.shape, float(i)), i


class Grow(Dataset[Any]):
    """Its length can be changed."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        return i


class KillOnce(Dataset[Any]):
    """Kills its process at one index, the first time only (a file remembers)."""

    def __init__(self, n: int, at: int, flag: str, how: int = signal.SIGKILL, shape: tuple[int, ...] = ()) -> None:
        self.n, self.at, self.flag, self.how, self.shape = n, at, flag, how, shape

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        if i == self.at and not os.path.exists(self.flag):
            open(self.flag, "w").close()
            die(self.how)
        return torch.full(self.shape, float(i)) if self.shape else i


class KillAlways(Dataset[Any]):
    """Kills its process at the given indices, every time. A negative `how` is an exit code."""

    def __init__(self, n: int, at: tuple[int, ...], how: int = signal.SIGKILL) -> None:
        self.n, self.at, self.how = n, at, how

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        if i in self.at:
            die(self.how)
        return i


def die(how: int) -> None:
    """Ends this process by a signal, or with the exit code `-how`."""
    if how <= 0:
        os._exit(-how)
    os.kill(os.getpid(), how)
    time.sleep(60)


# --- iterable datasets ------------------------------------------------------------------------------------------


class IterDS(IterableDataset[Any]):
    """A stream of samples; `split`: strided over workers, uneven or not at all. `error` raises at one position."""

    def __init__(
        self, schema: tuple[Any, ...], n: int, split: str = "stride", error: str = "", at: int = -1, where: str = "next"
    ) -> None:
        self.schema, self.n, self.split, self.error, self.at, self.where = schema, n, split, error, at, where

    def _range(self) -> list[int]:
        info = get_worker_info()
        if info is None or self.split == "all":
            return list(range(self.n))
        if self.split == "uneven":
            cut = self.n // 4
            return list(range(cut)) if info.id == 0 else list(range(cut + info.id, self.n, max(info.num_workers - 1, 1)))
        return list(range(info.id, self.n, info.num_workers))

    def __iter__(self) -> Any:
        if self.error and self.where == "iter":
            raise_error(self.error, 0)
        return self._generate()

    def _generate(self) -> Any:
        for i in self._range():
            if i == self.at and self.error:
                raise_error(self.error, i)
            yield make(self.schema, i)


class SizedIter(IterDS):
    """Says a length, which may be wrong."""

    said = 0

    def __len__(self) -> int:
        return self.said or self.n


class WrongLen(IterDS):
    """Claims to be shorter than it is."""

    def __len__(self) -> int:
        return max(self.n // 2, 1)


class RandomIter(IterableDataset[Any]):
    """Random draws in a stream."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Any:
        for _ in range(self.n):
            yield random.random(), torch.rand(1), np.random.rand()


class SelfIter(IterableDataset[Any]):
    """Its own iterator, so a second epoch goes on or is empty."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.pos = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.pos >= self.n:
            raise StopIteration
        self.pos += 1
        return self.pos


# --- errors -----------------------------------------------------------------------------------------------------


def raise_error(name: str, i: int) -> None:
    """Raises the exception with this name, with the index in its text."""
    raise ERRORS[name](i)


def _json_error(i: int) -> Exception:
    import json

    return json.JSONDecodeError("bad", "doc", i)


ERRORS: dict[str, Any] = {
    "value": lambda i: ValueError(f"bad sample {i}"),
    "key": lambda i: KeyError(f"key {i}"),
    "index": lambda i: IndexError(f"index {i}"),
    "runtime": lambda i: RuntimeError(f"multi\nline {i}"),
    "type": lambda i: TypeError("t", i),
    "noargs": lambda i: AssertionError(),
    "os": lambda i: OSError(2, "no such", f"file{i}"),
    "notfound": lambda i: FileNotFoundError(2, "no such", f"file{i}"),
    "two": lambda i: TwoArgs("aa", i),
    "message": lambda i: WithMessage(f"m {i}"),
    "quiet": lambda i: Quiet(f"quiet {i}"),
    "unicode": lambda i: UnicodeDecodeError("utf-8", b"\xff", 0, 1, f"bad {i}"),
    "json": _json_error,
    "stop": lambda i: StopIteration(i),
    "notimpl": lambda i: NotImplementedError("nope"),
    "memory": lambda i: MemoryError(f"mem {i}"),
    "zero": lambda i: ZeroDivisionError("division by zero"),
    "attribute": lambda i: AttributeError(f"attr {i}"),
    "import": lambda i: ImportError(f"imp {i}", name="x"),
    "recursion": lambda i: RecursionError("deep"),
    "group": lambda i: ExceptionGroup("g", [ValueError(i)]),
}


# --- samplers ---------------------------------------------------------------------------------------------------


class ListSampler:
    """Yields given values; has a length unless told otherwise; may raise at the end."""

    def __init__(self, values: list[Any], error: str = "") -> None:
        self.values, self.error = values, error

    def __iter__(self) -> Any:
        yield from self.values
        if self.error:
            raise_error(self.error, len(self.values))

    def __len__(self) -> int:
        return len(self.values)


class NoLenSampler:
    """Yields given values, no length."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __iter__(self) -> Any:
        return iter(list(self.values))


class CountingSampler:
    """Eager: each `iter()` counts."""

    def __init__(self, values: list[Any]) -> None:
        self.values, self.calls = values, 0

    def __iter__(self) -> Any:
        self.calls += 1
        return iter([*self.values])

    def __len__(self) -> int:
        return len(self.values)


class DrawingSampler:
    """Draws from the global torch generator, one number for each index, lazily."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Any:
        for _ in range(self.n):
            yield int(torch.randint(self.n, (1,)))

    def __len__(self) -> int:
        return self.n


# --- collate functions and worker_init_fn -----------------------------------------------------------------------


def identity(batch: Any) -> Any:
    return batch


def as_tuple(batch: Any) -> Any:
    return tuple(batch)


def wrapped(batch: Any) -> Any:
    return {"batch": default_collate(batch), "n": len(batch)}


def wrapped_twice(batch: Any) -> Any:
    a = default_collate(batch)
    return [a, default_collate(batch), a]


def lengths(batch: Any) -> Any:
    return torch.tensor([len(batch)]), np.arange(len(batch)), "text", None, 3.5


def view_of_collated(batch: Any) -> Any:
    t = torch.arange(len(batch) * 6).reshape(len(batch), 6)
    return {"whole": t, "row": t[0], "col": t[:, 1], "tail": t[:, 3:], "t": t.t(), "same": t}


def drawing(batch: Any) -> Any:
    return [batch, random.random(), torch.rand(1), float(np.random.rand())]


def raising(batch: Any) -> Any:
    raise ValueError(f"collate refused {len(batch)}")


def raise_on_short(batch: Any) -> Any:
    if len(batch) < 3:
        raise Quiet(f"short {len(batch)}")
    return default_collate(batch)


def to_record(batch: Any) -> Any:
    return Record(len(batch), batch)


def sparse(batch: Any) -> Any:
    return torch.eye(3).to_sparse() * len(batch)


def init_nothing(worker_id: int) -> None:
    pass


def init_seed(worker_id: int) -> None:
    random.seed(worker_id)
    np.random.seed(worker_id)
    torch.manual_seed(worker_id)


def init_raise(worker_id: int) -> None:
    raise ValueError(f"init of {worker_id}")


def init_raise_second(worker_id: int) -> None:
    if worker_id == 1:
        raise Quiet(f"init of {worker_id}")


def init_mark(worker_id: int) -> None:
    info = get_worker_info()
    if info is not None:
        info.dataset.schema = ("list", ("int",), ("bool",))
