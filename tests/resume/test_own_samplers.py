"""Users' samplers that keep their place: at the end of a pass they cannot say whether the next one has begun."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

import feedrate
from feedrate.torch import DataLoader

pytestmark = pytest.mark.ours

LOADERS = pytest.mark.parametrize("loader_class", [DataLoader, feedrate.DataLoader], ids=["torch", "numpy"])
EPOCHS = 3


class Once:
    """Takes its place once; each further pass begins at the start."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.place = 0
        self.begin = 0

    def __iter__(self) -> Iterator[int]:
        begin, self.begin = self.begin, 0
        for i in range(begin, self.n):
            self.place = i + 1
            yield i

    def __len__(self) -> int:
        return self.n

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = self.place = state["place"]


class Round(Once):
    """Starts over when it stands at its end."""

    def __iter__(self) -> Iterator[int]:
        self.place %= self.n
        while self.place < self.n:
            self.place += 1
            yield self.place - 1

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class RoundBatches(Round):
    """The same, of batches."""

    def __iter__(self) -> Iterator[Any]:
        for i in super().__iter__():
            yield [2 * i, 2 * i + 1]


def epochs(loader: Any, first: int = 0) -> list[list[list[int]]]:
    return [[list(map(int, batch)) for batch in loader] for _ in range(first, EPOCHS)]


#: Sampler, its length, drop_last, workers.
CASES = [
    *((kind, n, drop_last, 0) for kind in (Once, Round) for n in (8, 10) for drop_last in (False, True)),
    *((RoundBatches, n, False, 0) for n in (4, 5)),
    (Once, 10, False, 2),
    (Round, 8, True, 2),
]


@LOADERS
@pytest.mark.parametrize(("kind", "n", "drop_last", "workers"), CASES)
def test_each_cut_goes_on_in_its_epoch(kind: Any, n: int, drop_last: bool, workers: int, loader_class: Any) -> None:
    """Behind the last batch nothing is left of the epoch, and the next one is whole: full batches to the end, or a short last one."""

    def make() -> Any:
        if kind is RoundBatches:
            return loader_class(range(100), batch_sampler=kind(n), num_workers=workers, collate_fn=list)
        return loader_class(range(100), batch_size=4, sampler=kind(n), drop_last=drop_last, num_workers=workers, collate_fn=list)

    want = epochs(make())
    assert want[0] == want[1] == want[2]
    for epoch in range(EPOCHS):
        for cut in range(len(want[0])):
            loader = make()
            for _ in range(epoch):
                list(loader)
            batches = iter(loader)
            for _ in range(cut + 1):
                next(batches)
            state = copy.deepcopy(loader.state_dict())
            del batches
            resumed = make()
            resumed.load_state_dict(state)
            assert epochs(resumed, epoch) == [want[0][cut + 1 :], *want[epoch + 1 :]], (epoch, cut)
