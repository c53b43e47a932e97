"""Cycles through the native engine are found by the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import feedrate
from feedrate.torch import DataLoader


class Back:
    """A sampler that knows its loader."""

    loader: Any = None

    def __iter__(self) -> Iterator[int]:
        me = self  # held by the generator
        for i in range(100):
            assert me is not None
            yield i


class Dataset:
    loader: Any = None

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_leads_back_to_its_loader_is_collected(workers: int) -> None:
    sampler = Back()
    loader = DataLoader(range(100), sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    it = iter(loader)
    sampler.loader = (loader, it)
    next(it)
    processes = list(getattr(it, "_workers", []))
    gone = weakref.ref(sampler)
    del sampler, loader, it
    gc.collect()
    assert gone() is None
    for process in processes:
        process.join(30)
        assert not process.is_alive()


def test_a_dataset_that_leads_back_to_its_iterator_is_collected() -> None:
    dataset = Dataset()
    it = iter(DataLoader(dataset))
    dataset.loader = it
    next(it)
    gone = weakref.ref(dataset)
    del dataset, it
    gc.collect()
    assert gone() is None


class Flawed:
    """A sampler that fails behind what the user takes."""

    def __iter__(self) -> Iterator[int]:
        yield 0
        yield 1
        raise ValueError("flawed")


@pytest.mark.parametrize("make", [feedrate.DataLoader, DataLoader])
@pytest.mark.parametrize("pool", ["thread", "process"])
def test_an_error_that_waits_for_its_turn_keeps_no_iterator(make: Any, pool: str) -> None:
    """Its frames lead to the iterator, whose workers it would keep until the process ends."""
    it = iter(make(range(10), sampler=Flawed(), num_workers=1, prefetch_factor=4, workers=pool))
    assert next(it) == 0
    engine = it._engine
    workers, gone = engine.workers, weakref.ref(it)
    del it, engine
    gc.collect()
    assert gone() is None
    for worker in workers:
        worker.join(30)
        assert not worker.is_alive()
