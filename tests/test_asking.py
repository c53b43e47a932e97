"""``try_next()`` and ``async for``: asking for a batch without waiting for it."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import time
from typing import Any

import pytest

import feedrate
from feedrate import END, NOT_READY
from feedrate.torch import DataLoader

pytestmark = pytest.mark.ours


class Gate:
    """A dataset whose samples from 4 on wait until they may go."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int | None:
        if index >= 4:
            assert self.open.wait(60)
        return index


KINDS = pytest.mark.parametrize("kind", [DataLoader, feedrate.DataLoader], ids=["torch", "numpy"])


def until(loader: Any) -> Any:
    """What ``try_next()`` gives when it is there."""
    deadline = time.monotonic() + 60
    while (batch := loader.try_next()) is NOT_READY:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return batch


@KINDS
def test_what_is_not_there_is_said_at_once_and_nothing_is_lost(kind: Any) -> None:
    data = Gate()
    loader = kind(data, batch_size=2, num_workers=1, workers="thread")
    assert until(loader).tolist() == [0, 1]
    assert until(loader).tolist() == [2, 3]
    assert [loader.try_next() for _ in range(5)] == [NOT_READY] * 5
    assert loader.state_dict()["batches"] == 2
    data.open.set()
    assert until(loader).tolist() == [4, 5]
    assert until(loader).tolist() == [6, 7]
    assert until(loader) is END
    # Then the next epoch begins.
    assert until(loader).tolist() == [0, 1]


@KINDS
@pytest.mark.parametrize("workers", [0, 2])
def test_iterators_are_asked_too(kind: Any, workers: int) -> None:
    iterator = iter(kind(range(10), batch_size=4, num_workers=workers, multiprocessing_context="fork" if workers else None))
    found = []
    with pytest.raises(StopIteration):
        while True:
            batch = iterator.try_next()
            if batch is not NOT_READY:
                found.append(batch.tolist())
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def _nothing(samples: list[int]) -> None:
    return None


@KINDS
def test_a_batch_that_is_none_is_a_batch(kind: Any) -> None:
    loader = kind(range(4), batch_size=2, num_workers=1, workers="thread", collate_fn=_nothing)
    assert [until(loader), until(loader), until(loader)] == [None, None, END]


@KINDS
@pytest.mark.parametrize("workers", [0, 2])
def test_async_for(kind: Any, workers: int) -> None:
    async def run() -> list[list[int]]:
        loader = kind(range(10), batch_size=4, num_workers=workers, multiprocessing_context="fork" if workers else None)
        return [batch.tolist() async for batch in loader]

    assert asyncio.run(run()) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@KINDS
def test_other_tasks_run_meanwhile_and_a_cancelled_wait_loses_nothing(kind: Any) -> None:
    data = Gate()

    async def run() -> list[list[int]]:
        batches = aiter(kind(data, batch_size=2, num_workers=1, workers="thread"))
        found = [(await anext(batches)).tolist() for _ in range(2)]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(batches), 0.05)
        data.open.set()
        found += [batch.tolist() async for batch in batches]
        return found

    assert asyncio.run(run()) == [[0, 1], [2, 3], [4, 5], [6, 7]]


class Breaks:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 1:
            raise KeyError("bad")
        return index


@KINDS
def test_exceptions_come_in_their_place(kind: Any) -> None:
    async def run() -> list[Any]:
        batches = aiter(kind(Breaks(), batch_size=1, num_workers=1, workers="thread"))
        found: list[Any] = []
        while True:
            try:
                found.append((await anext(batches)).tolist())
            except KeyError:
                found.append("bad")
            except StopAsyncIteration:
                return found

    assert asyncio.run(run()) == [[0], "bad", [2], [3]]


@KINDS
def test_pipelines_are_asked_too(kind: Any) -> None:
    pipeline = feedrate.from_items(range(20)).filter(bool).lanes(rows=1)
    loader = kind(pipeline, batch_size=4, num_workers=2, workers="thread")
    found = []
    while (batch := until(loader)) is not END:
        found += batch.tolist()
    assert found == list(range(1, 20))


@KINDS
@pytest.mark.parametrize("persistent", [False, True])
def test_a_batch_that_nobody_has_got_is_not_received(kind: Any, persistent: bool) -> None:
    """It arrived for a task that was cancelled: a resumed run gets it, ``try_next()`` does, and the next epoch does not."""
    data = Gate()
    loader = kind(data, batch_size=2, num_workers=1, workers="thread", persistent_workers=persistent)

    async def cancelled() -> Any:
        batches = aiter(loader)
        for _ in range(2):
            await anext(batches)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(batches), 0.05)
        assert batches.try_next() is NOT_READY
        data.open.set()
        return batches

    batches = asyncio.run(cancelled())
    while not batches._coming.future.done():
        time.sleep(0.01)
    state = loader.state_dict()
    assert state["batches"] == 2
    resumed = kind(range(8), batch_size=2)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == [[4, 5], [6, 7]]
    assert batches.try_next().tolist() == [4, 5]
    assert loader.state_dict()["batches"] == 3
    data.open.clear()
    batches = asyncio.run(cancelled())
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@KINDS
def test_try_next_goes_where_the_loader_was_told_to_go(kind: Any) -> None:
    """And a loader that is asked can be copied."""
    loader = kind(range(12), batch_size=4)
    state = loader.state_dict()
    assert loader.try_next().tolist() == [0, 1, 2, 3]
    for copied in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert copied.try_next().tolist() == [0, 1, 2, 3]
    loader.load_state_dict(state)
    assert loader.try_next().tolist() == [0, 1, 2, 3]
    loader.set_epoch(1)
    assert loader.try_next().tolist() == [0, 1, 2, 3]
    assert loader.state_dict()["epoch"] == 1
