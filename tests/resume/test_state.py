"""state_dict() and load_state_dict(): the rest of the stream is exactly the rest."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data import RandomSampler as TorchRandom
from torch.utils.data import SequentialSampler as TorchSequential
from torch.utils.data.distributed import DistributedSampler

import feedrate
from feedrate.torch import DataLoader

pytestmark = pytest.mark.ours


class Counted(Dataset[int]):
    """Gives its indices and counts how often it is asked."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        self.asked += 1
        return i


class Evens:
    """A user's sampler without a state, which draws from the process-wide generators when it starts."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        order = [2 * i for i in range(self.n // 2)]
        random.shuffle(order)
        torch_part = torch.randperm(self.n // 2).tolist()
        yield from (order[k] for k in torch_part)

    def __len__(self) -> int:
        return self.n // 2


class OwnGenerator:
    """A user's sampler that keeps a generator."""

    def __init__(self, n: int, generator: Any) -> None:
        self.n = n
        self.rng = generator

    def __iter__(self) -> Iterator[int]:
        yield from self.rng.permutation(self.n).tolist()

    def __len__(self) -> int:
        return self.n


class Stateful:
    """A user's sampler with a state."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.at = 0
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.n:
            self.at += 1
            yield (self.at - 1) * 7 % self.n + 100 * self.epoch
        self.at = 0
        self.epoch += 1

    def __len__(self) -> int:
        return self.n

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Batches:
    """A user's batch sampler: batches of growing size."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.n).tolist()
        for size in itertools.count(1):
            if not order:
                return
            yield order[:size]
            del order[:size]


class Wide(Dataset[int]):
    """Takes any index; has a length for the loader's own samplers."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> int:
        return i


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


N = 23
KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "sequential": dict,
    "shuffle, process-wide": lambda: {"shuffle": True},
    "shuffle, generator": lambda: {"shuffle": True, "generator": generator(3)},
    "sampler's generator": lambda: {"sampler": TorchRandom(range(N), generator=generator(4))},
    "two generators": lambda: {"sampler": TorchRandom(range(N), generator=generator(4)), "generator": generator(5)},
    "replacement": lambda: {"sampler": TorchRandom(range(N), replacement=True, num_samples=40, generator=generator(6))},
    "repeated": lambda: {"sampler": TorchRandom(range(N), num_samples=50)},
    "weighted": lambda: {"sampler": WeightedRandomSampler(range(1, N + 1), 30, generator=generator(7))},
    "weighted, process-wide": lambda: {"sampler": WeightedRandomSampler(range(1, N + 1), 15, replacement=False)},
    "subset": lambda: {"sampler": SubsetRandomSampler(list(range(3, N)), generator=generator(8))},
    "subset, process-wide": lambda: {"sampler": SubsetRandomSampler(range(2, N, 2))},
    "distributed": lambda: {"sampler": DistributedSampler(range(N), 3, 1, seed=9)},
    "drop last": lambda: {"shuffle": True, "drop_last": True},
    "torch's batches": lambda: {"batch_sampler": BatchSampler(TorchSequential(range(N)), 4, False), "batch_size": 1},
    "user's, process-wide": lambda: {"sampler": Evens(N)},
    "user's generator": lambda: {"sampler": OwnGenerator(N, np.random.default_rng(10))},
    "user's state": lambda: {"sampler": Stateful(N)},
    "user's batches": lambda: {"batch_sampler": Batches(N), "batch_size": 1},
    "no batches": lambda: {"shuffle": True, "batch_size": None},
    "ranks, pad": lambda: {"shuffle": True, "distributed": (1, 3), "seed": 4},
    "ranks, exact": lambda: {"shuffle": True, "distributed": (2, 3), "remainder": "exact"},
    "ranks, weighted": lambda: {
        "sampler": WeightedRandomSampler(range(1, N + 1), 31),
        "distributed": (0, 2),
        "remainder": "drop",
    },
    "ranks, user's": lambda: {"sampler": Stateful(N), "distributed": (1, 2)},
}


def loader(kind: str, **more: Any) -> DataLoader[Any]:
    return DataLoader(Wide(), **{"batch_size": 4, **KINDS[kind](), **more})


def plain(batch: Any) -> Any:
    return batch.tolist() if torch.is_tensor(batch) else batch


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut(kind: str) -> None:
    """Saved behind each batch of the first epoch, taken up in a new loader in another state of the world; the second epoch is the
    same too where its randomness is the loader's own."""
    seed_all(1)
    whole = loader(kind)
    first = [plain(b) for b in whole]
    between = whole.state_dict()
    second = [plain(b) for b in whole]
    for cut in range(len(first) + 1):
        seed_all(1)
        source = loader(kind)
        it = iter(source)
        assert [plain(next(it)) for _ in range(cut)] == first[:cut]
        state = through_json(source.state_dict())
        seed_all(99)
        resumed = loader(kind)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        rest = [plain(b) for b in resumed]
        assert rest == first[cut:], cut
        if "process-wide" not in kind and kind not in ("repeated", "user's batches", "drop last", "no batches"):
            assert [plain(b) for b in resumed] == second, cut
    seed_all(98)
    resumed = loader(kind)
    resumed.load_state_dict(through_json(between))
    if kind not in ("user's, process-wide", "user's batches", "weighted, process-wide", "subset, process-wide"):
        assert [plain(b) for b in resumed] == second


@pytest.mark.parametrize("kind", KINDS)
def test_state_has_no_effect(kind: str) -> None:
    """Asking for the state after each batch changes neither batches nor random streams."""

    def run(ask: bool) -> Any:
        seed_all(2)
        source = loader(kind)
        out = []
        for _ in range(2):
            if ask:
                source.state_dict()
            for batch in source:
                out.append(plain(batch))
                if ask:
                    source.state_dict()
        return out, torch.rand(1).item(), random.random(), np.random.rand()

    assert run(True) == run(False)


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_leaves_process_wide_generators_alone(kind: str) -> None:
    """In the middle of an epoch everything was drawn before: nothing is drawn again."""
    seed_all(3)
    source = loader(kind)
    it = iter(source)
    for _ in range(2):
        next(it)
    state = source.state_dict()
    resumed = loader(kind)
    resumed.load_state_dict(state)
    seed_all(4)
    want = torch.rand(1).item(), random.random(), np.random.rand()
    seed_all(4)
    it = iter(resumed)
    next(it, None)
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == want


@pytest.mark.parametrize("kind", ["shuffle, generator", "user's state", "ranks, pad", "user's batches"])
def test_resumed_again_and_again(kind: str) -> None:
    """Each batch in a loader of its own."""
    seed_all(5)
    whole = [plain(b) for b in loader(kind)]
    seed_all(5)
    got: list[Any] = []
    state: Any = None
    while True:
        source = loader(kind)
        if state is not None:
            source.load_state_dict(through_json(state))
        batch = next(iter(source), None)
        if batch is None:
            break
        got.append(plain(batch))
        state = source.state_dict()
    assert got == whole


WORKERS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 3, "prefetch_factor": 3, "persistent_workers": True},
    {"num_workers": 2, "workers": "thread"},
]


@pytest.mark.parametrize("kind", ["shuffle, generator", "distributed", "user's state", "user's, process-wide", "ranks, exact"])
def test_other_workers(kind: str) -> None:
    """The same state with any number and kind of workers."""
    for k, (before, after) in enumerate(itertools.product(WORKERS, WORKERS)):
        seed_all(6)
        first = [plain(b) for b in loader(kind, **before)]
        cut = k % (len(first) + 1)
        seed_all(6)
        source = loader(kind, **before)
        it = iter(source)
        for _ in range(cut):
            next(it)
        state = through_json(source.state_dict())
        del it
        resumed = loader(kind, **after)
        resumed.load_state_dict(state)
        assert [plain(b) for b in resumed] == first[cut:], (before, after, cut)


@pytest.mark.parametrize("workers", WORKERS)
def test_after_break_and_in_later_epochs(workers: dict[str, Any]) -> None:
    """The state lives on when the iterator is dropped, and an abandoned epoch is left for the next one."""
    seed_all(7)
    source = loader("shuffle, generator", **workers)
    epochs = [[plain(b) for b in source] for _ in range(2)]
    for _, batch in zip(range(3), source, strict=False):
        last = plain(batch)
    state = source.state_dict()
    assert state["epoch"] == 2
    assert state["batches"] == 3
    seed_all(70)
    resumed = loader("shuffle, generator", **workers)
    resumed.load_state_dict(through_json(state))
    rest = [plain(b) for b in resumed]
    assert len(rest) == len(epochs[0]) - 3
    assert last not in rest
    seed_all(71)
    again = loader("shuffle, generator", **workers)
    again.load_state_dict(state)
    assert [plain(b) for b in again] == rest
    assert [plain(b) for b in again] == [plain(b) for b in resumed]


def test_nothing_is_loaded_again() -> None:
    data = Counted(1000)
    source = DataLoader(data, batch_size=10, shuffle=True, generator=generator(1))
    it = iter(source)
    for _ in range(90):
        next(it)
    state = source.state_dict()
    resumed_data = Counted(1000)
    resumed = DataLoader(resumed_data, batch_size=10, shuffle=True, generator=generator(2))
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 10
    assert resumed_data.asked == 100


def test_size_of_the_state() -> None:
    for workers in ({}, {"num_workers": 2, "prefetch_factor": 8}):
        small = loader("shuffle, process-wide", **workers)
        it = iter(small)
        next(it)
        assert len(json.dumps(small.state_dict())) < 2_000
        large = loader("two generators", **workers)
        it = iter(large)
        next(it)
        assert len(json.dumps(large.state_dict())) < 12_000


@pytest.mark.parametrize("workers", [0, 2])
def test_another_batch_size(workers: int) -> None:
    for kind in ("shuffle, generator", "user's generator", "user's state", "weighted"):
        seed_all(8)
        order = [i for b in loader(kind) for i in plain(b)]
        for cut, size in itertools.product(range(4), (1, 3, 7)):
            seed_all(8)
            source = loader(kind)
            it = iter(source)
            for _ in range(cut):
                next(it)
            resumed = loader(kind, batch_size=size, num_workers=workers)
            resumed.load_state_dict(through_json(source.state_dict()))
            rest = [plain(b) for b in resumed]
            assert [i for b in rest for i in b] == order[cut * 4 :]
            assert all(len(b) == size for b in rest[:-1])


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_have_their_place(workers: int) -> None:
    class Bad(Wide):
        def __getitem__(self, i: int) -> int:
            if i == 5:
                raise KeyError(i)
            return i

    source = DataLoader(Bad(), batch_size=4, num_workers=workers, sampler=range(16))
    it = iter(source)
    next(it)
    with pytest.raises(KeyError):
        next(it)
    resumed = DataLoader(Wide(), batch_size=4, num_workers=workers, sampler=range(16))
    resumed.load_state_dict(source.state_dict())
    assert [plain(b) for b in resumed] == [[8, 9, 10, 11], [12, 13, 14, 15]]


def test_out_of_order() -> None:
    class Slow(Wide):
        def __getitem__(self, i: int) -> int:
            if i == 0:
                import time

                time.sleep(1)
            return i

    options: dict[str, Any] = {"batch_size": 1, "sampler": range(20), "num_workers": 2, "in_order": False}
    source = DataLoader(Slow(), **options)
    it = iter(source)
    got = [plain(next(it))[0] for _ in range(6)]
    assert 0 not in got
    state = through_json(source.state_dict())
    resumed = DataLoader(Wide(), **options)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    it = iter(resumed)
    got.append(plain(next(it))[0])
    again = DataLoader(Wide(), **options)
    again.load_state_dict(through_json(resumed.state_dict()))
    got += [plain(b)[0] for b in again]
    assert sorted(got) == list(range(20))


class Stream(IterableDataset[int]):
    """Numbers of its worker; with ``state`` it can say where it is, in the dataset or in its iterator."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def share(self) -> range:
        info = torch.utils.data.get_worker_info() or feedrate.get_worker_info()
        worker = 0 if info is None else info.id
        return range(1000 * worker, 1000 * worker + self.sizes[worker])

    def __iter__(self) -> Iterator[int]:
        return iter(self.share())


class Walk(Iterator[int]):
    def __init__(self, numbers: range) -> None:
        self.numbers = numbers
        self.at = 0

    def __next__(self) -> int:
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class StatefulIterator(Stream):
    def __iter__(self) -> Iterator[int]:
        return Walk(self.share())


class StatefulStream(Stream):
    """State in the dataset, which starts over by itself and counts its epochs."""

    at = 0
    epoch = 0

    def __iter__(self) -> Iterator[int]:
        numbers = self.share()
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1] + 100_000 * self.epoch
        self.at = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("cls", [Stream, StatefulIterator, StatefulStream])
def test_streams(cls: Any, workers: int, every: int) -> None:
    sizes = [11] if workers < 2 else [11, 0, 5]

    def make() -> DataLoader[Any]:
        return DataLoader(cls(sizes), batch_size=2, num_workers=workers, snapshot_every_n_steps=every)

    whole = [plain(b) for b in make()]
    for cut in range(0, len(whole) + 1, 1 if workers == 0 else 2):
        source = make()
        it = iter(source)
        for _ in range(cut):
            next(it)
        state = through_json(source.state_dict())
        resumed = make()
        resumed.load_state_dict(state)
        it = iter(resumed)
        rest = []
        if cut < len(whole):
            # A state at once after the first batch must know the streams that gave nothing yet.
            rest.append(plain(next(it)))
            state = through_json(resumed.state_dict())
            resumed = make()
            resumed.load_state_dict(state)
            it = iter(resumed)
        rest += [plain(b) for b in it]
        assert rest == whole[cut:], cut


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True), (2, False)])
def test_streams_over_epochs(workers: int, persistent: bool) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(StatefulStream([5, 4]), batch_size=2, num_workers=workers, persistent_workers=persistent)

    source = make()
    epochs = [[plain(b) for b in source] for _ in range(3)]
    source = make()
    assert [plain(b) for b in source] == epochs[0]
    state = through_json(source.state_dict())
    resumed = make()
    resumed.load_state_dict(state)
    assert [plain(b) for b in resumed] == epochs[1]
    assert [plain(b) for b in resumed] == epochs[2]


class StatefulMap(Wide):
    """A map-style dataset that remembers what it gave."""

    def __init__(self) -> None:
        self.given = 0

    def __getitem__(self, i: int) -> int:
        self.given += 1
        return 1000 * i + self.given

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 1, "workers": "thread"}])
def test_stateful_map_dataset(workers: dict[str, Any]) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(StatefulMap(), batch_size=2, sampler=range(14), **workers)

    whole = [plain(b) for b in make()]
    for cut in range(len(whole) + 1):
        source = make()
        it = iter(source)
        for _ in range(cut):
            next(it)
        state = through_json(source.state_dict())
        resumed = make()
        resumed.load_state_dict(state)
        assert [plain(b) for b in resumed] == whole[cut:]


def test_keyed_augmentation_goes_on() -> None:
    """With seeding="sample" the random numbers in the dataset are exact too, whatever the workers."""

    class Noisy(Wide):
        def __getitem__(self, i: int) -> Any:
            return i, random.random(), torch.rand(1).item()

    def make(**more: Any) -> DataLoader[Any]:
        return DataLoader(Noisy(), batch_size=3, sampler=TorchRandom(range(N), generator=generator(1)), seeding="sample", **more)

    def values(batches: Any) -> Any:
        return [[plain(v) for v in b] for b in batches]

    seed_all(11)
    source = make()
    epochs = [values(source) for _ in range(2)]
    seed_all(11)
    source = make(num_workers=2)
    assert values(source) == epochs[0]
    it = iter(source)
    assert values(next(it) for _ in range(3)) == epochs[1][:3]
    state = through_json(source.state_dict())
    for more in ({}, {"num_workers": 3}):
        resumed = make(**more)
        resumed.load_state_dict(state)
        assert values(resumed) == epochs[1][3:]


@pytest.mark.parametrize("kind", ["shuffle", "sampler", "batches"])
def test_keys_of_ranks(kind: str) -> None:
    """With ranks a sample's random numbers are keyed by its place among all ranks' samples: different for each, and the same after
    a restart."""

    class Noisy(Wide):
        def __getitem__(self, i: int) -> Any:
            return i, random.random()

    def make(rank: int) -> DataLoader[Any]:
        order: dict[str, Any] = {
            "shuffle": {"batch_size": 2, "shuffle": True},
            "sampler": {"batch_size": 2, "sampler": Stateful(N)},
            "batches": {"batch_sampler": BatchSampler(Stateful(N), 3, False), "batch_size": 1},
        }[kind]
        return DataLoader(Noisy(), seeding="sample", seed=3, distributed=(rank, 2), remainder="exact", **order)

    def values(batches: Any) -> list[Any]:
        return [list(zip(*(plain(v) for v in b), strict=True)) for b in batches]

    whole = [values(make(rank)) for rank in range(2)]
    drawn = [value for rank in whole for batch in rank for _, value in batch]
    assert len(set(drawn)) == N
    for rank, cut in itertools.product(range(2), range(4)):
        source = make(rank)
        it = iter(source)
        for _ in range(cut):
            next(it)
        resumed = make(rank)
        resumed.load_state_dict(through_json(source.state_dict()))
        assert values(resumed) == whole[rank][cut:]


def test_skip() -> None:
    for kind in ("sequential", "user's, process-wide", "ranks, pad", "user's state"):
        seed_all(12)
        whole = [plain(b) for b in loader(kind)]
        for steps in range(len(whole) + 1):
            seed_all(12)
            source = loader(kind)
            source.skip(steps)
            assert [plain(b) for b in source] == whole[steps:]
    stream = DataLoader(Stream([9]), batch_size=2)
    stream.skip(2)
    assert [plain(b) for b in stream] == [[4, 5], [6, 7], [8]]


@pytest.mark.parametrize("kind", [k for k in KINDS if "user" not in k and k != "replacement"])
def test_plan_tells_what_comes(kind: str) -> None:
    seed_all(13)
    source = loader(kind)
    it = iter(source)
    got = []
    for step, batch in enumerate(it):
        indices = source.plan(0, step)
        got.append(plain(batch) if isinstance(plain(batch), list) else [plain(batch)])
        assert indices == got[-1]
    with pytest.raises(IndexError, match="no batch at step"):
        source.plan(0, len(got))
    if "generator" in kind or kind == "sequential" or "ranks" in kind:
        want = [source.plan(1, step) for step in range(len(got))]
        assert [plain(b) for b in source] == want


def test_epochs_and_peeks() -> None:
    """An epoch that was left before its second batch is not counted; set_epoch chooses one."""
    source = loader("ranks, pad")
    first = [plain(b) for b in source]
    second = [plain(b) for b in source]
    assert first != second
    source = loader("ranks, pad")
    for _ in range(3):
        assert plain(next(iter(source))) == first[0]
    assert [plain(b) for b in source] == first
    source.set_epoch(0)
    assert [plain(b) for b in source] == first
    for _, _batch in zip(range(2), source, strict=False):
        pass
    assert source.state_dict()["epoch"] == 1
    source.set_epoch(1)
    assert [plain(b) for b in source] == second


def test_refusals() -> None:
    def refused(state: Any, into: DataLoader[Any], *parts: str) -> None:
        before = into.state_dict()
        with pytest.raises(feedrate.ResumeError) as caught:
            into.load_state_dict(state)
        for part in parts:
            assert part in str(caught.value)
        assert into.state_dict() == before

    def at(source: DataLoader[Any], cut: int = 2) -> Any:
        it = iter(source)
        for _ in range(cut):
            next(it)
        return source.state_dict()

    state = at(loader("shuffle, generator"))
    refused({"a": 1}, loader("sequential"), "not a state")
    refused({**state, "feedrate": 7}, loader("shuffle, generator"), "version")
    refused(state, loader("sequential"), "'random'", "'sequential'")
    small = DataLoader(range(N - 1), shuffle=True, generator=generator(1))  # type: ignore[arg-type]
    refused(state, small, "size", "23", "22")
    refused(at(loader("user's state")), loader("user's generator"), "Stateful", "OwnGenerator")
    stream = DataLoader(Stream([9, 9]), batch_size=2, num_workers=2)
    refused(at(stream), DataLoader(Stream([9, 9]), batch_size=2, num_workers=1), "2 workers", "num_workers=1")
    keyed = DataLoader(Wide(), seeding="sample", seed=5)
    keyed_state = at(keyed)
    keyed_state["key"] = 6
    refused(keyed_state, DataLoader(Wide(), seeding="sample", seed=5), "seed=6", "seed=5")


def test_a_sampler_that_forgot_its_order_is_found_out() -> None:
    class Forgetful(Evens):
        def __iter__(self) -> Iterator[int]:
            return iter(np.random.default_rng().permutation(self.n).tolist())

    source = DataLoader(Wide(), batch_size=2, sampler=Forgetful(N))
    it = iter(source)
    for _ in range(3):
        next(it)
    resumed = DataLoader(Wide(), batch_size=2, sampler=Forgetful(N))
    resumed.load_state_dict(source.state_dict())
    with pytest.raises(feedrate.ResumeError, match=r"Forgetful has no state_dict.*another order"):
        list(resumed)


def test_loaders_with_state_can_be_pickled() -> None:
    source = loader("shuffle, generator")
    it = iter(source)
    next(it)
    copy = pickle.loads(pickle.dumps(source))
    assert sorted(i for b in copy for i in plain(b)) == list(range(N))


# -- the loader without torch


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True}, {"shuffle": True, "distributed": (1, 2)}, {"shuffle": True, "drop_last": True}]
)
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "workers": "process"}, {"num_workers": 2, "workers": "thread"}])
def test_without_torch(options: dict[str, Any], workers: dict[str, Any]) -> None:
    def make(seed: int = 1) -> Any:
        return feedrate.DataLoader(np.arange(N), batch_size=4, generator=seed, **options, **workers)

    source = make()
    epochs = [[b.tolist() for b in source] for _ in range(3)]
    for cut in range(len(epochs[1]) + 1):
        source = make()
        assert [b.tolist() for b in source] == epochs[0]
        it = iter(source)
        for _ in range(cut):
            next(it)
        state = through_json(source.state_dict())
        resumed = make(seed=5)
        resumed.load_state_dict(state)
        assert [b.tolist() for b in resumed] == epochs[1][cut:]
        assert [b.tolist() for b in resumed] == epochs[2]


class StartsOver:
    """A sampler that is its own iterator, and starts over whenever ``iter()`` is called, as Lightning's wrapper does."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.at = 0

    def __iter__(self) -> StartsOver:
        self.at = 0
        return self

    def __next__(self) -> list[int]:
        if self.at >= self.n:
            raise StopIteration
        self.at += 2
        return [self.at - 2, self.at - 1]

    def __len__(self) -> int:
        return self.n // 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_starts_over_is_left_alone(workers: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Wide(), batch_sampler=StartsOver(12), num_workers=workers)

    whole = [plain(b) for b in make()]
    assert whole == [[i, i + 1] for i in range(0, 12, 2)]
    source = make()
    it = iter(source)
    for _ in range(2):
        next(it)
    resumed = make()
    resumed.load_state_dict(source.state_dict())
    assert [plain(b) for b in resumed] == whole[2:]
