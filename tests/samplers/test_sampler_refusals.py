"""States that could not be exact are refused, with both values and the fix, and nothing has changed then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

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

pytestmark = [pytest.mark.ours, pytest.mark.nocheck]  # samplers start nothing that could be left behind

N = range(37)
LENGTHS = [i * 7 % 11 + 1 for i in range(37)]


def gen() -> torch.Generator:
    return torch.Generator().manual_seed(5)


class Stateful:
    """A user's sampler with a state of its own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {}


def change(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: {**state, **fields}


def without(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: {k: v for k, v in state.items() if k != key}


def same(state: dict[str, Any]) -> dict[str, Any]:
    return state


REFUSED: list[tuple[Any, Any, Any, list[str]]] = [
    (SequentialSampler(range(5)), same, SequentialSampler(range(6)), ["size=5", "it is 6", "the data that it was saved with"]),
    (SequentialSampler(N), same, RandomSampler(N, generator=1), ["'SequentialSampler'", "RandomSampler"]),
    (SequentialSampler(N), change(format=2), SequentialSampler(N), ["format 2", "reads 1"]),
    (SequentialSampler(N), without("position"), SequentialSampler(N), ["no 'position'"]),
    (SequentialSampler(N), change(position=-1), SequentialSampler(N), ["position=-1"]),
    (SequentialSampler(N), change(begun=True, position=38), SequentialSampler(N), ["position=38", "37 items"]),
    (SequentialSampler(N), change(position=True), SequentialSampler(N), ["position=True"]),
    (SequentialSampler(N), change(position=1.5), SequentialSampler(N), ["position=1.5"]),
    (SequentialSampler(N), change(begun=1), SequentialSampler(N), ["begun=1"]),
    (SequentialSampler(N), lambda _: [1], SequentialSampler(N), ["is a dict, got list"]),
    (RandomSampler(N, generator=1), same, RandomSampler(N), ["generator given=True", "it is False", "give the sampler"]),
    (RandomSampler(N), same, RandomSampler(N, generator=gen()), ["generator given=False", "it is True"]),
    (RandomSampler(N, True, generator=1), same, RandomSampler(N, generator=1), ["replacement=True", "build it with replacement=True"]),
    (RandomSampler(N, num_samples=4, generator=1), same, RandomSampler(N, generator=1), ["num_samples=4", "it is 37"]),
    (RandomSampler(N, generator=1), change(now="AAAA"), RandomSampler(N, generator=1), ["generator='AAAA'"]),
    (RandomSampler(N, generator=1), change(now="?"), RandomSampler(N, generator=1), ["generator='?'"]),
    (RandomSampler(N, generator=1), change(now=None), RandomSampler(N, generator=1), ["generator=None"]),
    (RandomSampler(N, generator=1), without("now"), RandomSampler(N, generator=1), ["generator=None"]),
    (SubsetRandomSampler([1, 2, 3], 1), same, SubsetRandomSampler([1, 2, 4], 1), ["indices", "in the same order"]),
    (SubsetRandomSampler([1, 2, 3], 1), same, SubsetRandomSampler([1, 2], 1), ["size=3", "it is 2"]),
    (WeightedRandomSampler([1, 2], 3), same, WeightedRandomSampler([2, 1], 3), ["weights", "the weights that it was saved with"]),
    (ShuffleSampler(N, seed=1), same, ShuffleSampler(N, seed=2), ["seed=1", "it is 2", "build it with seed=1"]),
    (ShuffleSampler(N, seed=1), without("epoch"), ShuffleSampler(N, seed=1), ["no 'epoch'"]),
    (ShuffleSampler(N, seed=1), change(epoch="1"), ShuffleSampler(N, seed=1), ["epoch='1'"]),
    (BatchSampler(N, 4, False), same, BatchSampler(N, 8, False), ["batch_size=4", "it is 8", "build it with batch_size=4"]),
    (BatchSampler(N, 4, False), same, BatchSampler(N, 4, True), ["drop_last=False"]),
    (BatchSampler(SequentialSampler(N), 4, False), same, BatchSampler(N, 4, False), ["SequentialSampler", "range"]),
    (BatchSampler(N, 4, False), same, BatchSampler(SequentialSampler(N), 4, False), ["SequentialSampler"]),
    (BatchSampler(SequentialSampler(N), 4, False), same, BatchSampler(SequentialSampler(range(5)), 4, False), ["size=37", "it is 5"]),
    (BatchSampler(Stateful(), 4, False), same, BatchSampler(range(5), 4, False), ["state_dict()", "range"]),
    (DistributedSampler(N, 2, 0, seed=1), same, DistributedSampler(N, 2, 0, seed=2), ["seed=1", "it is 2"]),
    (DistributedSampler(N, 2, 0), change(begun=True, position=3), DistributedSampler(N, 3, 0), ["num_replicas=2", "it is 3", "37", "Distributed"]),
    (Distributed(N, 2, 0, "drop"), same, Distributed(N, 2, 0, "pad"), ["remainder='drop'", "it is 'pad'"]),
    (BucketBatchSampler([1, 2], 1, num_buckets=1), same, BucketBatchSampler([1, 3], 1, num_buckets=1), ["lengths"]),
    (BucketBatchSampler([1, 2], 1, boundaries=[2]), same, BucketBatchSampler([1, 2], 1, boundaries=[1]), ["boundaries=[2]", "[1]"]),
    (BudgetBatchSampler(N, LENGTHS, 30), same, BudgetBatchSampler(N, LENGTHS, 31), ["budget=30", "it is 31"]),
    (BudgetBatchSampler(N, [1] * 37, 30), same, BudgetBatchSampler(N, [2] * 37, 30), ["lengths", "the lengths that it was saved with"]),
    (BudgetBatchSampler(N, [(1, 2), 3] * 19, 30), same, BudgetBatchSampler(N, [(1, 1), 3] * 19, 30), ["lengths"]),
    (RepeatSampler(N, 2), same, RepeatSampler(N, 3), ["times=2", "it is 3"]),
    (ConcatSampler([N], [0]), same, ConcatSampler([N, N], [0, 37]), ["samplers=1", "it is 2"]),
    (ConcatSampler([N], [0]), same, ConcatSampler([N], [1]), ["offsets=[0]", "it is [1]"]),
    (ConcatSampler([N], [0]), change(parts=[]), ConcatSampler([N], [0]), ["parts=[]"]),
]  # fmt: skip


@pytest.mark.parametrize(("a", "edit", "b", "words"), REFUSED, ids=range(len(REFUSED)))
def test_a_state_that_cannot_be_exact_is_refused_and_changes_nothing(a: Any, edit: Any, b: Any, words: list[str]) -> None:
    before = b.state_dict()
    with pytest.raises(ResumeError) as error:
        b.load_state_dict(edit(a.state_dict()))
    assert isinstance(error.value, ValueError)
    for word in words:
        assert word in str(error.value)
    assert b.state_dict() == before
