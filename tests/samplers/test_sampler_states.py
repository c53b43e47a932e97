"""States of samplers: exact after any item, small, and refused where they could not be exact."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import data as stock

from feedrate._state_errors import ResumeError
from feedrate.samplers import (
    BatchSampler,
    BucketBatchSampler,
    BudgetBatchSampler,
    ConcatSampler,
    Distributed,
    DistributedSampler,
    RandomSampler,
    RepeatSampler,
    SequentialSampler,
    ShuffleSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchdata import stateful_dataloader as torchdata
    from torchdata.stateful_dataloader import sampler as torchdata_samplers

pytestmark = [pytest.mark.ours, pytest.mark.nocheck]  # samplers start nothing that could be left behind

N = range(37)
LENGTHS = [i * 7 % 11 + 1 for i in range(37)]


def gen(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Stateful:
    """A user's sampler with a state of its own, counted by the sampler."""

    def __init__(self, n: int) -> None:
        self.n, self.epoch, self.at = n, 0, 0

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        while self.at < self.n:
            self.at += 1
            yield (self.at * 7 + self.epoch) % self.n
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


def concat_of(g: torch.Generator) -> ConcatSampler:
    return ConcatSampler([RandomSampler(range(9), generator=g), SubsetRandomSampler(range(4), g)], [0, 9])


# Each gives the same orders whenever it is made.
MAKERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(N),
    "random, seed": lambda: RandomSampler(N, generator=5),
    "random, generator": lambda: RandomSampler(N, generator=gen()),
    "random, few": lambda: RandomSampler(N, num_samples=11, generator=gen()),
    "random, many": lambda: RandomSampler(N, num_samples=100, generator=gen()),
    "random, twice": lambda: RandomSampler(N, num_samples=74, generator=5),
    "random, replacement": lambda: RandomSampler(N, True, 100, gen()),
    "random, replacement, seed": lambda: RandomSampler(N, True, 64, 5),
    "subset": lambda: SubsetRandomSampler([i * i for i in N], gen()),
    "subset of names": lambda: SubsetRandomSampler([f"name {i}" for i in N], 5),
    "weighted": lambda: WeightedRandomSampler([i + 1 for i in N], 50, True, gen()),
    "weighted, no replacement": lambda: WeightedRandomSampler([i + 1 for i in N], 30, False, 5),
    "shuffle": lambda: ShuffleSampler(N, seed=5),
    "distributed sampler": lambda: DistributedSampler(N, 3, 2),
    "batches": lambda: BatchSampler(RandomSampler(N, generator=gen()), 5, False),
    "batches, drop_last": lambda: BatchSampler(RandomSampler(N, num_samples=90, generator=gen()), 7, True),
    "batches of a range": lambda: BatchSampler(N, 5, False),
    "batches of torch's": lambda: BatchSampler(stock.SequentialSampler(N), 5, True),
    "batches of torch's random": lambda: BatchSampler(stock.RandomSampler(N, generator=gen()), 5, False),
    "repeat torch's": lambda: RepeatSampler(stock.SubsetRandomSampler([3, 4, 5, 6], gen()), 3),
    "pad of torch's": lambda: Distributed(stock.WeightedRandomSampler([1.0] * 37, 40, True, gen()), 3, 1),
    "batches of a stateful one": lambda: BatchSampler(Stateful(17), 3, False),
    "pad": lambda: Distributed(RandomSampler(N, generator=gen()), 5, 4, "pad"),
    "pad many": lambda: Distributed(RandomSampler(N, num_samples=80, generator=gen()), 3, 2, "pad"),
    "pad of a stateful one": lambda: Distributed(Stateful(17), 3, 2, "pad"),
    "drop": lambda: Distributed(ShuffleSampler(N, seed=5), 5, 4, "drop"),
    "exact": lambda: Distributed(WeightedRandomSampler([1] * 37, 40, True, 5), 3, 1, "exact"),
    "batches of a share": lambda: BatchSampler(Distributed(SubsetRandomSampler(N, gen()), 2, 1), 4, False),
    "share of batches": lambda: Distributed(BucketBatchSampler(LENGTHS, 3, num_buckets=4, seed=5), 3, 2),
    "buckets": lambda: BucketBatchSampler(LENGTHS, [3, 2, 1], boundaries=[4, 9], seed=5),
    "buckets in order": lambda: BucketBatchSampler(LENGTHS, 3, boundaries=[4, 9], shuffle=False, drop_last=True),
    "budget": lambda: BudgetBatchSampler(RandomSampler(N, generator=gen()), LENGTHS, 30),
    "budget, skip": lambda: BudgetBatchSampler(ShuffleSampler(N, seed=5), LENGTHS, 10, oversize="skip"),
    "budget of a stateful one": lambda: BudgetBatchSampler(Stateful(17), LENGTHS, 30, max_samples=4),
    "repeat": lambda: RepeatSampler(ShuffleSampler(range(9), seed=5), 3),
    "repeat random": lambda: RepeatSampler(RandomSampler(range(9), generator=gen()), 3),
    "repeat a range": lambda: RepeatSampler(range(9), 3),
    "concat": lambda: ConcatSampler(
        [RandomSampler(range(9), generator=gen()), SequentialSampler(range(4)), ShuffleSampler(range(6), 5)], [0, 9, 13]
    ),
    "concat, one generator": lambda: concat_of(gen()),
    "concat, one sampler": lambda: ConcatSampler([RandomSampler(range(9), generator=5)] * 2, [0, 9]),
    "batches of parts": lambda: BatchSampler(
        RepeatSampler(ConcatSampler([RandomSampler(range(9), generator=gen()), range(4)], [0, 9]), 2), 4, False
    ),
    "share of parts": lambda: Distributed(ConcatSampler([RandomSampler(range(9), generator=gen()), range(4)], [0, 9]), 4, 3),
}  # fmt: skip


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint keeps it."""
    return dict(json.loads(json.dumps(state)))


@pytest.mark.parametrize("name", MAKERS)
def test_every_cut_of_two_epochs(name: str) -> None:
    make = MAKERS[name]
    whole = make()
    epochs = [list(whole) for _ in range(3)]
    for epoch, k in itertools.product(range(2), range(len(epochs[0]) + 1)):
        if k > len(epochs[epoch]):
            continue
        first = make()
        for _ in range(epoch):
            list(first)
        it = iter(first)
        assert list(itertools.islice(it, k)) == epochs[epoch][:k]
        for state in (first.state_dict(), it.state_dict()):
            state = saved(state)
            again = make()
            again.load_state_dict(state)
            assert again.state_dict() == state
            assert list(again) == epochs[epoch][k:], (epoch, k)
            assert list(again) == epochs[epoch + 1], (epoch, k)
        assert list(it) == epochs[epoch][k:], "saving changed the order"
        assert list(first) == epochs[epoch + 1], "saving changed the next order"


@pytest.mark.parametrize("name", MAKERS)
def test_at_the_end_of_an_epoch_the_next_one_follows(name: str) -> None:
    make = MAKERS[name]
    whole = make()
    epochs = [list(whole) for _ in range(3)]
    first = make()
    it = iter(first)
    list(it)
    again = make()
    again.load_state_dict(first.state_dict())
    assert [list(again), list(again)] == epochs[1:]
    # The iterator's own state is that of its end.
    again = make()
    again.load_state_dict(it.state_dict())
    assert [list(again), list(again), list(again)] == [[], *epochs[1:]]


@pytest.mark.parametrize("name", MAKERS)
def test_twice_in_a_row_and_through_the_iterator(name: str) -> None:
    make = MAKERS[name]
    whole = make()
    expected, following = list(whole), list(whole)
    got: list[Any] = []
    state = None
    while True:
        sampler = make()
        it = iter(sampler)
        if state is not None:
            # In torchdata's order: the sampler, then its iterator.
            sampler.load_state_dict(state)
            it = iter(sampler)
            it.load_state_dict(state)
        got += itertools.islice(it, 3)
        if len(got) == len(expected):
            break
        state = it.state_dict()
    assert got == expected
    assert list(it) == []
    assert list(sampler) == following


@pytest.mark.parametrize("name", MAKERS)
def test_states_are_small(name: str) -> None:
    sampler = MAKERS[name]()
    it = iter(sampler)
    for _ in range(2):
        next(it)
    size = len(json.dumps(sampler.state_dict()))
    if name in (
        "sequential",
        "random, seed",
        "shuffle",
        "distributed sampler",
        "drop",
        "exact",
        "share of batches",
        "buckets",
        "repeat",
    ):
        assert size < 1_500
    else:
        assert size < (20_000 if name == "concat, one generator" else 10_000)


@pytest.mark.parametrize("make", [
    lambda: RandomSampler(N), lambda: RandomSampler(N, num_samples=100), lambda: RandomSampler(N, True, 3000),
    lambda: SubsetRandomSampler(N), lambda: WeightedRandomSampler([1] * 37, 50), lambda: BatchSampler(RandomSampler(N), 4, False),
])  # fmt: skip
def test_without_a_generator_the_rest_is_the_rest_and_the_global_generator_is_left_alone(make: Any) -> None:
    torch.manual_seed(3)
    whole = list(make())
    for k in sorted({1, 2, len(whole) // 2, len(whole) - 1, len(whole)}):
        torch.manual_seed(3)
        first = make()
        it = iter(first)
        assert list(itertools.islice(it, k)) == whole[:k]
        state = saved(first.state_dict())
        torch.manual_seed(99)
        before = torch.default_generator.get_state()
        again = make()
        again.load_state_dict(state)
        assert list(again) == whole[k:]
        assert torch.equal(before, torch.default_generator.get_state())


def test_without_a_generator_the_state_is_a_seed() -> None:
    sampler = RandomSampler(N)
    it = iter(sampler)
    next(it)
    assert len(json.dumps(sampler.state_dict())) < 300


def test_draws_by_others_from_a_shared_generator_are_kept() -> None:
    def epoch(sampler: Any, g: torch.Generator, k: int, into: list[Any]) -> Any:
        it = iter(sampler)
        into += itertools.islice(it, k)
        into.append(torch.rand(2, generator=g).tolist())
        return it

    g = gen()
    sampler = RandomSampler(N, num_samples=80, generator=g)
    expected: list[Any] = []
    expected += epoch(sampler, g, 50, expected)
    expected += sampler
    h = gen()
    sampler = RandomSampler(N, num_samples=80, generator=h)
    got: list[Any] = []
    epoch(sampler, h, 50, got)
    state = saved(sampler.state_dict())
    i = gen(77)
    again = RandomSampler(N, num_samples=80, generator=i)
    again.load_state_dict(state)
    torch.rand(3, generator=i)  # as a loader draws its base seed
    got += again
    got += again
    assert got == expected


@pytest.mark.parametrize("seeds", [(5, gen(5)), (gen(5), 5)])
def test_a_seed_and_a_generator_of_that_seed_are_one(seeds: Any) -> None:
    a, b = (RandomSampler(N, generator=s) for s in seeds)
    it = iter(a)
    head = list(itertools.islice(it, 10))
    b.load_state_dict(a.state_dict())
    assert head + list(b) == list(RandomSampler(N, generator=5))
    list(it)
    assert list(b) == list(a)


def test_set_epoch_after_loading() -> None:
    for make in (MAKERS["shuffle"], MAKERS["distributed sampler"], MAKERS["drop"], MAKERS["buckets"], MAKERS["repeat"]):
        whole = make()
        whole.set_epoch(4)
        expected = list(whole)
        whole.set_epoch(2)
        other = list(whole)
        first = make()
        first.set_epoch(4)
        it = iter(first)
        next(it)
        state = first.state_dict()
        for epoch, rest in ((4, expected[1:]), (2, other)):
            again = make()
            again.load_state_dict(state)
            again.set_epoch(epoch)  # trainers do so before each epoch
            assert list(again) == rest


def test_an_iterator_made_before_loading_does_not_take_the_state() -> None:
    sampler = SequentialSampler(N)
    early = iter(sampler)
    sampler.load_state_dict({**sampler.state_dict(), "begun": True, "position": 30})
    twice = iter(sampler)  # torch's loader makes two and uses the second
    assert list(early) == list(N)
    assert list(iter(sampler)) == list(range(30, 37))
    assert list(twice) == list(N)


def test_a_seedless_shuffle_takes_the_seed_of_the_state() -> None:
    a = ShuffleSampler(N)
    it = iter(a)
    head = list(itertools.islice(it, 5))
    b = ShuffleSampler(N)
    b.load_state_dict(a.state_dict())
    assert sorted(head + list(b)) == list(N)
    assert list(b) == list(a)


def test_another_order_of_a_users_sampler_is_noticed() -> None:
    a = BatchSampler(range(20), 4, False)
    it = iter(a)
    for _ in range(4):
        next(it)
    b = BatchSampler(range(10), 4, False)
    b.load_state_dict(a.state_dict())
    with pytest.raises(ResumeError, match=r"behind 16 items of a range \(hash \w+\), which gives 10"):
        next(iter(b))
    for other in (range(20, 0, -1), stock.RandomSampler(range(20)), [*range(15), 16, 15, 17, 18, 19]):
        b = BatchSampler(other, 4, False)
        b.load_state_dict(a.state_dict())
        with pytest.raises(ResumeError, match="which gives 16"):
            next(iter(b))


def test_around_torchdatas_samplers() -> None:
    """One whose iterator has the state, and one that has it itself."""
    for inner in (
        lambda: torchdata_samplers.RandomSampler(N, generator=gen()),
        lambda: torchdata_samplers.StatefulDistributedSampler(N, 2, 1),
    ):
        whole = BatchSampler(inner(), 5, False)
        expected, following = list(whole), list(whole)
        for k in range(1, len(expected) + 1):
            first = BatchSampler(inner(), 5, False)
            got = list(itertools.islice(iter(first), k))
            again = BatchSampler(inner(), 5, False)
            again.load_state_dict(first.state_dict())
            assert got + list(again) == expected, k
            assert list(again) == following, k


@pytest.mark.parametrize(
    "name", ["random, generator", "random, many", "subset", "weighted", "shuffle", "distributed sampler", "pad"]
)
def test_in_torchdatas_loader(name: str) -> None:
    def loader(sampler: Any) -> Any:
        return torchdata.StatefulDataLoader(range(2000), batch_size=4, sampler=sampler)

    make = MAKERS[name]
    expected = [b.tolist() for b in loader(make())]
    for k in range(len(expected)):
        first = loader(make())
        got = [b.tolist() for b in itertools.islice(first, k)]
        state = first.state_dict()
        again = loader(make())
        again.load_state_dict(state)
        assert got + [b.tolist() for b in again] == expected, k
