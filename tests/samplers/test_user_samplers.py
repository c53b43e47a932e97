"""Samplers without a state of their own inside those of ours: exact where their random numbers can be set back, else refused."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as stock

from feedrate import ResumeError
from feedrate.samplers import BatchSampler, ConcatSampler, Distributed, RepeatSampler
from feedrate.torch import DataLoader

pytestmark = [pytest.mark.ours, pytest.mark.nocheck]  # samplers start nothing that could be left behind

N = 12


class Drawn:
    """Draws each order from a generator that it keeps, of NumPy, Python or torch."""

    def __init__(self, kind: str) -> None:
        self.rng: Any = {
            "numpy": lambda: np.random.default_rng(0),
            "python": lambda: random.Random(0),
            "torch": lambda: torch.Generator().manual_seed(0),
        }[kind]()

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        if isinstance(self.rng, np.random.Generator):
            return iter(self.rng.permutation(N).tolist())
        if isinstance(self.rng, random.Random):
            return iter(self.rng.sample(range(N), N))
        return iter(torch.randperm(N, generator=self.rng).tolist())


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "batch": lambda s: BatchSampler(s, 4, False),
    "distributed": lambda s: Distributed(s, 1, 0),
    "repeat": lambda s: RepeatSampler(s, 2),
    "concat": lambda s: ConcatSampler([s, Drawn("numpy")], [0, 100]),
    "torch's inside": lambda s: Distributed(stock.BatchSampler(s, 4, False), 1, 0),
}


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("kind", ["numpy", "python", "torch"])
def test_generators_that_samplers_keep_are_set_back(kind: str, name: str) -> None:
    def make() -> Any:
        return WRAPPERS[name](Drawn(kind))

    sampler = make()
    epochs = [list(sampler) for _ in range(3)]
    for cut in range(len(epochs[0]) + 1):
        sampler = make()
        head = list(itertools.islice(it := iter(sampler), cut))
        state = json.loads(json.dumps(it.state_dict()))
        resumed = make()
        resumed.load_state_dict(state)
        assert head + list(resumed) == epochs[0]
        if cut:
            assert [list(resumed) for _ in range(2)] == epochs[1:]


@pytest.mark.parametrize("name", ["batch", "distributed", "repeat", "concat"])
@pytest.mark.parametrize("kind", ["numpy", "python", "torch"])
def test_no_order_is_lost_at_an_epochs_end(kind: str, name: str) -> None:
    def make() -> DataLoader[Any]:
        sampler = WRAPPERS[name](Drawn(kind))
        data = range(200)
        return DataLoader(data, batch_sampler=sampler) if name == "batch" else DataLoader(data, 4, sampler=sampler)

    def epoch(loader: DataLoader[Any]) -> list[Any]:
        return [batch.tolist() for batch in loader]

    loader = make()
    whole = [epoch(loader) for _ in range(3)]
    loader = make()
    assert epoch(loader) == whole[0]
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = make()
    resumed.load_state_dict(state)
    assert [epoch(resumed), epoch(resumed)] == whole[1:]


@pytest.mark.parametrize(
    "make",
    [
        lambda: stock.RandomSampler(range(N)),
        lambda: stock.RandomSampler(range(N), replacement=True),
        lambda: stock.SubsetRandomSampler(range(N)),
        lambda: stock.WeightedRandomSampler([1.0, 2.0, 3.0] * 4, N),
    ],
)
def test_torchs_samplers_without_a_generator_go_on(make: Any) -> None:
    """They draw from the process-wide one, which is left as the user has it."""
    for cut in (1, 2, 3):
        torch.manual_seed(1)
        loader = DataLoader(range(N), batch_sampler=BatchSampler(make(), 4, False))
        it = iter(loader)
        head = [next(it).tolist() for _ in range(cut)]
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [batch.tolist() for batch in it]
        torch.manual_seed(99)
        before = torch.get_rng_state()
        resumed = DataLoader(range(N), batch_sampler=BatchSampler(make(), 4, False))
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == rest
        assert len(head) == cut and torch.equal(torch.get_rng_state(), before)


class Given:
    """Orders that are given, one for each iteration, without a state."""

    def __init__(self, *orders: list[Any]) -> None:
        self.orders = iter(orders)
        self.n = len(orders[0])

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Any]:
        return iter(next(self.orders))


def resumed(first: list[Any], second: list[Any], *, loader: bool) -> list[Any]:
    """Behind two items of ``first``, with a sampler that gives ``second`` now."""
    if loader:

        def make(order: list[Any]) -> Any:
            return DataLoader(Echo(), 2, sampler=Given(order), collate_fn=list)

    else:

        def make(order: list[Any]) -> Any:
            return BatchSampler(Given(order), 2, False)

    old, new = make(first), make(second)
    next(iter(old))
    new.load_state_dict(json.loads(json.dumps(old.state_dict())))
    return list(new)


class Echo(stock.Dataset[Any]):
    def __getitem__(self, key: Any) -> Any:
        return key


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (list(np.array([3, 1, 2])), list(np.array([3, 0, 2]))),
        (list(np.array([[3, 1], [2, 4]] * 2)), list(np.array([[3, 1], [2, 5]] * 2))),
        (list(torch.tensor([3, 1, 2])), list(torch.tensor([3, 0, 2]))),
        ([1.5, 2.5, 3.5], [1.5, 2.75, 3.5]),
        (["a", "b", "c"], ["a", "d", "c"]),
        ([("a", 1), ("b", 2), 3], [("a", 1), ("b", 3), 3]),
        ([2**70, 1, 2], [2**70 + 1, 1, 2]),
        ([Decimal(1), 2, 3], [Decimal(2), 2, 3]),
    ],
)
def test_another_order_is_noticed_whatever_the_items_are(first: list[Any], second: list[Any], loader: bool) -> None:
    with pytest.raises(ResumeError, match="hash"):
        resumed(first, second, loader=loader)


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([3, 1, 2], list(np.array([3, 1, 2]))),
        ([3, 1, 2], list(torch.tensor([3, 1, 2]))),
        # One string twice, and two strings that are equal.
        ([["ab"] * 2, ["ab"] * 2, 0], [["ab", "".join("ab")], ["".join("ab"), "ab"], 0]),
        ([{"x", "y", "z"}, 1, 0], [{"z", "y", "x"}, 1, 0]),
    ],
)
def test_equal_items_are_the_same_order(first: list[Any], second: list[Any], loader: bool) -> None:
    assert len(resumed(first, second, loader=loader)) == 1


@pytest.mark.parametrize("mixed", [[0, 1, "a", 3, 4, "b", 6, 7], [2**70, 1, 2, 3, "x", 5, 6, 7]])
def test_pieces_of_any_size_hash_alike(mixed: list[Any]) -> None:
    """The state is made two items at a time, and read many at a time."""
    loader = DataLoader(Echo(), 2, sampler=Given(mixed), collate_fn=list)
    it = iter(loader)
    for cut in range(4):
        state = loader.state_dict()
        again = DataLoader(Echo(), 2, sampler=Given(mixed), collate_fn=list)
        again.load_state_dict(state)
        assert list(again) == [mixed[at : at + 2] for at in range(2 * cut, 8, 2)]
        next(it)


def test_another_kind_of_generator_is_refused() -> None:
    """Also another bit generator of NumPy's."""

    def make(rng: Any) -> Any:
        sampler = Drawn("numpy")
        sampler.rng = rng
        return sampler

    for rng in (np.random.Generator(np.random.Philox(0)), random.Random(0)):
        sampler = BatchSampler(make(np.random.default_rng(0)), 4, False)
        next(it := iter(sampler))
        with pytest.raises(ResumeError, match=r"numpy PCG64 generator, the Drawn has a .*(Philox|python)"):
            BatchSampler(make(rng), 4, False).load_state_dict(it.state_dict())
        loader = DataLoader(range(N), 4, sampler=make(np.random.default_rng(0)))
        next(iter(loader))
        other = DataLoader(range(N), 4, sampler=make(rng))
        with pytest.raises(ResumeError, match=r"numpy PCG64 generator, the loader has a .*(Philox|python)"):
            other.load_state_dict(loader.state_dict())
            iter(other)
