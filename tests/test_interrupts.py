"""Ctrl-C in what the user gave the loader: it is told at once, and what was under way comes with the next calls."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import feedrate
from feedrate import END, NOT_READY
from feedrate.torch import DataLoader

pytestmark = pytest.mark.ours

KINDS = pytest.mark.parametrize("kind", [DataLoader, feedrate.DataLoader], ids=["torch", "numpy"])
POOLS = pytest.mark.parametrize(
    "pool", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}], ids=["none", "processes", "threads"]
)
WAYS = pytest.mark.parametrize("way", ["next", "try_next"])


class Interrupted:
    """A sampler of 24 whose draw of the 9th is interrupted, once. An iterator and not a generator, so that it goes on."""

    def __init__(self, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.error: type[BaseException] | None = error

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Iterator[int]:
        return Draws(self)


class Draws:
    def __init__(self, of: Interrupted) -> None:
        self.of = of
        self.at = -1

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == 7 and (error := self.of.error) is not None:
            self.of.error = None
            raise error("at the 9th")
        self.at += 1
        if self.at == 24:
            raise StopIteration
        return self.at


class InterruptedData:
    """A dataset that is interrupted at its 3rd sample, once."""

    def __init__(self) -> None:
        self.whole = False

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 2 and not self.whole:
            self.whole = True
            raise KeyboardInterrupt
        return index


def asker(way: str, it: Any) -> Callable[[], Any]:
    """Gives the next batch as an int, or ``END``; by ``try_next()`` until it is there."""

    def ask() -> Any:
        try:
            if way == "next":
                return int(next(it))
            while (batch := it.try_next()) is NOT_READY:
                pass
            return int(batch)
        except StopIteration:
            return END

    return ask


def collect(ask: Callable[[], Any]) -> list[Any]:
    got: list[Any] = []
    for _ in range(40):
        try:
            batch = ask()
        except BaseException as error:
            batch = type(error).__name__
        if batch is END:
            return got
        got.append(batch)
    return got


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: None)


@KINDS
@POOLS
@WAYS
def test_in_a_sampler(kind: Any, pool: dict[str, Any], way: str) -> None:
    """The windows hold 4: the 9th is drawn when the 5th is asked for, and without workers when it is asked for itself."""
    loader = kind(range(24), batch_size=None, sampler=Interrupted(), **pool)
    got = collect(asker(way, iter(loader)))
    at = 4 if pool else 8
    assert got == [*range(at), "KeyboardInterrupt", *range(at, 24)]


@POOLS
@WAYS
def test_errors_of_a_sampler_wait_for_their_place(pool: dict[str, Any], way: str) -> None:
    loader = DataLoader(range(24), batch_size=None, sampler=Interrupted(ValueError), **pool)
    assert collect(asker(way, iter(loader))) == [*range(8), "ValueError", *range(8, 24)]


def pair(n: int) -> list[int]:
    return [n, n + 1]


class Pairs(Interrupted):
    """Gives index objects itself: ``[n, n + 1]``."""

    def __iter__(self) -> Iterator[Any]:
        return map(pair, super().__iter__())


class Generated(Interrupted):
    """An error is its end."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()


def values(loader: Any) -> list[Any]:
    it = iter(loader)

    def ask() -> Any:
        batch = next(it, END)
        return batch if batch is END else np.asarray(batch).tolist()

    return collect(ask)


@KINDS
@pytest.mark.parametrize("pool", [{}, {"num_workers": 2, "workers": "thread"}], ids=["none", "threads"])
@pytest.mark.parametrize(
    "given",
    [
        lambda: {"batch_size": None, "sampler": Interrupted(ValueError)},
        lambda: {"batch_size": None, "sampler": Generated(ValueError)},
        lambda: {"batch_size": 3, "sampler": Interrupted(ValueError)},
        lambda: {"batch_sampler": Pairs(ValueError)},
    ],
    ids=["items", "generator", "batches", "batch sampler"],
)
def test_what_comes_behind_an_error_of_a_sampler(kind: Any, pool: dict[str, Any], given: Any) -> None:
    """As torch without workers: what it gives with them has holes."""

    expected = values(torch.utils.data.DataLoader(range(30), **given()))
    assert "ValueError" in expected
    assert values(kind(range(30), **given(), **pool)) == expected


def test_no_rank_loses_what_was_drawn_before_an_error() -> None:
    """Each rank takes the index objects of a whole step; the error comes into the middle of one."""
    got = []
    for rank in range(3):
        found = values(feedrate.DataLoader(range(30), batch_sampler=Pairs(ValueError), distributed=(rank, 3)))
        got.append([each if isinstance(each, str) else each[0] for each in found])
    assert all(each[2] == "ValueError" for each in got)
    assert [[n for n in each if n != "ValueError"] for each in got] == [list(range(rank, 24, 3)) for rank in range(3)]


@KINDS
@POOLS
def test_a_state_behind_it_has_what_was_received(kind: Any, pool: dict[str, Any]) -> None:
    loader = kind(range(24), batch_size=None, sampler=Interrupted(), **pool)
    it = iter(loader)
    received = []
    with pytest.raises(KeyboardInterrupt):
        while True:
            received.append(int(next(it)))
    state = copy.deepcopy(loader.state_dict())
    whole = Interrupted()
    whole.error = None
    again = kind(range(24), batch_size=None, sampler=whole, **pool)
    again.load_state_dict(state)
    assert received + [int(batch) for batch in again] == list(range(24))
    assert received + [int(batch) for batch in it] == list(range(24))


@POOLS
@WAYS
@pytest.mark.usefixtures("accelerator")
def test_in_a_sampler_behind_the_thread_that_pins(pool: dict[str, Any], way: str) -> None:
    loader = DataLoader(range(24), batch_size=None, sampler=Interrupted(), pin_memory=True, **pool)
    got = collect(asker(way, iter(loader)))
    assert "KeyboardInterrupt" in got
    assert [g for g in got if g != "KeyboardInterrupt"] == list(range(24))


@KINDS
@WAYS
def test_in_a_dataset_without_workers(kind: Any, way: str) -> None:
    got = collect(asker(way, iter(kind(InterruptedData(), batch_size=None))))
    assert got == [0, 1, "KeyboardInterrupt", 3, 4, 5]


@WAYS
@pytest.mark.usefixtures("accelerator")
def test_in_a_dataset_behind_the_thread_that_pins(way: str) -> None:
    got = collect(asker(way, iter(DataLoader(InterruptedData(), batch_size=None, pin_memory=True))))
    assert got == [0, 1, "KeyboardInterrupt", 3, 4, 5]
