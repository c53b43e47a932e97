"""Batches by length and by budget, repeated and concatenated orders."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as stock

from feedrate.samplers import (
    BatchSampler,
    BucketBatchSampler,
    BudgetBatchSampler,
    ConcatSampler,
    DistributedSampler,
    RandomSampler,
    RepeatSampler,
    SequentialSampler,
    ShuffleSampler,
)

pytestmark = [pytest.mark.ours, pytest.mark.nocheck]  # samplers start nothing that could be left behind


# --- buckets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(4))
def test_buckets_hold_every_sample_once_and_only_similar_ones(block: int) -> None:
    for case in range(block * 50, block * 50 + 50):
        r = random.Random(case)
        lengths = [r.randint(0, 20) for _ in range(r.randint(0, 60))]
        edges = sorted(r.sample(range(1, 20), r.randint(0, 4)))
        sizes: Any = r.choice((1, 2, 5, [r.randint(1, 6) for _ in range(len(edges) + 1)]))
        shuffle, drop_last = r.random() < 0.7, r.random() < 0.5
        sampler = BucketBatchSampler(lengths, sizes, boundaries=edges, shuffle=shuffle, seed=case, drop_last=drop_last)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        bucket = [sum(edge <= length for edge in edges) for length in lengths]
        of_bucket = [sizes] * (len(edges) + 1) if isinstance(sizes, int) else sizes
        members = [bucket.count(b) for b in range(len(edges) + 1)]
        wanted = [
            [size] * (n // size) + ([n % size] if n % size and not drop_last else [])
            for n, size in zip(members, of_bucket, strict=True)
        ]
        found: list[list[int]] = [[] for _ in members]
        for batch in batches:
            assert len({bucket[i] for i in batch}) == 1
            found[bucket[batch[0]]].append(len(batch))
        assert [sorted(f) for f in found] == [sorted(w) for w in wanted]
        given = list(itertools.chain(*batches))
        assert len(set(given)) == len(given)
        if not shuffle:
            assert all(batch == sorted(batch) for batch in batches)
            assert [bucket[b[0]] for b in batches] == sorted(bucket[b[0]] for b in batches)
        assert batches == [sampler.batch(0, k) for k in range(len(sampler))]


def test_buckets_of_equal_shares() -> None:
    lengths = np.random.default_rng(1).permutation(1000)
    sampler = BucketBatchSampler(lengths, 10, num_buckets=4, seed=1)
    assert sampler.boundaries == [250, 500, 750]
    assert len(sampler) == 100
    assert BucketBatchSampler([3, 3, 3, 3], 2, num_buckets=4, seed=1).boundaries == []
    assert BucketBatchSampler([1, 2, 2, 2], 2, num_buckets=4, seed=1).boundaries == [2]


def test_bucket_orders_are_a_function_of_seed_and_epoch() -> None:
    lengths = np.random.default_rng(1).integers(1, 50, 400)

    def sampler(seed: int = 3) -> BucketBatchSampler:
        return BucketBatchSampler(lengths, 8, num_buckets=5, seed=seed)

    a, b = sampler(), sampler()
    epochs = [list(a) for _ in range(3)]
    b.set_epoch(2)
    assert list(b) == epochs[2]
    assert len({str(e) for e in [*epochs, list(sampler(4))]}) == 4
    within = [sorted(itertools.chain(*e)) for e in epochs]
    assert within[0] == within[1] == list(range(400))
    # Shuffled within buckets, and not only batches among each other.
    assert {frozenset(x) for x in epochs[0]} != {frozenset(x) for x in epochs[1]}
    assert list(BucketBatchSampler(lengths, 8, num_buckets=5)) != list(BucketBatchSampler(lengths, 8, num_buckets=5))


def test_lengths_by_a_function() -> None:
    a = BucketBatchSampler(lambda i: i % 5, 3, boundaries=[2], seed=1, num_samples=20)
    b = BucketBatchSampler([i % 5 for i in range(20)], 3, boundaries=[2], seed=1)
    assert list(a) == list(b)
    assert BucketBatchSampler([1, 2, 3], 2, boundaries=[2.0]).boundaries == [2]  # type: ignore[list-item]


@pytest.mark.parametrize(("args", "match"), [
    ({"lengths": [1], "batch_size": 1}, "give either boundaries or num_buckets"),
    ({"lengths": [1], "batch_size": 1, "boundaries": [1], "num_buckets": 1}, "give either boundaries or num_buckets"),
    ({"lengths": [1], "batch_size": 0, "num_buckets": 1}, "batch_size should be a positive integer value, but got batch_size=0"),
    ({"lengths": [1], "batch_size": [1, 2, 3], "boundaries": [1]}, "batch_size has 3 numbers, and there are 2 buckets"),
    ({"lengths": [1], "batch_size": 1, "boundaries": [2, 2]}, "boundaries should be ascending"),
    ({"lengths": [1], "batch_size": 1, "boundaries": [2.5]}, r"whole numbers, but got boundaries=\[2.5\]"),
    ({"lengths": [1], "batch_size": 1, "boundaries": [1, float("nan")]}, "boundaries should be ascending"),
    ({"lengths": lambda i: i + 0.9, "batch_size": 1, "num_buckets": 1, "num_samples": 2}, "the length of sample 0 is 0.9"),
    ({"lengths": [1], "batch_size": 1, "num_buckets": 0}, "num_buckets should be a positive integer"),
    ({"lengths": [1.5], "batch_size": 1, "num_buckets": 1}, "lengths should be one whole number for each sample"),
    ({"lengths": [[1]], "batch_size": 1, "num_buckets": 1}, "lengths should be one whole number for each sample"),
    ({"lengths": [1, 2, -3], "batch_size": 1, "num_buckets": 1}, "sample 2 has -3"),
    ({"lengths": int, "batch_size": 1, "num_buckets": 1}, "num_samples must say how many"),
    ({"lengths": [1], "batch_size": 1, "num_buckets": 1, "num_samples": 2}, "num_samples is 2, and there are 1 lengths"),
], ids=range(14))  # fmt: skip
def test_bad_bucket_arguments(args: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        BucketBatchSampler(**args)


# --- budget -----------------------------------------------------------------------------------------------------


def padded(batch: list[int], sizes: Any) -> int:
    """The size of a batch's tensor."""
    shapes = [np.atleast_1d(sizes[i]) for i in batch]
    return int(len(batch) * np.prod(np.max(shapes, axis=0)))


@pytest.mark.parametrize("block", range(4))
def test_batches_are_as_long_as_the_budget_allows_and_no_longer(block: int) -> None:
    for case in range(block * 50, block * 50 + 50):
        r = random.Random(case)
        n = r.randint(0, 60)
        images = r.random() < 0.4
        sizes: Any = [(r.randint(1, 6), r.randint(1, 6)) if images else r.randint(0, 36) for _ in range(n)]
        budget, most = r.randint(36, 200), r.choice((None, 1, 3, 8))
        order = list(ShuffleSampler(range(n), seed=case))
        sampler = BudgetBatchSampler(order, r.choice((sizes, sizes.__getitem__, np.array(sizes))), budget, max_samples=most)
        batches = list(sampler)
        assert list(itertools.chain(*batches)) == order, "in the order of the sampler, none lost"
        for batch, following in itertools.zip_longest(batches, batches[1:]):
            assert padded(batch, sizes) <= budget
            assert most is None or len(batch) <= most
            if following and len(batch) != most:
                assert padded([*batch, following[0]], sizes) > budget, "one more would have fitted"
        real = sum(int(np.prod(sizes[i])) for i in order)
        full = sum(padded(batch, sizes) for batch in batches)
        report = sampler.padding
        assert (report.tokens, report.padded_tokens, report.skipped) == (real, full, 0)
        assert report.ratio == (1 - real / full if full else 0)


def test_a_sample_over_the_budget() -> None:
    lengths = [3, 3, 50, 4, 60]
    it = iter(BudgetBatchSampler(range(5), lengths, 10))
    assert next(it) == [0, 1]
    for _ in range(2):  # it does not go away unseen
        with pytest.raises(ValueError, match=r"sample 2 has a size of 50, which is over the budget of 10 by itself.*oversize"):
            next(it)
    images = BudgetBatchSampler(range(1), [(4, 5)], 10)
    with pytest.raises(ValueError, match="sample 0 has a size of 4 x 5"):
        next(iter(images))
    skipping = BudgetBatchSampler(range(5), lengths, 10, oversize="skip")
    assert list(skipping) == [[0, 1, 3]] or list(skipping) == [[0, 1], [3]]
    assert skipping.padding.skipped == 2
    assert list(BudgetBatchSampler(range(5), lengths, 10, oversize="alone")) == [[0, 1], [2], [3], [4]]


def test_an_error_loses_no_sample() -> None:
    lengths: Any = {0: 1, 1: 2, 2: "?", 3: 1}
    it = iter(BudgetBatchSampler(range(4), lengths, 10))
    with pytest.raises(ValueError, match="the length of sample 2 is '?'"):
        next(it)
    lengths[2] = 1
    assert list(it) == [[0, 1, 2, 3]]
    mixed = iter(BudgetBatchSampler(range(2), [3, (1, 2)], 10))
    with pytest.raises(ValueError, match="sample 1 has 2 dimensions, that of others has 1"):
        next(mixed)


def test_the_report_goes_on_after_resuming() -> None:
    lengths = [i % 7 + 1 for i in range(40)]

    def make() -> BudgetBatchSampler:
        return BudgetBatchSampler(SequentialSampler(range(40)), lengths, 20)

    whole = make()
    expected = list(whole)
    first = make()
    it = iter(first)
    got = [next(it), next(it)]
    again = make()
    again.load_state_dict(first.state_dict())
    assert got + list(again) == expected
    assert again.padding == whole.padding
    assert whole.padding.ratio > 0


@pytest.mark.parametrize(("args", "match"), [
    ({"budget": 0}, "budget should be a positive integer value"),
    ({"budget": 1.5}, "budget should be a positive integer value"),
    ({"budget": 1, "max_samples": 0}, "batch_size should be a positive integer value"),
    ({"budget": 1, "oversize": "keep"}, "oversize should be one of"),
])  # fmt: skip
def test_bad_budget_arguments(args: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        BudgetBatchSampler(range(3), [1, 1, 1], **args)


def test_a_budget_has_no_length() -> None:
    with pytest.raises(TypeError, match="has no len"):
        len(BudgetBatchSampler(range(3), [1, 1, 1], 2))  # type: ignore[arg-type]


# --- repeated and concatenated ------------------------------------------------------------------------------------


def test_repeating_goes_on_in_the_streams() -> None:
    g = torch.Generator().manual_seed(1)
    theirs = stock.RandomSampler(range(7), generator=g)
    expected = [*theirs, *theirs, *theirs]
    sampler = RepeatSampler(RandomSampler(range(7), generator=1), 3)
    assert len(sampler) == 21
    assert list(sampler) == expected
    epochs = RepeatSampler(DistributedSampler(range(20), 2, 0), 2)
    inner = DistributedSampler(range(20), 2, 0)
    expected = []
    for epoch in range(4):
        inner.set_epoch(epoch)
        expected += inner
    assert [*epochs, *epochs] == expected


def test_repeating_without_end() -> None:
    sampler = RepeatSampler(range(3), None)
    assert list(itertools.islice(sampler, 10)) == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert next(iter(BatchSampler(sampler, 8, True))) == [0, 1, 2, 0, 1, 2, 0, 1]
    with pytest.raises(TypeError, match="has no length: it does not end"):
        len(sampler)
    with pytest.raises(ValueError, match="would never come back"):
        next(iter(RepeatSampler([], None)))
    for bad in (0, -1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="times should be a positive integer or None"):
            RepeatSampler(range(3), bad)  # type: ignore[arg-type]


def test_concatenation() -> None:
    parts = [SequentialSampler(range(4)), [], RandomSampler(range(5), generator=2), iter_of([7, 8])]
    sampler = ConcatSampler(parts, [0, 4, 4, 100])
    expected = [0, 1, 2, 3, *(i + 4 for i in RandomSampler(range(5), generator=2)), 107, 108]
    assert list(sampler) == expected
    data = stock.ConcatDataset([range(4), range(5)])  # type: ignore[list-item]
    both = ConcatSampler([range(4), range(5)], [0, *data.cumulative_sizes[:-1]])
    assert list(both) == list(range(9))
    assert len(both) == 9
    assert list(ConcatSampler([], [])) == []
    with pytest.raises(ValueError, match="each sampler needs an offset: 2 samplers, 1 offsets"):
        ConcatSampler([range(2), range(2)], [0])


class iter_of:
    """An iterable that is no sequence."""

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[int]:
        return iter(self.items)


@pytest.mark.parametrize("size", range(1, 12))
def test_bulk_and_single_steps_give_the_same(size: int) -> None:
    """Batches are taken in bulk, across the borders of parts, permutations and pages."""

    def make() -> Any:
        inner = RepeatSampler(ConcatSampler([RandomSampler(range(5), num_samples=13, generator=1), range(3)], [0, 5]), 3)
        return ConcatSampler([inner, RandomSampler(range(9), True, 70, 1), SequentialSampler(range(2100))], [0, 20, 40])

    single = list(make())
    assert list(itertools.chain(*BatchSampler(make(), size, False))) == single
    for offset, step in ((0, 2), (1, 2), (2, 3), (4, 5), (6, 7)):
        it = iter(make())
        got: list[int] = []
        while part := it.take(size * step, offset, step):
            got += part
        assert got == single[offset::step]
