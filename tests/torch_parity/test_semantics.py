"""Single points of the stock loader's behaviour that generated cases do not reach, each against the installed torch."""

from __future__ import annotations

import gc
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as Stock
from torch.utils.data import default_collate, get_worker_info

from helpers import datasets as d
from helpers.canon import canon

BOTH = pytest.mark.parametrize("workers", [0, 2])


def same(ours: Any, make: Any) -> Any:
    """Runs `make(class)` for both classes from the same random state; both results, checked to be equal."""
    torch.manual_seed(5)
    expected = make(Stock)
    torch.manual_seed(5)
    got = make(ours)
    assert got == expected
    return got


def test_draws_per_epoch(Loader: Any) -> None:
    """How far the global generator moves in each epoch."""

    def trace(cls: Any) -> Any:
        states = []
        for kwargs in (
            {},
            {"shuffle": True},
            {"num_workers": 2},
            {"num_workers": 2, "shuffle": True},
            {"num_workers": 2, "persistent_workers": True},
            {"num_workers": 2, "persistent_workers": True, "shuffle": True},
        ):
            loader = cls(list(range(6)), **kwargs)
            for _ in range(3):
                it = iter(loader)
                states.append(canon(torch.get_rng_state()))
                next(it)
                states.append(canon(torch.get_rng_state()))
                list(it)
                states.append(canon(torch.get_rng_state()))
                states.append(it._base_seed)
        return states

    same(Loader, trace)


def test_eager_samplers_are_asked_as_often(Loader: Any) -> None:
    def trace(cls: Any) -> Any:
        counts = []
        for workers in (0, 2):
            for persistent in (False, True) if workers else (False,):
                for how in ("batch_sampler", "sampler", "unbatched"):
                    s = d.CountingSampler([[0], [1]] if how == "batch_sampler" else [0, 1])
                    kwargs = {"batch_sampler": s} if how == "batch_sampler" else {"sampler": s}
                    if how == "unbatched":
                        kwargs["batch_size"] = None
                    loader = cls([1, 2], num_workers=workers, persistent_workers=persistent, **kwargs)
                    for _ in range(3):
                        list(loader)
                        counts.append(s.calls)
        return counts

    same(Loader, trace)


def test_workers_start_at_iter_not_at_next(Loader: Any) -> None:
    it = iter(Loader(d.Slow(8), num_workers=2))
    assert len(it._workers) == 2
    assert all(w.is_alive() for w in it._workers)
    assert it._num_yielded == 0
    list(it)


def test_persistent_iterator_is_one_object(Loader: Any) -> None:
    loader = Loader(list(range(8)), num_workers=2, persistent_workers=True)
    a = iter(loader)
    pids = [w.pid for w in a._workers]
    assert next(a).tolist() == [0]
    b = iter(loader)
    assert a is b
    assert [x.item() for x in b] == list(range(8))
    assert [w.pid for w in iter(loader)._workers] == pids
    fresh = Loader(list(range(8)), num_workers=2)
    assert iter(fresh) is not iter(fresh)


@BOTH
def test_two_iterators_at_once(workers: int, Loader: Any) -> None:
    loader = Loader(list(range(8)), num_workers=workers)
    a, b = iter(loader), iter(loader)
    assert [next(a).item(), next(a).item(), next(b).item()] == [0, 1, 0]
    assert [x.item() for x in b] == list(range(1, 8))
    assert [x.item() for x in a] == list(range(2, 8))


@BOTH
def test_end_stays_the_end(workers: int, Loader: Any) -> None:
    it = iter(Loader(list(range(3)), num_workers=workers))
    assert iter(it) is it
    assert len(it) == 3
    assert len(list(it)) == 3
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(it)


def test_workers_are_gone_at_the_end_unless_persistent(Loader: Any) -> None:
    it = iter(Loader(list(range(4)), num_workers=2))
    workers = list(it._workers)
    list(it)
    for w in workers:
        w.join(10)
        assert not w.is_alive()
        assert w.exitcode == 0
    it = iter(Loader(list(range(4)), num_workers=2, persistent_workers=True))
    workers = list(it._workers)
    list(it)
    assert all(w.is_alive() for w in workers)
    it._shutdown_workers()
    for w in workers:
        w.join(10)
        assert w.exitcode == 0


def test_round_robin(Loader: Any) -> None:
    for n in (1, 2, 3):
        loader = Loader(d.InfoDS(12), batch_size=2, num_workers=n, prefetch_factor=2)
        for _ in range(2):
            assert [b[2].tolist()[0] for b in loader] == [k % n for k in range(6)]


def test_worker_info(Loader: Any) -> None:
    def trace(cls: Any) -> Any:
        loader = cls(d.InfoDS(6), num_workers=3, collate_fn=_info_collate)
        out = [canon(b) for b in loader]
        assert get_worker_info() is None
        return out

    same(Loader, trace)


def _info_collate(batch: Any) -> Any:
    info = get_worker_info()
    assert info is not None
    names = [name for name in ("id=", "num_workers=", "seed=", "dataset=") if name in repr(info)]
    try:
        info.id = 999
    except Exception as e:
        frozen = type(e).__name__
    else:
        frozen = "no"
    return batch, info.id, info.num_workers, names, frozen, type(info).__name__, info is get_worker_info()


def test_environment_of_workers(Loader: Any) -> None:
    same(Loader, lambda cls: canon(list(cls(d.EnvDS(), num_workers=1))))


def test_worker_streams_with_numpy_and_python(Loader: Any) -> None:
    for kwargs in ({}, {"persistent_workers": True}, {"worker_init_fn": d.init_seed}, {"prefetch_factor": 4}):
        for workers in (1, 2, 3):

            def trace(cls: Any, kwargs: Any = kwargs, workers: int = workers) -> Any:
                loader = cls(d.RandomDS(14), batch_size=3, num_workers=workers, **kwargs)
                return [canon(list(loader)) for _ in range(2)]

            same(Loader, trace)


def test_length_warning(Loader: Any) -> None:
    def trace(cls: Any) -> Any:
        ds = d.WrongLen(("int",), 6)
        out = []
        for workers in (0, 1):
            loader = cls(ds, batch_size=None, num_workers=workers)
            with warnings.catch_warnings(record=True) as quiet:
                warnings.simplefilter("always")
                list(loader)
            len(loader)
            with warnings.catch_warnings(record=True) as loud:
                warnings.simplefilter("always")
                list(loader)
            out.append(([re.sub(r" at 0x[0-9a-f]+", "", str(w.message)) for w in loud], len(quiet)))
        return out

    assert len(same(Loader, trace)[0][0]) == 3


def test_growing_dataset(Loader: Any) -> None:
    ds = d.Grow(4)
    loader = Loader(ds, batch_size=2)
    shuffled = Loader(ds, batch_size=2, shuffle=True)
    assert (len(loader), len(shuffled)) == (2, 2)
    ds.n = 10
    assert (len(loader), len(shuffled)) == (5, 5)
    assert sum(len(b) for b in loader) == 10


@BOTH
def test_iteration_goes_on_after_an_error(workers: int, Loader: Any) -> None:
    it = iter(Loader(d.MapDS(("int",), 8, "value", (2, 5)), batch_size=2, num_workers=workers))
    seen: list[Any] = []
    while True:
        try:
            seen.append(next(it).tolist())
        except ValueError:
            seen.append("error")
        except StopIteration:
            break
    assert seen == [[-5, -2], "error", "error", [13, 16]]


@BOTH
def test_out_of_order_option_with_one_slow_item(workers: int, Loader: Any) -> None:
    loader = Loader(d.Slow(10, 0.5, every=100), batch_size=1, num_workers=workers, in_order=False)
    seen = [int(b) for b in loader]
    assert sorted(seen) == list(range(10))
    if workers:
        assert seen[0] != 0
    else:
        assert seen == list(range(10))


@BOTH
def test_collate_map_entries_added_by_the_user(workers: int, Loader: Any) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    def both(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return ["mine", [r.index for r in batch]]

    default_collate_fn_map[d.Record] = both
    try:
        loader = Loader([d.Record(i) for i in range(4)], batch_size=2, num_workers=workers)
        assert list(loader) == [["mine", [0, 1]], ["mine", [2, 3]]]
    finally:
        del default_collate_fn_map[d.Record]


@BOTH
def test_batches_are_writable_and_reusable(workers: int, Loader: Any) -> None:
    for x, i in Loader(d.Image(8), batch_size=4, num_workers=workers):
        expected = torch.stack([torch.full((3, 8, 8), float(k)) for k in i])
        assert torch.equal(x, expected)
        x.mul_(2).add_(1)
        i += 100
        assert torch.equal(x, expected * 2 + 1)
        x.requires_grad_(True)
        (x * x).sum().backward()
        assert torch.equal(x.grad, 2 * x.detach())


@BOTH
def test_gradient_samples_in_default_collate(workers: int, Loader: Any) -> None:
    samples = [torch.ones(2, requires_grad=True) for _ in range(4)]

    def trace(cls: Any) -> Any:
        try:
            return [canon(b) for b in cls(samples, batch_size=2, num_workers=workers)]
        except RuntimeError as e:
            return "requires grad" in str(e) or "automatic differentiation" in str(e)

    same(Loader, trace)


class Sub(torch.Tensor):
    """At the top level: it comes back from workers as itself, and torch's loader waits for ever for what it cannot pickle."""


@BOTH
def test_tensor_subclass(workers: int, Loader: Any) -> None:
    samples = [torch.ones(2).as_subclass(Sub) for _ in range(4)]
    same(Loader, lambda cls: [canon(b) for b in cls(samples, batch_size=2, num_workers=workers, collate_fn=None)])


@BOTH
@pytest.mark.parametrize("layout", ["coo", "csr", "nested"])
def test_odd_layouts(workers: int, layout: str, Loader: Any) -> None:
    def sample() -> torch.Tensor:
        if layout == "coo":
            return torch.eye(3).to_sparse()
        if layout == "csr":
            return torch.eye(3).to_sparse_csr()
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

    samples = [sample() for _ in range(4)]
    seen = []
    for cls in (Stock, Loader):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(RuntimeError) as e:
                list(cls(samples, batch_size=2, num_workers=workers))
        seen.append(str(e.value).strip().splitlines()[-1])
    assert seen[0] == seen[1]
    if layout == "coo":
        same(Loader, lambda cls: [canon(b) for b in cls(samples, batch_size=None, num_workers=workers)])
    # As they are, alone and beside others.
    plain = {"coo": torch.Tensor.to_dense, "csr": torch.Tensor.to_dense, "nested": torch.Tensor.unbind}[layout]
    for batch_size in (None, 2):
        for batch in Loader(samples, batch_size=batch_size, num_workers=workers, collate_fn=d.identity):
            for tensor in batch if batch_size else [batch]:
                assert tensor.layout is samples[0].layout
                assert tensor.is_nested == samples[0].is_nested
                assert all(map(torch.equal, plain(tensor), plain(samples[0])))


@BOTH
def test_aliases_inside_a_batch(workers: int, Loader: Any) -> None:
    """Two names for one tensor, and a view of it, share memory after delivery as they do in the stock loader."""
    for cls in (Stock, Loader):
        for b in cls(list(range(8)), batch_size=4, num_workers=workers, collate_fn=d.view_of_collated):
            b["whole"][0, 0] = -1
            assert b["row"][0] == -1
            assert b["same"][0, 0] == -1
            assert b["t"][0, 0] == -1
            b["tail"][:] = 7
            assert (b["whole"][:, 3:] == 7).all()


def test_default_collate_outside_a_loader_is_untouched(Loader: Any) -> None:
    list(Loader(d.Image(4), batch_size=2, num_workers=1))
    t = default_collate([torch.ones(2), torch.zeros(2)])
    assert not t.is_shared()
    assert t.resize_(4).shape == (4,)


def test_pin_memory_without_accelerator(Loader: Any) -> None:
    if torch.accelerator.is_available():
        pytest.skip("has an accelerator")

    def trace(cls: Any) -> Any:
        out = []
        for workers in (0, 2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                loader = cls(list(range(4)), pin_memory=True, num_workers=workers)
                batches = [canon(b) for b in loader] + [b.is_pinned() for b in loader]
            out.append((batches, [str(w.message) for w in caught]))
        return out

    same(Loader, trace)


def test_profiler_names(Loader: Any) -> None:
    from torch.profiler import profile

    def trace(cls: Any) -> Any:
        names = []
        for workers in (0, 1):
            with profile() as p:
                list(cls(list(range(3)), num_workers=workers))
            names.append(sorted({e.key for e in p.key_averages() if "enumerate(DataLoader)" in e.key}))
        return names

    same(Loader, trace)


def test_numpy_batches_from_collate(Loader: Any) -> None:
    def trace(cls: Any) -> Any:
        loader = cls(list(range(10)), batch_size=4, num_workers=2, collate_fn=_numpy_collate)
        return [canon(b) for b in loader]

    same(Loader, trace)


def _numpy_collate(batch: Any) -> Any:
    a = np.array(batch)
    return {
        "a": a,
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "s": np.array(["x", "yy"]),
        "o": np.array([None, {"k": 1}], dtype=object),
        "rec": np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
        "zero": np.zeros((0, 3)),
        "scalar": np.float32(1.5),
        "0d": np.array(3),
        "big": np.arange(3, dtype=">i4"),
        "date": np.array(["2020-01-01"], dtype="M8[D]"),
        "masked": np.ma.masked_array([1, 2], mask=[True, False]).filled(0),
    }


def test_dropped_iterators_free_their_workers(Loader: Any) -> None:
    it = iter(Loader(d.Slow(100, 0.01), num_workers=2))
    workers = list(it._workers)
    next(it)
    del it
    gc.collect()
    for w in workers:
        w.join(10)
        assert not w.is_alive()


_READ_ONLY = np.arange(200.0)
_READ_ONLY.flags.writeable = False
ARRAYS: dict[str, Any] = {
    "same": lambda i: np.full((3, 50), i, "f4"),
    "fortran": lambda i: np.asfortranarray(np.arange(600.0).reshape(20, 30) + i),
    "strided": lambda i: np.arange(800).reshape(50, 16)[:, ::2] + 0 * i,
    "strided view": lambda i: np.arange(800).reshape(50, 16)[:, ::2],
    "backwards": lambda i: np.arange(600.0)[::-1],
    "mixed types": lambda i: np.full(200, i, "f4" if i % 2 else "f8"),
    "foreign order": lambda i: np.full(200, i, ">f4"),
    "no axis": lambda i: np.array(i * 1.5),
    "empty": lambda i: np.zeros((0, 3)),
    "read-only": lambda i: _READ_ONLY,
    "masked": lambda i: np.ma.array(np.arange(200.0)),
    "complex": lambda i: np.full(200, 1j * i),
    "uint16": lambda i: np.full((2, 200), i, "u2"),
    "strings": lambda i: np.array(["a", "b"]),
    "dates": lambda i: np.array(["2020-01-01"], "M8[D]"),
}


class Arrays(torch.utils.data.Dataset[Any]):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        return ARRAYS[self.kind](i)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_in_default_collate(kind: str, workers: int, Loader: Any) -> None:
    def batches(cls: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return [(b.dtype, b.stride(), b.tolist()) for b in cls(Arrays(kind), batch_size=4, num_workers=workers)]
            except (TypeError, ValueError, RuntimeError) as error:
                return type(error)

    assert batches(Loader) == batches(Stock)
