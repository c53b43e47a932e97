"""Orders shared out to ranks: every sample where it belongs, in every small case."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as stock

from feedrate._state_errors import ResumeError
from feedrate.samplers import (
    BatchSampler,
    BucketBatchSampler,
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

pytestmark = [pytest.mark.ours, pytest.mark.nocheck]  # samplers start nothing that could be left behind


class Opaque:
    """A user's sampler: no length, no state."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self.items))


INNER: dict[str, Any] = {
    "sequential": lambda n: SequentialSampler(range(n)),
    "random": lambda n: RandomSampler(range(n), generator=3),
    "opaque": lambda n: Opaque(range(n)),
    "concat": lambda n: ConcatSampler([ShuffleSampler(range(n // 2), 3), range(n - n // 2)], [0, n // 2]),
}


def shares(inner: Any, n: int, ranks: int, remainder: str) -> list[list[int]]:
    return [list(Distributed(INNER[inner](n), ranks, rank, remainder)) for rank in range(ranks)]  # type: ignore[arg-type]


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_every_small_case(inner: str, ranks: int) -> None:
    for n in sorted({1, 2, 3, *range(2 * ranks - 1, 2 * ranks + 2), *range(5 * ranks - 2, 5 * ranks + 3)} - {0}):
        order = list(INNER[inner](n))
        full, rest = divmod(n, ranks)
        exact = shares(inner, n, ranks, "exact")
        assert exact == [order[rank::ranks] for rank in range(ranks)]
        dropped = shares(inner, n, ranks, "drop")
        assert dropped == [order[: full * ranks][rank::ranks] for rank in range(ranks)]
        padded = shares(inner, n, ranks, "pad")
        total = -(-n // ranks) * ranks
        assert padded == [[order[i % n] for i in range(rank, total, ranks)] for rank in range(ranks)]
        if inner == "opaque":
            continue
        samplers = [[Distributed(INNER[inner](n), ranks, r, p) for r in range(ranks)] for p in ("pad", "drop", "exact")]
        for group, found in zip(samplers, (padded, dropped, exact), strict=True):
            assert [len(s) for s in group] == [len(items) for items in found]
        own = [items[: len(items) - s.padding] for s, items in zip(samplers[0], padded, strict=True)]
        assert sorted(itertools.chain(*own)) == list(range(n)), "what is not marked as padding is the data, once"
        assert sum(s.padding for s in samplers[0]) == (ranks - rest) % ranks
        assert not any(s.padding for group in samplers[1:] for s in group)


def test_padding_is_torchs() -> None:
    for n, ranks in itertools.product(range(1, 18), (1, 2, 3, 5, 9)):
        for rank in range(ranks):
            theirs = stock.DistributedSampler(range(n), ranks, rank, seed=4)
            order = RandomSampler(range(n), generator=4)
            assert list(Distributed(order, ranks, rank)) == list(theirs)


def rest_of(make: Any, n_before: int, ranks: int, remainder: str, k: int, then: int) -> tuple[list[Any], list[list[Any]]]:
    """What ``ranks`` ranks gave in ``k`` steps, and what ``then`` ranks give after taking it up."""
    before: list[Any] = []
    states = []
    for rank in range(ranks):
        sampler = Distributed(make(), ranks, rank, remainder)  # type: ignore[arg-type]
        it = iter(sampler)
        before += itertools.islice(it, k)
        states.append(sampler.state_dict())
    assert all(state == states[0] for state in states), "the state is the same on all ranks"
    after = []
    for rank in range(then):
        sampler = Distributed(make(), then, rank, remainder)  # type: ignore[arg-type]
        sampler.load_state_dict(states[0])
        padding = sampler.padding
        share = list(sampler)
        after.append(share[: len(share) - padding])
    return before, after


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("remainder", ["pad", "exact"])
def test_any_number_of_ranks_takes_up_the_rest(inner: str, remainder: str) -> None:
    if inner == "opaque" and remainder == "pad":
        pytest.skip("padding is told by the length, which this one has not")
    for n, ranks, then in itertools.product((1, 7, 12, 13), (1, 2, 3, 4), (1, 2, 3, 4, 5)):
        for k in range(n // ranks + 1):
            if inner == "concat" and remainder == "pad" and k and then > ranks + 1:
                continue  # refused, see below
            before, after = rest_of(lambda n=n: INNER[inner](n), n, ranks, remainder, k, then)
            assert Counter(itertools.chain(before, *after)) == Counter(range(n)), (n, ranks, then, k)
            steps = {len(share) for share in after}
            assert max(steps) - min(steps) <= 1


def test_dropping_on_other_ranks_gives_nothing_twice() -> None:
    for ranks, then, k in itertools.product((2, 3), (1, 2, 4), (0, 1, 2)):
        before, after = rest_of(lambda: ShuffleSampler(range(13), seed=1), 13, ranks, "drop", k, then)
        given = list(itertools.chain(before, *after))
        assert len(set(given)) == len(given) == k * ranks + (13 - k * ranks) // then * then


def test_what_cannot_be_padded_on_more_ranks_is_refused() -> None:
    def sampler(ranks: int, rank: int = 0) -> Distributed:
        return Distributed(ConcatSampler([range(20), range(3)], [0, 20]), ranks, rank)

    first = sampler(2)
    it = iter(first)
    next(it)
    with pytest.raises(ResumeError, match=r"num_replicas=2, here it is 5.*Resume on 3 ranks at most"):
        sampler(5).load_state_dict(first.state_dict())
    sampler(3).load_state_dict(first.state_dict())


def test_ranks_that_grow_twice_have_the_front_of_the_first_run_only() -> None:
    def sampler(ranks: int, rank: int = 0) -> Distributed:
        return Distributed(Opaque(range(13)), ranks, rank)

    state = None
    for ranks in (2, 3):
        stage = sampler(ranks)
        if state is not None:
            stage.load_state_dict(state)
        it = iter(stage)
        next(it)
        state = it.state_dict()
    assert state is not None
    with pytest.raises(ResumeError, match=r"num_replicas=3, here it is 4.*than the 2 that.*Resume on 3 ranks at most"):
        sampler(4).load_state_dict(state)
    for rank in range(3):
        last = sampler(3, rank)
        last.load_state_dict(state)
        assert len(list(last)) == 3
    # An order that is shorter than a step is known as a whole.
    short = Distributed(Opaque(range(2)), 4, 0)
    list(it := iter(short))
    for rank in range(8):
        again = Distributed(Opaque(range(2)), 8, rank)
        again.load_state_dict(it.state_dict())
        assert list(again) == []


def test_torchs_distributed_order_moves_between_ranks_when_nothing_was_padded() -> None:
    n = 24
    whole = [list(DistributedSampler(range(n), 1, 0, seed=2))[i] for i in range(n)]
    for ranks, then, k in itertools.product((1, 2, 3, 4, 5), (1, 2, 3, 4, 6, 5), range(7)):
        first = DistributedSampler(range(n), ranks, 0, seed=2)
        it = iter(first)
        assert list(itertools.islice(it, k)) == whole[0::ranks][:k] or n % ranks
        state = first.state_dict()
        done = k * ranks
        possible = ranks == then or done == 0 or done >= n or (n % ranks == n % then == 0 and done % then == 0)
        after = []
        for rank in range(then):
            again = DistributedSampler(range(n), then, rank, seed=2)
            if not possible:
                with pytest.raises(ResumeError, match=f"num_replicas={ranks}, here it is {then}"):
                    again.load_state_dict(state)
                continue
            again.load_state_dict(state)
            after.append(list(again))
        if possible and n % ranks == n % then == 0:
            assert sorted(whole[:done] + list(itertools.chain(*after))) == list(range(n))


def test_ord_06_chosen_indices_survive_distribution() -> None:
    chosen = [5, 50, 500, 777]
    for kind, ranks in itertools.product(("sampler", "torch's", "subset", "keyed"), (1, 2, 3, 4)):
        got: list[int] = []
        for rank in range(ranks):
            data: Any = range(1000)
            if kind == "sampler":
                sampler: Any = Distributed(SubsetRandomSampler(chosen, 1), ranks, rank, "exact")
            elif kind == "torch's":
                sampler = Distributed(
                    stock.SubsetRandomSampler(chosen, torch.Generator().manual_seed(1)),  # type: ignore[no-untyped-call]
                    ranks,
                    rank,
                    "exact",
                )
            elif kind == "subset":
                data = stock.Subset(range(1000), chosen)  # type: ignore[arg-type]
                sampler = DistributedSampler(data, ranks, rank)
            else:
                data = stock.Subset(range(1000), chosen)  # type: ignore[arg-type]
                sampler = Distributed(ShuffleSampler(data, seed=1), ranks, rank, "exact")
            got += [int(x) for batch in stock.DataLoader(data, batch_size=1, sampler=sampler) for x in batch]
        if kind == "subset":
            assert set(got) == set(chosen)
            assert len(got) == -(-4 // ranks) * ranks
        else:
            assert sorted(got) == chosen, (kind, ranks)


def test_weighted_sampling_on_ranks_is_the_global_draw() -> None:
    weights = np.random.default_rng(0).random(100)
    for replacement in (True, False):
        whole = list(WeightedRandomSampler(weights, 60, replacement, 7))
        found = [list(Distributed(WeightedRandomSampler(weights, 60, replacement, 7), 4, rank)) for rank in range(4)]
        assert [found[i % 4][i // 4] for i in range(60)] == whole


def test_batches_are_shared_out_whole() -> None:
    lengths = [i % 9 for i in range(50)]
    whole = BucketBatchSampler(lengths, 4, num_buckets=3, seed=1)
    batches = list(whole)
    found = [list(Distributed(BucketBatchSampler(lengths, 4, num_buckets=3, seed=1), 3, rank, "exact")) for rank in range(3)]
    assert found == [batches[rank::3] for rank in range(3)]


def test_epochs_are_passed_on() -> None:
    sampler = Distributed(BatchSampler(RepeatSampler(ShuffleSampler(range(10), seed=1), 2), 2, False), 2, 0)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize("sampler", [
    RandomSampler(range(9)), SubsetRandomSampler(range(9)), WeightedRandomSampler([1] * 9, 9), ShuffleSampler(range(9)),
    stock.RandomSampler(range(9)), stock.SubsetRandomSampler(range(9)), stock.WeightedRandomSampler([1] * 9, 9),
    BucketBatchSampler([1, 2], 1, num_buckets=1), BatchSampler(RandomSampler(range(9)), 2, False),
    RepeatSampler(stock.BatchSampler(stock.RandomSampler(range(9)), 2, False), 2),
    ConcatSampler([range(3), ShuffleSampler(range(9))], [0, 3]),
], ids=range(11))  # fmt: skip
def test_an_order_that_would_differ_between_ranks_is_refused(sampler: Any) -> None:
    with pytest.raises(ValueError, match=r"has no seed, so its order would differ between the 2 ranks: give it one"):
        Distributed(sampler, 2, 0)
    assert len(list(Distributed(sampler, 1, 0))) > 0


@pytest.mark.parametrize("sampler", [
    DistributedSampler(range(9), 2, 0), stock.DistributedSampler(range(9), 2, 0), Distributed(range(9), 2, 0),
    BatchSampler(DistributedSampler(range(9), 2, 0), 2, False),
], ids=range(4))  # fmt: skip
def test_a_share_of_a_share_is_refused(sampler: Any) -> None:
    with pytest.raises(ValueError, match="use only one of the two"):
        Distributed(sampler, 2, 0)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="remainder should be one of"):
        Distributed(range(9), 2, 0, "keep")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Invalid rank 2, rank should be in the interval \[0, 1\]"):
        Distributed(range(9), 2, 2)
    with pytest.raises(ValueError, match="nothing to share out: the SequentialSampler is empty"):
        Distributed(SequentialSampler([]), 2, 0)
    with pytest.raises(TypeError, match="has no len"):
        len(Distributed(Opaque([1]), 2, 0))


def test_ranks_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"num_replicas is not known.*WORLD_SIZE"):
        Distributed(range(9))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    sampler = Distributed(range(9), remainder="exact")
    assert (sampler.num_replicas, sampler.rank, list(sampler)) == (4, 3, [3, 7])
