"""Torch's samplers and ours: the same arguments, checks, orders and draws."""

from __future__ import annotations

import copy
import doctest
import itertools
import pickle
import random
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as stock

from feedrate import samplers as ours
from feedrate.samplers._streams import as_bytes, decode, encode

pytestmark = [pytest.mark.ours, pytest.mark.nocheck]  # samplers start nothing that could be left behind

SIZES = (1, 2, 3, 31, 32, 33, 64, 65, 100, 1000, 1025, 2500)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def outcome(call: Any) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def in_step(a: Any, b: Any, states: tuple[Any, Any], stop: int | None) -> None:
    """Both iterators give the same items, and their generators stand at the same place after each."""
    for number in itertools.count():
        if number == stop:
            return
        x, y = next(a, None), next(b, None)
        assert type(x) is type(y)
        assert x == y
        assert torch.equal(states[0].get_state(), states[1].get_state()), f"after item {number}"
        if x is None:
            return


def make(r: random.Random) -> Any:
    """Arguments of a random sampler: ``build(module, generator)``."""
    n = r.choice(SIZES)
    kind = r.choice(("random", "random", "subset", "weighted"))
    if kind == "random":
        replacement = r.random() < 0.4
        count = r.choice((None, 1, n, 2 * n, 3 * n + 1, r.randint(1, 200)))
        return lambda m, g: m.RandomSampler(range(n), replacement, count, g)
    if kind == "subset":
        indices = [r.randrange(10**6) for _ in range(n)] if r.random() < 0.8 else [f"key {i}" for i in range(n)]
        return lambda m, g: m.SubsetRandomSampler(indices, g)
    weights = [r.choice((0.1, 1.0, 5.0, r.random())) for _ in range(n)]
    replacement = r.random() < 0.6
    count = r.randint(1, 2 * n if replacement else n)
    return lambda m, g: m.WeightedRandomSampler(weights, count, replacement, g)


@pytest.mark.parametrize("block", range(8))
def test_random_orders_and_the_generator_are_torchs_at_every_item(block: int) -> None:
    for case in range(block * 40, block * 40 + 40):
        r = random.Random(case)
        build, seed = make(r), r.randrange(2**63)
        a, b = generator(seed), generator(seed)
        x, y = build(stock, a), build(ours, b)
        assert len(x) == len(y)
        for _ in range(2):  # a user who breaks and begins again, then whole epochs
            in_step(iter(x), iter(y), (a, b), r.choice((None, 0, 1, r.randint(0, 70))))
        in_step(iter(x), iter(y), (a, b), None)


@pytest.mark.parametrize("block", range(10))
def test_seeds_and_batches_give_torchs_orders(block: int) -> None:
    for case in range(block * 200, block * 200 + 200):
        r = random.Random(case)
        build, seed = make(r), r.choice((r.randrange(2**63), -r.randrange(2**63), r.randrange(5)))
        size, drop_last = r.choice((1, 2, 7, 32, 33, 100)), r.random() < 0.5
        x = stock.BatchSampler(build(stock, generator(seed)), size, drop_last)
        y = ours.BatchSampler(build(ours, seed), size, drop_last)
        assert len(x) == len(y)
        for _ in range(2):
            stop = r.choice((None, None, 0, 1, 2))
            assert list(itertools.islice(x, stop)) == list(itertools.islice(y, stop)), case


@pytest.mark.parametrize("block", range(4))
def test_without_a_generator_the_global_one_is_drawn_from_as_by_torch(block: int) -> None:
    for case in range(block * 100, block * 100 + 100):
        r = random.Random(case)
        build = make(r)
        found = []
        for module in (stock, ours):
            torch.manual_seed(case)
            sampler = build(module, None)
            it = iter(sampler)
            drawn = [torch.rand(1).item()]  # a loader draws between iter() and the first next()
            found.append((list(it), list(sampler), torch.rand(1).item(), drawn))
        assert found[0] == found[1], case


def test_every_small_case_of_distributed_sampler() -> None:
    for n, ranks, shuffle, drop_last in itertools.product(range(18), (1, 2, 3, 4, 7, 9), (True, False), (True, False)):
        for rank in range(ranks):
            x, y = (m.DistributedSampler(range(n), ranks, rank, shuffle, 3, drop_last) for m in (stock, ours))
            assert (len(x), x.num_samples, x.total_size) == (len(y), y.num_samples, y.total_size)
            for epoch in (0, 5):
                x.set_epoch(epoch)
                y.set_epoch(epoch)
                assert list(x) == list(y) == list(y), (n, ranks, rank, shuffle, drop_last)


def test_distributed_sampler_is_settled_at_iter() -> None:
    x, y = (m.DistributedSampler(range(50), 2, 1) for m in (stock, ours))
    a, b = iter(x), iter(y)
    x.set_epoch(1)
    y.set_epoch(1)
    assert list(a) == list(b)
    assert list(x) == list(y)


def test_a_dataset_that_grew_or_shrank() -> None:
    rows = list(range(10))
    pairs = [
        (stock.SequentialSampler(rows), ours.SequentialSampler(rows)),
        (stock.RandomSampler(rows, generator=generator(1)), ours.RandomSampler(rows, generator=1)),
    ]
    shares = [[m.DistributedSampler(rows, 3, 0, drop_last=drop) for m in (stock, ours)] for drop in (False, True)]
    rows += [10, 11, 12, 13]
    for x, y in pairs:
        assert len(x) == len(y) == 14
        assert list(x) == list(y)
    kept, cut = ([outcome(lambda s=s: list(s)) for s in share] for share in shares)
    assert kept[0][0] is kept[1][0] is AssertionError
    assert cut[0] == cut[1]
    del rows[4:]
    kept, cut = ([outcome(lambda s=s: list(s)) for s in share] for share in shares)
    assert kept[0] == kept[1]
    assert cut[0][0] is cut[1][0] is AssertionError


BAD: dict[str, Any] = {
    **{f"random {i}": lambda m, a=a: m.RandomSampler(range(3), **a) for i, a in enumerate([
        {"replacement": 1}, {"replacement": None, "num_samples": 0}, {"num_samples": 0}, {"num_samples": -1}, {"num_samples": 2.5},
        {"num_samples": "2"}, {"num_samples": False},
    ])},
    "random of nothing": lambda m: m.RandomSampler([]),
    "random of a number": lambda m: m.RandomSampler(3),
    "random of nothing, drawn": lambda m: list(m.RandomSampler([], num_samples=3)),
    "random of nothing, replacement": lambda m: list(m.RandomSampler([], True, 3, generator(1))),
    **{f"weighted {i}": lambda m, a=a: m.WeightedRandomSampler(*a) for i, a in enumerate([
        ([1], True), ([1], 0), ([1], -1), ([1], 1.5), ([1], "2"), ([1], None), ([1], 1, 1), ([1], 1, None), ([[1, 2], [3, 4]], 2),
    ])},
    **{f"weights {i}": lambda m, a=a: list(m.WeightedRandomSampler(*a, generator=generator(1))) for i, a in enumerate([
        ([0.0, 0.0], 1), ([0.0, 0.0], 3), ([-1.0, 2.0], 2), ([float("nan"), 1], 2), ([float("inf"), 1], 1), ([1, 0], 3, False), ([], 3),
    ])},
    **{f"batch {i}": lambda m, a=a: m.BatchSampler(range(3), *a) for i, a in enumerate([
        (2, 0), (True, False), (0, None), (-1, False), (2.0, False), (np.int64(2), False), ("2", False), (2, None),
    ])},
    "batch without a length": lambda m: len(m.BatchSampler(iter([1]), 2, False)),
    "subset of nothing": lambda m: list(m.SubsetRandomSampler([])),
    "sequential of a number": lambda m: list(m.SequentialSampler(3)),
    **{f"rank {a}": lambda m, a=a: m.DistributedSampler(range(3), *a) for a in [(2, 2), (2, -1), (0, 0), (-1, 0), (None, None)]},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_told_as_by_torch(name: str) -> None:
    assert outcome(lambda: BAD[name](ours)) == outcome(lambda: BAD[name](stock))


@pytest.mark.parametrize("weights", [[[1], [2, 3]], ["a"], [None], 3, iter([1.0]), {1: 2}.keys(), "abc", [1 + 2j]])
def test_bad_weights_are_refused_as_by_torch(weights: Any) -> None:
    for module in (stock, ours):
        with pytest.raises((TypeError, ValueError)):
            module.WeightedRandomSampler(weights, 2)


def test_weights_in_many_forms() -> None:
    for weights in (
        [1, 2, 3],
        (0.5, 1, 2),
        np.arange(1, 5),
        torch.ones(4, dtype=torch.float16),
        range(1, 4),
        [True, True, False],
    ):
        x, y = stock.WeightedRandomSampler(weights, 50, True, generator(1)), ours.WeightedRandomSampler(weights, 50, True, 1)
        assert list(x) == list(y)
        assert y.weights.tolist() == x.weights.tolist()


def test_weights_that_change() -> None:
    """As adaptive sampling sets them between epochs."""
    g = generator(1)
    x, y = stock.WeightedRandomSampler([1, 1, 1], 20, True, g), ours.WeightedRandomSampler([1, 1, 1], 20, True, 1)
    assert list(x) == list(y)
    before = y.state_dict()
    x.weights = torch.tensor([1, 0, 5], dtype=torch.double)
    y.weights = torch.tensor([1, 0, 5])
    assert y.state_dict()["weights"] != before["weights"]
    assert list(x) == list(y)


@pytest.mark.parametrize("bad", [1.5, "1", True, np.random.default_rng(1), [1]])
def test_a_generator_that_is_none(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"generator should be a torch\.Generator, an integer seed or None"):
        ours.RandomSampler(range(3), generator=bad)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, -1, -(2**63), 12345678901234567890])
def test_a_seed_is_torchs_whole_state(seed: int) -> None:
    stream = ours.RandomSampler(range(3), generator=seed)._stream
    assert stream is not None
    mark = stream.mark()
    assert as_bytes(mark) == generator(seed).get_state().numpy().tobytes()
    assert decode(encode(mark), "x") == mark
    assert decode(encode(as_bytes(mark)), "x") == as_bytes(mark)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_beyond_torchs_range(seed: int) -> None:
    with pytest.raises(ValueError, match="a seed lies between"):
        ours.RandomSampler(range(3), generator=seed)


def test_tensors_as_indices_stay_tensors() -> None:
    indices = torch.arange(5) * 10
    x, y = stock.SubsetRandomSampler(indices, generator(1)), ours.SubsetRandomSampler(indices, 1)
    got = list(zip(x, y, strict=True))
    assert all(isinstance(b, torch.Tensor) and torch.equal(a, b) for a, b in got)


SCRIPT = """
import sys
from feedrate.samplers import *
assert "torch" not in sys.modules
n = range(40)
print([list(RandomSampler(n, generator=3)), list(RandomSampler(n, True, 70, -3)), list(SubsetRandomSampler(range(5, 45), 3)),
       list(WeightedRandomSampler([i % 5 + 1 for i in n], 30, True, 3)), list(WeightedRandomSampler([i % 5 + 1 for i in n], 30, False, 3)),
       list(DistributedSampler(n, 3, 1, seed=3))])
a, b = (list(RandomSampler(n)) for _ in range(2))
assert a != b and sorted(a) == sorted(b) == list(n)
assert sorted(SubsetRandomSampler(n)) == list(n) and len(list(WeightedRandomSampler([1, 1], 9))) == 9
BatchSampler(Distributed(RandomSampler(n, generator=1), 2, 0), 3, False).state_dict()
assert "torch" not in sys.modules
"""


def test_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    n, w = range(40), [i % 5 + 1 for i in range(40)]
    assert eval(done.stdout) == [
        list(stock.RandomSampler(n, generator=generator(3))),
        list(stock.RandomSampler(n, True, 70, generator(-3))),
        list(stock.SubsetRandomSampler(range(5, 45), generator(3))),
        list(stock.WeightedRandomSampler(w, 30, True, generator(3))),
        list(stock.WeightedRandomSampler(w, 30, False, generator(3))),
        list(stock.DistributedSampler(n, 3, 1, seed=3)),
    ]


def test_no_list_of_the_whole_order() -> None:
    n = range(1_000_000)
    for sampler in (
        ours.SequentialSampler(n),
        ours.ShuffleSampler(n, 1),
        ours.RandomSampler(n, generator=1),
        ours.SubsetRandomSampler(n, 1),
        ours.DistributedSampler(n, 2, 1),
        ours.BatchSampler(ours.Distributed(ours.RandomSampler(n, generator=1), 2, 0), 100, False),
    ):
        tracemalloc.start()
        try:
            for _ in itertools.islice(sampler, 5000):
                pass
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 1_000_000, type(sampler).__name__  # a list of the order takes 8 MB, its numbers 28 MB more


def test_a_shuffle_of_ten_billion() -> None:
    n = 10**10
    sampler = ours.ShuffleSampler(range(n), seed=1)
    it = iter(sampler)
    first = [next(it) for _ in range(10)]
    assert len(set(first)) == 10
    assert all(0 <= i < n for i in first)
    assert first == sampler.order(0).take(0, 10)
    state = {**it.state_dict(), "position": n - 3}
    sampler.load_state_dict(state)
    assert len(list(iter(sampler))) == 3  # list(sampler) would make room for all


def test_shuffle_sampler_epochs() -> None:
    a, b = (ours.ShuffleSampler(range(30), seed=4) for _ in range(2))
    epochs = [list(a) for _ in range(3)]
    assert len({tuple(e) for e in epochs}) == 3
    assert all(sorted(e) == list(range(30)) for e in epochs)
    assert a.epoch == 2
    b.set_epoch(1)
    iter(b)  # an iterator from which nothing is taken is no epoch
    assert list(b) == epochs[1]
    assert list(b) == epochs[2]
    b.set_epoch(0)
    next(iter(b))
    assert list(b) == epochs[1]
    assert list(ours.ShuffleSampler(range(30))) != list(ours.ShuffleSampler(range(30)))
    with pytest.raises(TypeError, match="seed should be an integer or None"):
        ours.ShuffleSampler(range(3), seed=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["deepcopy", "pickle"])
def test_copies_begin_anew_and_keep_the_generator(copied: Any) -> None:
    for g in (3, generator(3)):
        sampler = ours.BatchSampler(ours.RandomSampler(range(20), generator=g), 3, False)
        for _ in itertools.islice(sampler, 2):
            pass
        twin = copied(sampler)
        assert list(twin) == list(sampler)


def test_the_example_of_the_module() -> None:
    result = doctest.testmod(ours)
    assert result.attempted > 0
    assert result.failed == 0
