"""seeding="sample": values keyed by (seed, epoch, position), the same for every worker count and pool."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as Stock
from torch.utils.data import Dataset

from helpers import START_METHODS
from helpers import datasets as d
from helpers.canon import canon

pytestmark = pytest.mark.ours


def epochs(loader: Any, n: int = 2) -> list[Any]:
    return [[canon(b) for b in loader] for _ in range(n)]


class Keyed(Dataset[Any]):
    """Draws from the generators that the loader gives, never from globals."""

    def __init__(self, n: int = 20) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        import feedrate

        rng = feedrate.rng()
        return i, rng.python.random(), float(rng.numpy.random()), torch.rand(2, generator=rng.torch)


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_globals_give_the_same_values_for_every_worker_count(batch_size: int | None, Loader: Any) -> None:
    results = []
    for workers in (0, 1, 2, 3):
        for method in ("fork", "forkserver") if workers else (None,):
            kwargs = {"multiprocessing_context": method} if method else {}
            loader = Loader(d.RandomDS(14), batch_size=batch_size, num_workers=workers, seeding="sample", seed=5, **kwargs)
            results.append(epochs(loader))
    assert all(r == results[0] for r in results)
    assert results[0][0] != results[0][1]  # the epoch is part of the key


def test_spawn_persistent_and_prefetch_make_no_difference(Loader: Any) -> None:
    base = epochs(Loader(d.RandomDS(14), batch_size=3, seeding="sample", seed=5))
    for kwargs in (
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "prefetch_factor": 5},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
    ):
        assert epochs(Loader(d.RandomDS(14), batch_size=3, seeding="sample", seed=5, **kwargs)) == base


@pytest.mark.parametrize("pool", ["process", "thread"])
def test_keyed_generators_give_the_same_values_in_every_pool(pool: str, Loader: Any) -> None:
    base = epochs(Loader(Keyed(), batch_size=4, seeding="sample", seed=9))
    for workers in (1, 2, 3):
        for flight in (1, 4):
            loader = Loader(
                Keyed(),
                batch_size=4,
                num_workers=workers,
                workers=pool,
                items_in_flight=flight,
                seeding="sample",
                seed=9,
            )
            assert epochs(loader) == base


def test_batch_size_does_not_change_a_samples_values(Loader: Any) -> None:
    """The key is the sample's position in the epoch, not its batch."""

    def values(batch_size: int) -> list[Any]:
        loader = Loader(d.RandomDS(12), batch_size=batch_size, num_workers=2, seeding="sample", seed=1)
        return [
            (float(p), n.tolist(), t.tolist())
            for b in loader
            for p, n, t in zip(b["python"], b["numpy"], b["torch"], strict=True)
        ]

    assert values(1) == values(4) == values(12)


def test_no_two_samples_share_values(Loader: Any) -> None:
    loader = Loader(d.RandomDS(50), batch_size=5, num_workers=2, seeding="sample", seed=1)
    for key in ("python", "gauss"):
        values = [v for _ in range(3) for b in loader for v in b[key].tolist()]
        assert len(set(values)) == 150
    values = [v for b in loader for v in b["numpy"][:, 0].tolist() + b["torch"][:, 0].tolist()]
    assert len(set(values)) == 100


def test_seed_is_the_key(Loader: Any) -> None:
    def run(seed: int) -> Any:
        return epochs(Loader(d.RandomDS(8), batch_size=2, seeding="sample", seed=seed))

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_seed_none_is_drawn_from_the_generator(Loader: Any) -> None:
    def run(manual: int) -> Any:
        g = torch.Generator().manual_seed(manual)
        return epochs(Loader(d.RandomDS(8), batch_size=2, seeding="sample", generator=g, num_workers=1))

    assert run(1) == run(1)
    assert run(1) != run(2)

    def run_global(manual: int) -> Any:
        torch.manual_seed(manual)
        return epochs(Loader(d.RandomDS(8), batch_size=2, seeding="sample", num_workers=1))

    assert run_global(3) == run_global(3)
    assert run_global(3) != run_global(4)


def test_inline_saves_and_restores_the_globals(Loader: Any) -> None:
    """Without workers the globals are reseeded for a task and put back: the training's own stream is not touched."""
    it = iter(Loader(d.RandomDS(8), batch_size=2, seeding="sample", seed=3))
    states = (random.getstate(), repr(np.random.get_state()), torch.get_rng_state())
    for _ in range(4):
        next(it)
    assert random.getstate() == states[0]
    assert repr(np.random.get_state()) == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_inline_restores_the_globals_after_an_error(Loader: Any) -> None:
    it = iter(Loader(d.MapDS(("int",), 4, "value", (0,)), seeding="sample", seed=3))
    state = random.getstate()
    with pytest.raises(ValueError):
        next(it)
    assert random.getstate() == state


def test_threads_never_touch_the_globals(Loader: Any) -> None:
    it = iter(Loader(Keyed(), batch_size=2, num_workers=2, workers="thread", seeding="sample", seed=3))
    states = (random.getstate(), repr(np.random.get_state()), torch.get_rng_state())
    list(it)
    assert random.getstate() == states[0]
    assert repr(np.random.get_state()) == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


class ViaInfo(Keyed):
    def __getitem__(self, i: int) -> Any:
        import feedrate

        info = feedrate.get_worker_info()
        assert info is not None
        return i, info.rng.python.random(), float(info.rng.numpy.random())


def test_worker_info_has_the_generator(Loader: Any) -> None:
    runs = [
        epochs(Loader(ViaInfo(), batch_size=4, num_workers=2, workers=pool, seeding="sample", seed=2))
        for pool in ("process", "thread")
    ]
    assert runs[0] == runs[1]


def test_collate_and_getitems_are_keyed_by_batch(Loader: Any) -> None:
    for kwargs in ({"collate_fn": d.drawing},):
        runs = [
            epochs(Loader(d.MapDS(("int",), 12), batch_size=3, num_workers=w, seeding="sample", seed=2, **kwargs))
            for w in (0, 1, 2)
        ]
        assert runs[0] == runs[1] == runs[2]
    runs = [epochs(Loader(BulkDraws(12), batch_size=3, num_workers=w, seeding="sample", seed=2)) for w in (0, 1, 2)]
    assert runs[0] == runs[1] == runs[2]


class BulkDraws(d.RandomDS):
    def __getitems__(self, indices: Any) -> Any:
        return [(i, random.random(), torch.rand(1)) for i in indices]


@pytest.mark.parametrize("workers", [0, 2])
def test_opaque_iterables_are_refused(workers: int, Loader: Any) -> None:
    with pytest.raises(ValueError, match="seeding"):
        list(Loader(d.IterDS(("int",), 8), num_workers=workers, seeding="sample"))


def test_unknown_value_is_refused(Loader: Any) -> None:
    for bad in ("x", None, 3):
        with pytest.raises((ValueError, TypeError), match="seeding"):
            Loader([1], seeding=bad)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_worker_seeding_is_torchs(workers: int, Loader: Any) -> None:
    results = []
    for cls, kwargs in ((Stock, {}), (Loader, {"seeding": "worker"}), (Loader, {})):
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        results.append(epochs(cls(d.RandomDS(14), batch_size=3, num_workers=workers, shuffle=True, **kwargs)))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("method", START_METHODS)
def test_a_killed_worker_changes_no_value(method: str, Loader: Any) -> None:
    kwargs = {"batch_size": 3, "num_workers": 2, "seeding": "sample", "seed": 8, "multiprocessing_context": method}
    expected = [canon(b) for b in Loader(d.RandomDS(60), **kwargs)]
    it = iter(Loader(d.RandomDS(60), **kwargs))
    got = []
    for k, b in enumerate(it):
        got.append(canon(b))
        if k in (3, 9):
            os.kill(it._workers[k % 2].pid, signal.SIGKILL)
    assert got == expected


class KillOnceRandom(d.RandomDS):
    """Draws from the globals, and ends its process at one index, the first time."""

    def __init__(self, n: int, at: int, flag: Path) -> None:
        super().__init__(n)
        self.at, self.flag = at, flag

    def __getitem__(self, i: int) -> Any:
        if i == self.at and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


class DiesAtSecondStart:
    """A worker_init_fn that ends the second process which calls it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, worker: int) -> None:
        started = len(list(self.folder.glob("start*")))
        (self.folder / f"start{started}").touch()
        if started == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_replacement_that_dies_at_once_passes_the_streams_on(tmp_path: Path, Loader: Any) -> None:
    """seeding="worker": the streams go on from the last batch that arrived, whoever died in between."""
    flag = tmp_path / "flag"

    def run(init: Any) -> Any:
        torch.manual_seed(3)
        return [canon(b) for b in Loader(KillOnceRandom(24, 13, flag), batch_size=2, num_workers=1, worker_init_fn=init)]

    got = run(DiesAtSecondStart(tmp_path))
    assert len(list(tmp_path.glob("start*"))) == 3
    assert got == run(None)  # the flag is there now: nobody dies


def test_out_of_order_delivery_changes_no_value(Loader: Any) -> None:
    kwargs = {"batch_size": 3, "seeding": "sample", "seed": 8}
    expected = sorted(repr(canon(b)) for b in Loader(d.RandomDS(30), **kwargs))
    got = sorted(repr(canon(b)) for b in Loader(d.RandomDS(30), num_workers=3, in_order=False, **kwargs))
    assert got == expected


def test_attributes(Loader: Any) -> None:
    loader = Loader([1, 2], seeding="sample", seed=4, redo=False, workers="thread", items_in_flight=2)
    assert (loader.seeding, loader.seed, loader.redo) == ("sample", 4, False)
    assert (loader.workers, loader.items_in_flight) == ("thread", 2)
    default = Loader([1, 2])
    assert (default.seeding, default.seed, default.redo) == ("worker", None, True)
    assert (default.workers, default.items_in_flight) == ("process", 1)
