"""Acceptance cases RES-01 to RES-10 and those of DIST and ORD that concern a loader with a state or with ranks."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, WeightedRandomSampler

from feedrate import samplers
from feedrate.torch import DataLoader

pytestmark = pytest.mark.ours


class Numbers(Dataset[int]):
    """The index is the sample; counts how often it is asked."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        self.asked += 1
        return i


def shuffled(n: int = 8, batch_size: int = 1, **more: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(n), batch_size, shuffle=True, generator=torch.Generator().manual_seed(1), **more)


def flat(loader: Any) -> list[int]:
    return [i for batch in loader for i in batch.tolist()]


def take(loader: Any, batches: int) -> tuple[list[int], Any]:
    """The samples of the first batches, and the state behind them."""
    iterator = iter(loader)
    got = [i for _ in range(batches) for i in next(iterator).tolist()]
    return got, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_res_01_state_at_the_end_of_an_epoch(workers: int) -> None:
    source = shuffled(num_workers=workers)
    epochs = [flat(source) for _ in range(3)]
    assert len({tuple(e) for e in epochs}) == 3
    source = shuffled(num_workers=workers)
    states = [source.state_dict()]
    for _ in range(2):
        flat(source)
        states.append(source.state_dict())
    for k, state in enumerate(states):
        resumed = shuffled(num_workers=workers)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert [flat(resumed) for _ in range(3 - k)] == epochs[k:]


@pytest.mark.parametrize("workers", [0, 2])
def test_res_02_a_chain_of_hops(workers: int) -> None:
    whole = flat(shuffled(20))
    got, state = take(shuffled(20, num_workers=workers), 5)
    for _ in range(10):
        loader = shuffled(20, num_workers=workers)
        loader.load_state_dict(state)
        loader.load_state_dict(loader.state_dict())  # at once, and twice in a row
        more, state = take(loader, 1)
        got += more
    loader = shuffled(20, num_workers=workers)
    loader.load_state_dict(state)
    assert got + flat(loader) == whole


def test_res_03_later_epochs_are_whole_with_persistent_workers() -> None:
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    _, state = take(shuffled(128, 2, **options), 61)
    resumed = shuffled(128, 2, **options)
    resumed.load_state_dict(state)
    assert [len(list(resumed)) for _ in range(3)] == [3, 64, 64]


@pytest.mark.parametrize(("save", "load"), [(0, 0), (1, 1), (2, 2), (2, 0), (0, 2), (1, 2)])
def test_res_05_any_workers_and_before_the_first_batch(save: int, load: int) -> None:
    whole = flat(shuffled())
    for k in (0, 1, 3):
        _, state = take(shuffled(num_workers=save), k)
        resumed = shuffled(num_workers=load)
        resumed.load_state_dict(state)
        assert flat(resumed) == whole[k:]
    resumed = shuffled(num_workers=load)
    resumed.load_state_dict(shuffled(num_workers=save).state_dict())
    assert flat(resumed) == whole


@pytest.mark.parametrize("epoch", [0, 2])
def test_res_06_at_the_very_end_and_with_repeats(epoch: int) -> None:
    n = 64
    makers = (
        lambda: shuffled(n),
        lambda: DataLoader(Numbers(n), sampler=samplers.RepeatSampler(samplers.RandomSampler(range(n), generator=3), 2)),
        lambda: DataLoader(
            Numbers(n), sampler=torch.utils.data.RandomSampler(range(n), True, 100, torch.Generator().manual_seed(4))
        ),
    )
    for make in makers:
        source = make()
        epochs = [flat(source) for _ in range(epoch + 2)]
        last = len(epochs[epoch])
        for k in (0, 1, last - 1, last):
            source = make()
            for _ in range(epoch):
                flat(source)
            _, state = take(source, k)
            resumed = make()
            resumed.load_state_dict(state)
            assert flat(resumed) == epochs[epoch][k:]
            assert flat(resumed) == epochs[epoch + 1]


def test_res_07_a_later_epoch_has_its_own_order() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Numbers(20), 2, shuffle=True, seed=3, distributed=(0, 1))

    source = make()
    epochs = [flat(source) for _ in range(3)]
    source = make()
    for _ in range(2):
        flat(source)
    head, state = take(source, 3)
    resumed = make()
    resumed.load_state_dict(state)
    assert head + flat(resumed) == epochs[2]
    # The same without a state.
    by_hand = make()
    by_hand.set_epoch(2)
    by_hand.skip(3)
    assert flat(by_hand) == epochs[2][6:]


def test_res_08_nothing_is_read_again() -> None:
    _, state = take(shuffled(20_000, 8), 1_000)
    resumed = shuffled(20_000, 8)
    resumed.load_state_dict(state)
    next(iter(resumed))
    assert resumed.dataset.asked == 8  # type: ignore[attr-defined]


@pytest.mark.parametrize("to", [1, 2, 3, 4])
def test_res_09_another_world_size(to: int) -> None:
    def make(rank: int, world: int, batch_size: int) -> DataLoader[Any]:
        return DataLoader(Numbers(400), batch_size, shuffle=True, distributed=(rank, world), remainder="exact")

    seen, states = [], []
    for rank in range(2):
        got, state = take(make(rank, 2, 4), 10)
        seen += got
        states.append(state)
    for state in states:
        rest = []
        for rank in range(to):
            loader = make(rank, to, 8 // to)
            loader.load_state_dict(state)
            rest += flat(loader)
        assert sorted(seen + rest) == list(range(400))


@pytest.mark.parametrize("in_order", [True, False])
def test_res_10_what_was_delivered_counts(in_order: bool) -> None:
    options: dict[str, Any] = {"num_workers": 2, "in_order": in_order}
    source = shuffled(40, **options, prefetch_factor=8)
    iterator = iter(source)
    head = [int(next(iterator)) for _ in range(3)]
    # All that may be ahead is fetched before the state is taken.
    head.append(int(next(iterator)))
    state = source.state_dict()
    resumed = shuffled(40, **options)
    resumed.load_state_dict(state)
    whole = flat(shuffled(40))
    got = head + flat(resumed)
    assert sorted(got) == sorted(whole)
    assert not in_order or got == whole


def test_dist_03_len_is_what_is_delivered() -> None:
    for n, size, world, drop_last, remainder in itertools.product(
        (1, 7, 8, 9), (1, 4, 8), (1, 2, 3), (False, True), ("pad", "drop", "exact")
    ):
        for rank in range(world):
            loader = DataLoader(Numbers(n), size, drop_last=drop_last, distributed=(rank, world), remainder=remainder)
            if drop_last and n < size * world:
                continue
            assert len(loader) == len(list(loader)), (n, size, world, drop_last, remainder)


@pytest.mark.parametrize("remainder", ["pad", "drop", "exact"])
def test_dist_07_a_tiny_dataset_on_many_ranks(remainder: Any) -> None:
    for n in (1, 2, 3):
        shares = [flat(DataLoader(Numbers(n), 1, distributed=(rank, 9), remainder=remainder)) for rank in range(9)]
        if remainder == "pad":
            assert {len(share) for share in shares} == {1}
        assert sorted({i for share in shares for i in share}) == ([] if remainder == "drop" else list(range(n)))


@pytest.mark.parametrize("remainder", ["pad", "exact"])
def test_dist_08_each_sample_counts_once(remainder: Any) -> None:
    for n, world in itertools.product((97, 99, 100, 128), (1, 2, 3)):
        rows: list[int] = []
        for rank in range(world):
            loader = DataLoader(Numbers(n), 16, distributed=(rank, world), remainder=remainder)
            for batch in loader:
                rows += [i for i, real in zip(batch.tolist(), loader.mask, strict=True) if real]
        assert sorted(rows) == list(range(n))


def test_dist_09_a_last_step_smaller_than_the_ranks() -> None:
    """10 samples, a global batch of 4 on 4 ranks: 2 are left for the last step."""
    for remainder, sizes in (("pad", [1, 1, 1]), ("drop", [1, 1])):
        for rank in range(4):
            assert [len(b) for b in DataLoader(Numbers(10), 1, distributed=(rank, 4), remainder=remainder)] == sizes  # type: ignore[arg-type]
    exact = [DataLoader(Numbers(10), 1, distributed=(rank, 4), remainder="exact") for rank in range(4)]
    assert [[len(b) for b in loader] for loader in exact] == [[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 0]]
    assert [len(loader.mask) for loader in exact] == [1, 1, 0, 0]


def test_dist_10_a_rebuilt_loader_takes_the_state() -> None:
    class Mine(DataLoader[Any]):
        def __init__(self, *args: Any, extra: int, **more: Any) -> None:
            super().__init__(*args, **more)
            self.extra = extra

    def make() -> Mine:
        weighted = WeightedRandomSampler([1.0] * 10, 10, generator=torch.Generator().manual_seed(2))
        return Mine(Numbers(10), batch_size=2, sampler=weighted, extra=1)

    def rebuilt(loader: Mine) -> Mine:
        return type(loader)(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn, extra=loader.extra)

    whole = flat(make())
    head, state = take(rebuilt(make()), 2)
    resumed = rebuilt(make())
    resumed.load_state_dict(state)
    assert head + flat(resumed) == whole


def test_ord_04_epochs_advance_by_themselves() -> None:
    loaders = [DataLoader(Numbers(22), 5, shuffle=True, distributed=(rank, 2)) for rank in range(2)]
    epochs = [[flat(loader) for loader in loaders] for _ in range(3)]
    assert len({tuple(ranks[0]) for ranks in epochs}) == 3
    for ranks in epochs:
        assert sorted(ranks[0] + ranks[1]) == list(range(22))


def test_ord_06_a_subset_under_distribution() -> None:
    chosen = [5, 50, 500, 777]
    data = Subset(Numbers(1000), chosen)
    assert sorted(i for rank in range(2) for i in flat(DataLoader(data, 1, distributed=(rank, 2)))) == chosen


def test_ord_07_verify_reports_a_dataset_that_shuffles_itself() -> None:
    from feedrate.testing import assert_resumable

    class Shuffles(Numbers):
        order: Any = None

        def __getitem__(self, i: int) -> int:
            if self.order is None:
                self.order = np.random.permutation(self.n)
            return int(self.order[i])

    with pytest.raises(AssertionError, match="between num_workers=0 and num_workers=2"):
        assert_resumable(lambda num_workers: DataLoader(Shuffles(12), 2, num_workers=num_workers), cuts=[1], epochs=1)
