"""Pinned loading, with a stand-in for the accelerator: samples have a ``pin_memory`` method of their own, which torch's rules call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from feedrate.torch import DataLoader


class Pinnable:
    """A batch that knows whether, and on which thread, it was pinned."""

    def __init__(self, values: list[int]) -> None:
        self.values = values
        self.thread: str | None = None

    def pin_memory(self) -> Pinnable:
        if 13 in self.values:
            raise ValueError("cannot pin 13")
        pinned = Pinnable(self.values)
        pinned.thread = threading.current_thread().name
        return pinned


def bad_at_6(batch: list[int]) -> Pinnable:
    if 6 in batch:
        raise KeyError("bad sample")
    return Pinnable(batch)


def always_bad(batch: list[int]) -> Pinnable:
    raise KeyError(f"bad {batch}")


@pytest.fixture(autouse=True)
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: None)
    return


@pytest.mark.parametrize("pool", ["process", "thread"])
@pytest.mark.parametrize("persistent", [False, True])
def test_every_batch_is_pinned_on_the_pin_thread_in_order(pool: Any, persistent: bool) -> None:
    loader = DataLoader(
        range(12), batch_size=2, num_workers=2, collate_fn=Pinnable, pin_memory=True, workers=pool, persistent_workers=persistent
    )
    for _ in range(3):
        got = list(loader)
        assert [b.values for b in got] == [[i, i + 1] for i in range(0, 12, 2)]
        assert {b.thread for b in got} == {"pt_data_pin"}
    del loader


def test_an_abandoned_epoch_leaves_nothing_for_the_next() -> None:
    loader = DataLoader(range(12), batch_size=2, num_workers=2, collate_fn=Pinnable, pin_memory=True, persistent_workers=True)
    for _ in range(5):
        next(iter(loader))
    assert [b.values for b in loader] == [[i, i + 1] for i in range(0, 12, 2)]
    del loader


def test_errors_keep_their_place_and_the_rest_follows() -> None:
    loader = DataLoader(range(20), batch_size=2, num_workers=2, collate_fn=bad_at_6, pin_memory=True)
    got: list[Any] = []
    it = iter(loader)
    while True:
        try:
            got.append(next(it).values)
        except StopIteration:
            break
        except (KeyError, ValueError) as error:
            got.append((type(error).__name__, "pin memory thread" in str(error)))
    expected: list[Any] = [[i, i + 1] for i in range(0, 20, 2)]
    expected[3] = ("KeyError", False)
    expected[6] = ("ValueError", True)
    assert got == expected


def test_failed_batches_give_their_places_back() -> None:
    """Each bad batch is waited for (nothing else is in flight), so each error comes from the blocking path."""
    it = iter(DataLoader(range(30), num_workers=1, prefetch_factor=1, collate_fn=always_bad, pin_memory=True))
    errors = 0
    while True:
        try:
            next(it)
        except StopIteration:
            break
        except KeyError:
            errors += 1
    assert errors == 30


def test_a_feed_that_is_broken_for_good_says_so_each_time() -> None:
    it = iter(DataLoader(range(40), num_workers=2, collate_fn=Pinnable, pin_memory=True, redo=False))
    next(it)
    for worker in it._workers:
        worker.kill()
        worker.join()
    seen = 0
    for _ in range(60):
        try:
            next(it)
        except RuntimeError as error:
            assert "exited unexpectedly" in str(error)
            seen += 1
    assert seen > 10


def test_the_pin_thread_ends_with_its_iterator() -> None:
    it = iter(DataLoader(range(8), num_workers=1, collate_fn=Pinnable, pin_memory=True))
    next(it)
    thread = it._pin_memory_thread
    assert thread.is_alive()
    it._shutdown_workers()
    thread.join(10)
    assert not thread.is_alive()


def test_tasks_are_not_planned_before_their_batch_is_handed_over() -> None:
    drawn: list[int] = []

    def sampler() -> Iterator[int]:
        for i in range(20):
            drawn.append(i)
            yield i

    class Sampler:
        def __iter__(self) -> Iterator[int]:
            return sampler()

    # As many as torch plans: the window at the start, then one for each batch that was handed over.
    it = iter(DataLoader(range(20), num_workers=2, collate_fn=Pinnable, pin_memory=True, sampler=Sampler()))
    assert len(drawn) == 4
    for k in range(10):
        next(it)
        assert len(drawn) == 4 + k + 1
    del it


def test_without_workers_batches_are_pinned_where_they_are_made() -> None:
    got = list(DataLoader(range(4), batch_size=2, collate_fn=Pinnable, pin_memory=True))
    assert {b.thread for b in got} == {threading.current_thread().name}
