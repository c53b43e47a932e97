"""The exhaustive sweep: small loaders of every kind, cut at every step, taken up everywhere else, once and again."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as stock
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler as StockDistributed

import feedrate
from feedrate import samplers as ours
from feedrate.torch import DataLoader

pytestmark = [pytest.mark.ours, pytest.mark.watchdog(400)]


class Numbers(Dataset[int]):
    """The index is the sample. Larger than any order, so that samplers may give what they like."""

    def __init__(self, n: int = 1000) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        return i


def world_of(seed: int) -> None:
    """The process-wide generators in a known state."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain(batch: Any) -> Any:
    return batch.tolist() if hasattr(batch, "tolist") else batch


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def ahead(loader: Any, count: int) -> tuple[list[Any], Any]:
    """The first batches, and the state behind them."""
    iterator = iter(loader)
    got = [plain(next(iterator)) for _ in range(count)]
    return got, through_json(loader.state_dict())


def rest(loader: Any) -> list[Any]:
    return [plain(batch) for batch in loader]


# -- one rank: all samplers, sizes around multiples of the batch


class Users:
    """Without a state, from the process-wide generators."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.n))
        random.shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return self.n


class Stateful(Users):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.n:
            self.at += 1
            yield self.at * 7 % self.n
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def weights(n: int) -> list[float]:
    return [1.0 + (i * 5) % 7 for i in range(n)]


#: Arguments of the loader, for n samples in batches of b.
ORDERS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "sequential": lambda n, b: {"sampler": stock.SequentialSampler(range(n))},
    "shuffle": lambda n, b: {"sampler": stock.RandomSampler(range(n), generator=gen(1))},
    "shuffle, process-wide": lambda n, b: {"sampler": stock.RandomSampler(range(n))},
    "shuffle, loader's": lambda n, b: {"sampler": stock.RandomSampler(range(n), generator=(g := gen(2))), "generator": g},
    "replacement": lambda n, b: {"sampler": stock.RandomSampler(range(n), True, n + 2, gen(3))},
    "replacement, process-wide": lambda n, b: {"sampler": stock.RandomSampler(range(n), True, n + 2)},
    "more than once": lambda n, b: {"sampler": stock.RandomSampler(range(n), False, 2 * n + 1, gen(4))},
    "subset": lambda n, b: {"sampler": stock.SubsetRandomSampler(range(5, 5 + n), gen(5))},
    "weighted": lambda n, b: {"sampler": stock.WeightedRandomSampler(weights(n), n + 3, generator=gen(6))},
    "weighted, once": lambda n, b: {"sampler": stock.WeightedRandomSampler(weights(n), n, False)},
    "torch's batches": lambda n, b: {
        "batch_sampler": stock.BatchSampler(stock.RandomSampler(range(n), generator=gen(7)), b, False)
    },
    "torch's distributed": lambda n, b: {"sampler": StockDistributed(range(n), 2, 1, seed=8)},
    "user's": lambda n, b: {"sampler": Users(n)},
    "user's, stateful": lambda n, b: {"sampler": Stateful(n)},
    "user's batches": lambda n, b: {"batch_sampler": [list(range(k, min(k + b, n))) for k in range(0, n, b)]},
    "range": lambda n, b: {"sampler": range(n)},
    "our sequential": lambda n, b: {"sampler": ours.SequentialSampler(range(n))},
    "our random": lambda n, b: {"sampler": ours.RandomSampler(range(n), generator=9)},
    "our random, torch's generator": lambda n, b: {"sampler": ours.RandomSampler(range(n), generator=gen(10))},
    "our subset": lambda n, b: {"sampler": ours.SubsetRandomSampler(range(5, 5 + n), generator=11)},
    "our weighted": lambda n, b: {"sampler": ours.WeightedRandomSampler(weights(n), n + 3, generator=12)},
    "our shuffle": lambda n, b: {"sampler": ours.ShuffleSampler(range(n), seed=13)},
    "our batches": lambda n, b: {"batch_sampler": ours.BatchSampler(ours.RandomSampler(range(n), generator=14), b, False)},
    "our distributed": lambda n, b: {"sampler": ours.DistributedSampler(range(n), 3, 2, seed=15)},
    "a share of weighted": lambda n, b: {
        "sampler": ours.Distributed(ours.WeightedRandomSampler(weights(n), n, generator=16), 2, 1)
    },
    "a share of a user's": lambda n, b: {"sampler": ours.Distributed(Stateful(n), 2, 0, "exact")},
    "repeated": lambda n, b: {"sampler": ours.RepeatSampler(ours.RandomSampler(range(n), generator=17), 2)},
    "concatenated": lambda n, b: {
        "sampler": ours.ConcatSampler([ours.ShuffleSampler(range(n), seed=18), ours.SequentialSampler(range(3))], [0, n])
    },
    "buckets": lambda n, b: {"batch_sampler": ours.BucketBatchSampler([1 + i % 5 for i in range(n)], b, num_buckets=2, seed=19)},
    "budget": lambda n, b: {
        "batch_sampler": ours.BudgetBatchSampler(ours.RandomSampler(range(n), generator=20), [1 + i % 3 for i in range(n)], 3 * b)
    },
}
#: Those whose second epoch hangs on generators that the user restores.
PROCESS_WIDE = {"shuffle, process-wide", "replacement, process-wide", "weighted, once", "user's"}


def one_rank(order: str, n: int, b: int, drop_last: bool, **more: Any) -> DataLoader[Any]:
    arguments = ORDERS[order](n, b)
    if "batch_sampler" not in arguments:
        arguments |= {"batch_size": b, "drop_last": drop_last}
    return DataLoader(Numbers(), **arguments, **more)


def check_every_cut(make: Callable[[], Any], order: str, again: Callable[[], Any] | None = None) -> None:
    """Saved behind each batch of the first two epochs; taken up, and taken up once more one batch later."""
    again = again or make
    world_of(1)
    source = make()
    epochs = [rest(source)]
    between = through_json(source.state_dict())
    epochs.append(rest(source))
    later = order not in PROCESS_WIDE
    for epoch, whole in enumerate(epochs if later else epochs[:1]):
        world_of(1)
        source = make()
        for _ in range(epoch):
            rest(source)
        iterator = iter(source)
        states = [through_json(source.state_dict())]
        for batch in whole:
            assert plain(next(iterator)) == batch
            states.append(through_json(source.state_dict()))
        del iterator
        for cut, state in enumerate(states):
            world_of(50 + cut)
            resumed = again()
            resumed.load_state_dict(state)
            assert through_json(resumed.state_dict()) == state
            assert rest(resumed) == whole[cut:], (order, epoch, cut)
            if later and epoch == 0:
                assert rest(resumed) == epochs[1], (order, cut, "the following epoch")
            if cut < len(whole):
                first = again()
                first.load_state_dict(state)
                got, state = ahead(first, 1)
                world_of(90 + cut)
                second = make()
                second.load_state_dict(state)
                assert got + rest(second) == whole[cut:], (order, epoch, cut, "twice")
    if later:
        resumed = again()
        resumed.load_state_dict(between)
        assert rest(resumed) == epochs[1], (order, "between the epochs")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.filterwarnings("ignore:DistributedSampler.epoch", "ignore:This epoch had no batch")
def test_every_sampler(order: str) -> None:
    for n, b, drop_last in ((1, 1, False), *itertools.product((1, 2, 3, 4, 5, 6, 7), (3,), (False, True))):
        check_every_cut(lambda n=n, b=b, drop_last=drop_last: one_rank(order, n, b, drop_last), order)  # type: ignore[misc]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.filterwarnings("ignore:DistributedSampler.epoch", "ignore:This epoch had no batch")
def test_every_sampler_with_threads(order: str) -> None:
    """Saved without workers, taken up by threads that run ahead, and the other way round."""
    threads = {"num_workers": 2, "workers": "thread", "prefetch_factor": 3}
    for n, (save, load) in itertools.product((5,), itertools.permutations(({}, threads))):
        check_every_cut(
            lambda n=n, save=save: one_rank(order, n, 2, False, **save),
            order,
            lambda n=n, load=load: one_rank(order, n, 2, False, **load),
        )  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.filterwarnings("ignore:DistributedSampler.epoch")
def test_every_sampler_with_processes(order: str) -> None:
    for n, workers, more in ((5, 1, 3), (6, 2, 0), (7, 3, 2)):
        save = {"num_workers": workers, "prefetch_factor": 2}
        load = {"num_workers": more}
        check_every_cut(
            lambda n=n, save=save: one_rank(order, n, 2, False, **save),
            order,
            lambda n=n, load=load: one_rank(order, n, 2, False, **load),
        )  # type: ignore[misc]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 30])
def test_another_batch_size(batch_size: int) -> None:
    """Where sampler and batch size are apart, the rest of the order is cut anew."""
    for order, n in itertools.product(ORDERS, (5, 12)):
        if "batch_sampler" in ORDERS[order](n, 1):
            continue
        world_of(2)
        whole = [i for b in rest(one_rank(order, n, 2, False)) for i in b]
        world_of(2)
        steps = len(rest(one_rank(order, n, 2, False)))
        for cut in range(steps + 1):
            world_of(2)
            _, state = ahead(one_rank(order, n, 2, False), cut)
            world_of(3)
            resumed = one_rank(order, n, batch_size, False)
            resumed.load_state_dict(state)
            batches = rest(resumed)
            assert [i for b in batches for i in b] == whole[2 * cut :], (order, n, cut)
            assert all(len(b) == batch_size for b in batches[:-1])


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 9])
def test_the_loader_without_torch(n: int) -> None:
    def make(batch_size: int | None = 4, **more: Any) -> feedrate.DataLoader:
        return feedrate.DataLoader(np.arange(n), batch_size, shuffle=True, generator=21, **more)

    check_every_cut(make, "numpy")
    check_every_cut(lambda: make(drop_last=True) if n >= 4 else make(), "numpy, drop_last")
    check_every_cut(make, "numpy, threads", lambda: make(num_workers=2, workers="thread"))
    check_every_cut(lambda: make(None), "numpy, no batches")


# -- ranks


class Share:
    """One rank's run: what each step gave, and which of it was its own."""

    def __init__(self, loader: Any, steps: int | None = None) -> None:
        self.batches: list[list[int]] = []
        self.own: list[list[int]] = []
        iterator = iter(loader)
        while len(self.batches) != steps and (batch := next(iterator, None)) is not None:
            indices = plain(batch)
            mask = loader.mask.tolist()
            assert len(mask) == len(indices)
            self.batches.append(indices)
            self.own.append([i for i, real in zip(indices, mask, strict=True) if real])
        self.state = through_json(loader.state_dict())


def flat(shares: list[Share]) -> list[int]:
    return [i for share in shares for batch in share.own for i in batch]


def global_batches(shares: list[Share]) -> list[list[int]]:
    return [sorted(i for share in shares for i in share.own[step]) for step in range(len(shares[0].own))]


RANKED: dict[str, Callable[[int], dict[str, Any]]] = {
    "shuffle": lambda n: {"dataset": Numbers(n), "shuffle": True, "seed": 4},
    "in order": lambda n: {"dataset": Numbers(n)},
    "user's": lambda n: {"dataset": Numbers(), "sampler": Stateful(n)},
    "bounded": lambda n: {"dataset": Numbers(), "sampler": ours.RandomSampler(range(n), generator=6)},
}
SIZES = (1, 2, 5, 6, 7, 11, 12, 13, 23, 24, 25)
#: Ranks and batch size of each.
TOPOLOGIES = ((1, 1), (1, 6), (2, 3), (3, 2), (2, 1), (4, 1), (3, 4), (5, 2))


def ranked(kind: str, n: int, rank: int, world: int, batch: int, policy: str, **more: Any) -> DataLoader[Any]:
    return DataLoader(**RANKED[kind](n), batch_size=batch, distributed=(rank, world), remainder=policy, **more)  # type: ignore[arg-type]


def check_policy(policy: str, whole: list[int], shares: list[Share], world: int, batch: int, where: Any) -> None:
    """Equal steps, and each sample of ``whole`` once; ``"drop"`` may lose fewer than there are ranks."""
    steps = {len(share.batches) for share in shares}
    assert len(steps) == 1, where
    got, want = Counter(flat(shares)), Counter(whole)
    assert not got - want, where
    lost = (want - got).total()
    assert lost == (len(whole) % world if policy == "drop" else 0), where
    span = world * batch
    ended = len(whole) // span + (len(whole) % span >= (world if policy == "drop" else 1))
    assert steps == {ended}, where
    for share in shares:
        assert all(len(b) == batch for b in share.batches[:-1]), where
    if policy != "exact" and ended:
        assert len({len(share.batches[-1]) for share in shares}) == 1, where


@pytest.mark.parametrize("policy", ["pad", "drop", "exact"])
@pytest.mark.parametrize("kind", RANKED)
def test_every_topology(kind: str, policy: str) -> None:
    """Saved in each, behind every step, taken up in each other one; the middle hop is one step in a third."""
    check_topologies(kind, policy, (1, 5, 12, 13) if kind == "shuffle" else (7, 12), TOPOLOGIES[1:6])


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["pad", "drop", "exact"])
def test_every_topology_and_size(policy: str) -> None:
    check_topologies("shuffle", policy, SIZES, TOPOLOGIES)


def check_topologies(kind: str, policy: str, sizes: tuple[int, ...], topologies: tuple[tuple[int, int], ...]) -> None:
    for n, (world, batch) in itertools.product(sizes, topologies):
        source = [Share(ranked(kind, n, rank, world, batch, policy)) for rank in range(world)]
        order = [i for b in rest(ranked(kind, n, 0, 1, 1, "exact")) for i in b]
        check_policy(policy, order, source, world, batch, (n, world, batch))
        steps = len(source[0].batches)
        for cut in range(steps + (policy != "drop" or steps * world * batch <= n)):
            # Any rank's state is as good as another's.
            saved = [Share(ranked(kind, n, rank, world, batch, policy), cut).state for rank in {0, world - 1}]
            left = order[cut * world * batch :]
            if not left:
                continue
            for (to, size), state in itertools.product(topologies, saved):
                where = (kind, policy, n, (world, batch), cut, (to, size))
                resumed = []
                for rank in range(to):
                    loader = ranked(kind, n, rank, to, size, policy)
                    loader.load_state_dict(state)
                    resumed.append(Share(loader))
                check_policy(policy, left, resumed, to, size, where)
                if (to, size) == (world, batch):
                    assert [s.batches for s in resumed] == [s.batches[cut:] for s in source], where
                elif to * size == world * batch and policy != "drop":
                    assert global_batches(resumed) == global_batches(source)[cut:], where
            via, via_batch = topologies[(cut + n) % len(topologies)]
            if len(left) >= via * via_batch:
                middle = []
                for rank in range(via):
                    loader = ranked(kind, n, rank, via, via_batch, policy)
                    loader.load_state_dict(saved[0])
                    middle.append(Share(loader, 1))
                assert sorted(flat(middle)) == sorted(left[: via * via_batch])
                last = []
                for rank in range(world):
                    loader = ranked(kind, n, rank, world, batch, policy)
                    loader.load_state_dict(middle[-1].state)
                    last.append(Share(loader))
                check_policy(policy, left[via * via_batch :], last, world, batch, (kind, policy, n, world, batch, cut, "twice"))


def test_following_epochs_are_the_same_everywhere() -> None:
    """After a change of ranks the next epochs hold the samples of the run that was never stopped."""
    n = 13
    source = [ranked("shuffle", n, rank, 2, 2, "exact") for rank in range(2)]
    for loader in source:
        rest(loader)
    second = [Share(loader, 2) for loader in source]
    third_order = [source[0].plan(2, step, rank) for step in range(4) for rank in range(2)]
    for world, batch in ((1, 4), (4, 1), (3, 5)):
        resumed = [ranked("shuffle", n, rank, world, batch, "exact") for rank in range(world)]
        shares = []
        for loader in resumed:
            loader.load_state_dict(second[1].state)
            shares.append(Share(loader))
        assert sorted(flat(second) + flat(shares)) == list(range(n))
        third = [Share(loader) for loader in resumed]
        assert sorted(flat(third)) == list(range(n))
        if world * batch == 4:
            whole = [sorted(a + b) for a, b in zip(third_order[::2], third_order[1::2], strict=True)]
            assert global_batches(third) == whole


@pytest.mark.filterwarnings("ignore:DistributedSampler.epoch")
def test_torchs_distributed_sampler() -> None:
    """Taken up by another number of ranks exactly where nothing is padded or cut, and else refused with both numbers."""
    taken = refused = 0
    for n, shuffle, world, batch in itertools.product((6, 12, 13, 24), (True, False), (1, 2, 3), (1, 2, 3)):
        data = Numbers(n)

        def make(rank: int, world: int, batch: int, data: Any = data, shuffle: bool = shuffle) -> DataLoader[Any]:
            sampler = StockDistributed(data, world, rank, shuffle=shuffle, seed=5)
            sampler.set_epoch(3)
            return DataLoader(data, batch, sampler=sampler)

        source = [rest(make(rank, world, batch)) for rank in range(world)]
        for cut in range(len(source[0]) + 1):
            _, state = ahead(make(0, world, batch), cut)
            left = sorted(i for share in source for b in share[cut:] for i in b)
            for to in (1, 2, 3, 4):
                loaders = [make(rank, to, batch) for rank in range(to)]
                try:
                    for loader in loaders:
                        loader.load_state_dict(state)
                except feedrate.ResumeError as error:
                    assert f"num_replicas={world}" in str(error)
                    assert f"num_replicas={to}" in str(error)
                    assert n % world or n % to or len(left) % to, (n, world, to, cut)
                    refused += 1
                    continue
                got = [rest(loader) for loader in loaders]
                assert sorted(i for share in got for b in share for i in b) == left, (n, shuffle, world, batch, cut, to)
                assert len({len(share) for share in got}) == 1
                taken += 1
    assert taken > 200
    assert refused > 100


def test_our_distributed_sampler_around_any_other() -> None:
    """``feedrate.samplers.Distributed`` with each policy, its states taken up by other numbers of ranks."""
    for n, policy, world in itertools.product((6, 7, 12, 13), ("pad", "drop", "exact"), (1, 2, 3)):

        def make(rank: int, world: int, n: int = n, policy: Any = policy) -> DataLoader[Any]:
            order = ours.WeightedRandomSampler(weights(n), n, False, generator=7)
            return DataLoader(Numbers(), 2, sampler=ours.Distributed(order, world, rank, policy))

        order = list(ours.WeightedRandomSampler(weights(n), n, False, generator=7))
        steps = n // (2 * world)
        for cut, to in itertools.product(range(steps + 1), (1, 2, 3)):
            _, state = ahead(make(0, world), cut)
            left = order[cut * world * 2 :]
            got: list[int] = []
            for rank in range(to):
                loader = make(rank, to)
                loader.load_state_dict(state)
                got += [i for b in rest(loader) for i in b]
            want, found = Counter(left), Counter(got)
            where = (n, policy, world, cut, to)
            assert (want - found).total() == (len(left) % to if policy == "drop" else 0), where
            assert (found - want).total() == (-len(left) % to if policy == "pad" else 0), where


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["pad", "drop", "exact"])
def test_every_topology_with_workers(policy: str) -> None:
    """Ranks and workers change at the same time."""
    places = ((1, 4, 2), (2, 2, 0), (4, 1, 1), (3, 2, 3))
    for n, (world, batch, workers) in itertools.product((7, 8, 9), places):
        order = [i for b in rest(ranked("shuffle", n, 0, 1, 1, "exact")) for i in b]
        for cut in range(len(order) // (world * batch) + 1):
            state = Share(ranked("shuffle", n, world - 1, world, batch, policy, num_workers=workers), cut).state
            left = order[cut * world * batch :]
            if not left:
                continue
            for to, size, others in places:
                resumed = []
                for rank in range(to):
                    loader = ranked("shuffle", n, rank, to, size, policy, num_workers=others)
                    loader.load_state_dict(state)
                    resumed.append(Share(loader))
                check_policy(policy, left, resumed, to, size, (policy, n, (world, batch, workers), cut, (to, size, others)))
