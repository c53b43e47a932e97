"""States of datasets in workers that are kept between epochs, and in threads, which share the dataset."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import feedrate
from feedrate.torch import DataLoader

pytestmark = pytest.mark.ours


class Counts:
    """Samples that tell how many came before them."""

    def __init__(self) -> None:
        self.calls = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        self.calls += 1
        return 1000 * self.calls + i

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


class Stream(torch.utils.data.IterableDataset[int], feedrate.IterableDataset):
    """A stream that counts its passes."""

    def __init__(self, n: int = 20) -> None:
        self.n = n
        self.passes = self.at = 0

    def __iter__(self) -> Iterator[int]:
        info = feedrate.get_worker_info()
        numbers = range(self.n) if info is None else range(info.id, self.n, info.num_workers)
        while self.at < len(numbers):
            self.at += 1
            yield 1000 * self.passes + numbers[self.at - 1]
        self.at = 0
        self.passes += 1

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes, self.at = state["passes"], state["at"]


POOLS: dict[str, dict[str, Any]] = {
    "inline": {},
    "thread": {"num_workers": 1, "workers": "thread"},
    "kept thread": {"num_workers": 1, "workers": "thread", "persistent_workers": True},
    "process": {"num_workers": 1},
    "kept process": {"num_workers": 1, "persistent_workers": True},
    "two kept processes": {"num_workers": 2, "persistent_workers": True},
}


def plain(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("received", [None, 0, 1, 2])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("dataset", "every"), [(Counts, 1), (Stream, 1), (Stream, 3), (Stream, 30)], ids=["map", "stream", "stream-3", "stream-30"]
)
def test_a_second_epoch(dataset: Any, every: int, pool: str, received: int | None) -> None:
    """Behind some batches of it, or (``None``) between it and the first one; and a state at once of what was taken up."""

    def make() -> Any:
        return DataLoader(dataset(), batch_size=2, snapshot_every_n_steps=every, **POOLS[pool])

    loader = make()
    list(loader)
    iterator = None if received is None else iter(loader)
    plain(itertools.islice(() if iterator is None else iterator, received))
    state = json.loads(json.dumps(loader.state_dict()))
    want = plain(loader if iterator is None else iterator)
    resumed = make()
    resumed.load_state_dict(state)
    again = iter(resumed)
    state = json.loads(json.dumps(resumed.state_dict()))
    assert plain(again) == want
    resumed = make()
    resumed.load_state_dict(state)
    assert plain(resumed) == want


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_streams_that_end_before_their_first_snapshot(n: int) -> None:
    """The next pass is one all the same."""

    def make() -> Any:
        return DataLoader(Stream(n), batch_size=1, num_workers=1, persistent_workers=True, snapshot_every_n_steps=5)

    loader = make()
    list(loader)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert plain(resumed) == plain(loader)


@pytest.mark.parametrize("dataset", [Counts, Stream])
def test_what_kept_workers_made_for_nobody_is_not_made_up(dataset: Any) -> None:
    """Behind an epoch that was left, workers have gone on. Until each has given a batch, nobody knows how far."""
    loader = DataLoader(dataset(), batch_size=2, num_workers=2, persistent_workers=True)
    next(iter(loader))
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(feedrate.ResumeError, match="left before its end"):
        DataLoader(dataset(), batch_size=2, num_workers=2).load_state_dict(loader.state_dict())
    next(iterator)
    state = loader.state_dict()
    resumed = DataLoader(dataset(), batch_size=2, num_workers=2)
    resumed.load_state_dict(state)
    assert plain(resumed) == plain(iterator)


@pytest.mark.parametrize("loader_class", [DataLoader, feedrate.DataLoader])
def test_batches_out_of_order_are_taken_up_in_order(loader_class: Any) -> None:
    """Those that came ahead are left out of this run's states too."""
    gate = Gate()
    loader = loader_class(gate, batch_size=2, num_workers=2, in_order=False, workers="thread")
    iterator = iter(loader)
    seen = plain(itertools.islice(iterator, 2))
    state = loader.state_dict()
    gate.open()
    assert state["ahead"]
    first = loader_class(range(40), batch_size=2)
    first.load_state_dict(state)
    seen += plain(itertools.islice(first, 3))
    second = loader_class(range(40), batch_size=2)
    second.load_state_dict(first.state_dict())
    assert first.mask.tolist() == [True, True]
    seen += plain(second)
    assert sorted(itertools.chain(*seen)) == list(range(40))


class Gate:
    """Its first sample waits until it is let go."""

    def __init__(self) -> None:
        import threading

        self._event = threading.Event()
        self.open = self._event.set

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> int:
        if i == 0:
            self._event.wait(60)
        return i
