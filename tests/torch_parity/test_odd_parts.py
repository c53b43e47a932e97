"""Datasets, samplers and subclasses of users that are odd, and that torch's loader takes as they are."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as Stock
from torch.utils.data import IterableDataset, Sampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

import feedrate
from feedrate import ResumeError

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
WORKERS = pytest.mark.parametrize("workers", [0, 1])


class Four:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def run(make: Callable[[], Any], most: int = 8) -> list[Any]:
    """Batches and errors, as far as they can be compared."""
    torch.manual_seed(5)
    got: list[Any] = []
    try:
        it = iter(make())
    except Exception as error:
        return [type(error).__name__]
    for _ in range(most):
        try:
            got.append(np.asarray(next(it)).tolist())
        except StopIteration:
            break
        except Exception as error:
            got.append((type(error).__name__, str(error).splitlines()[0]))
    return [*got, torch.rand(1).item()]


def same(Loader: Any, make: Callable[[Any], Any]) -> list[Any]:
    expected = run(lambda: make(Stock))
    assert run(lambda: make(Loader)) == expected
    return expected


class Pairs(Sampler[Any]):
    def __init__(self, length: Callable[[], int]) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        return iter([[0, 1], [2, 3]])

    def __len__(self) -> int:
        return self.length()


def raises(error: BaseException) -> Any:
    raise error


@WORKERS
@pytest.mark.parametrize(
    "length",
    [
        lambda: raises(NotImplementedError()),
        lambda: raises(AttributeError("no")),
        lambda: -1,
        lambda: 1 << 70,
        lambda: 1 + int(torch.rand(1) * 0),
    ],
)
def test_lengths_that_fail_or_draw(length: Any, workers: int, Loader: Any) -> None:
    assert len(same(Loader, lambda cls: cls(Four(), batch_sampler=Pairs(length), num_workers=workers))) == 3


def test_a_length_that_iterates_the_loader(Loader: Any) -> None:
    def counting(base: Any) -> Any:
        class Counting(base):  # type: ignore[misc]
            def __len__(self) -> int:
                return sum(1 for _ in self)

        return Counting(Four())

    assert len(counting(Loader)) == 4
    same(Loader, counting)


class Shared(Four):
    """Reaches persistent workers by itself."""

    def __init__(self) -> None:
        self.epoch = multiprocessing.Value("i", 0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch.value = epoch

    def __getitem__(self, index: int) -> int:
        return index + 10 * self.epoch.value


@WORKERS
def test_an_epoch_in_shared_memory(workers: int, Loader: Any) -> None:
    for cls in (Stock, Loader):
        dataset = Shared()
        loader = cls(dataset, num_workers=workers, persistent_workers=workers > 0)
        for epoch in range(3):
            dataset.set_epoch(epoch)
            assert [int(batch) for batch in loader] == [10 * epoch + i for i in range(4)]


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Stubborn(Exception):
    def add_note(self, note: str) -> None:
        raise TypeError("no notes")


class Raises(Four):
    def __init__(self, error: Any) -> None:
        self.error = error

    def __getitem__(self, index: int) -> int:
        if index == 1:
            raise self.error
        return index


@WORKERS
@pytest.mark.parametrize("error", [Frozen(7), Stubborn("s")], ids=["frozen", "stubborn"])
@pytest.mark.parametrize("where", ["item", "collate"])
def test_exceptions_that_take_no_notes(error: Any, where: str, workers: int, Loader: Any) -> None:
    def collate(batch: Any) -> Any:
        return batch if batch != [1] else raises(error)

    if where == "item":
        expected = same(Loader, lambda cls: cls(Raises(error), num_workers=workers))
    else:
        expected = same(Loader, lambda cls: cls(Four(), num_workers=workers, collate_fn=collate))
    assert expected[1][0] == type(error).__name__


class Unsaveable(Four):
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state()

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


class NotHere:
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def state_dict(self) -> Any:
        raise NotImplementedError("not here")

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


class UnsaveableStream(NotHere, IterableDataset[int]): ...


class UnsaveableSampler(NotHere, Sampler[int]): ...


@WORKERS
@pytest.mark.parametrize(
    "make",
    [
        lambda: {"dataset": Unsaveable(lambda: raises(NotImplementedError("not here")))},
        lambda: {"dataset": Unsaveable(threading.Lock)},
        lambda: {"dataset": UnsaveableStream()},
        lambda: {"dataset": Four(), "sampler": UnsaveableSampler()},
    ],
    ids=["raises", "lock", "stream", "sampler"],
)
def test_states_that_nobody_asked_for(make: Any, workers: int, Loader: Any) -> None:
    """They fail where somebody does."""
    assert len(same(Loader, lambda cls: cls(**make(), num_workers=workers))) == 5
    loader = Loader(**make(), num_workers=workers)
    next(iter(loader))
    with pytest.raises(ResumeError, match="state_dict.* cannot be used: .*(not here|pickle)"):
        loader.state_dict()


def test_mocks_and_modules(Loader: Any) -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2))

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("its weights are not asked for")

    same(Loader, lambda cls: cls(Module()))
    dataset = mock.MagicMock()
    dataset.__len__.return_value = 4
    dataset.__getitem__.side_effect = lambda index: index
    dataset.__getitems__ = None
    same(Loader, lambda cls: cls(dataset))


def test_attributes_of_all_kinds(Loader: Any) -> None:
    class Odd(Four):
        def __init__(self) -> None:
            self.gone = weakref.proxy(Four())
            self.random = random.SystemRandom()

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise KeyError(name)

        def fill_batch(self) -> None: ...

    class Order(Sampler[int]):
        def __init__(self) -> None:
            self.random = random.SystemRandom()

        def __iter__(self) -> Iterator[int]:
            return iter([3, 1])

    same(Loader, lambda cls: cls(Odd(), batch_size=2))
    same(Loader, lambda cls: cls(Odd(), batch_size=None, sampler=Order()))


def test_subclasses_with_another_order(Loader: Any) -> None:
    def ordered(base: Any) -> Any:
        class Ordered(base):  # type: ignore[misc]
            @property
            def _index_sampler(self) -> Any:
                return [[3], [2, 1]]

        return Ordered(Four(), batch_size=2)

    def single(base: Any) -> Any:
        class Single(base):  # type: ignore[misc]
            @property
            def _auto_collation(self) -> bool:
                return False

        return Single(Four(), batch_size=2)

    assert same(Loader, ordered)[:2] == [[3], [2, 1]]
    assert same(Loader, single)[:4] == [0, 1, 2, 3]


def test_subclasses_with_attributes_of_our_names(Loader: Any) -> None:
    class Mine(Loader):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.mask, self.skipped, self.mixed = "mask", 3, None

    loader = Mine(Four())
    assert [int(batch) for batch in loader] == [0, 1, 2, 3]
    assert (loader.mask, loader.skipped, loader.mixed) == ("mask", 3, None)


#: Names that a subclass of torch's loader may well have: of our arguments, and of what is kept about where a loader stands.
OPTIONS = "workers seeding redo items_in_flight seed snapshot_every_n_steps distributed remainder coordinator".split()
KEPT = "_epoch _epochs _skip _count _agreed _loaded _ranks _meeting _asked _turn _drawn_seed _skipped _iterable _finished _begin_epoch".split()
VALUES = [True, -1, "mine", 2.5, None, torch.zeros(3), [1], object()]


@WORKERS
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_subclasses_may_use_all_names_of_ours(value: Any, workers: int, Loader: Any) -> None:
    """Attributes of instances before and behind the constructor, and of classes; epochs and states go on as without them."""

    def subclass(base: Any, before: bool, behind: bool) -> Any:
        class Mine(base):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                for name in [*OPTIONS, *KEPT] if before else []:
                    setattr(self, name, value)
                super().__init__(*args, **kwargs)
                for name in [*OPTIONS, *KEPT] if behind else []:
                    setattr(self, name, value)

        return Mine

    for before, behind in ((True, False), (False, True), (True, True)):
        settings = {"batch_size": 2, "shuffle": True, "num_workers": workers, "generator": torch.Generator()}
        made = subclass(Loader, before, behind)(range(9), **settings)
        plain = Stock(range(9), **{**settings, "generator": torch.Generator()})
        assert [[b.tolist() for b in made] for _ in range(2)] == [[b.tolist() for b in plain] for _ in range(2)]
        for name in (*OPTIONS, *KEPT):
            assert getattr(made, name) is value, name
        whole = [b.tolist() for b in plain]
        it = iter(made)
        got = [next(it).tolist(), next(it).tolist()]
        again = subclass(Loader, before, behind)(range(9), **{**settings, "generator": torch.Generator()})
        again.load_state_dict(made.state_dict())
        assert [*got, *(b.tolist() for b in again)] == whole


@pytest.mark.parametrize("base", ["torch", "numpy"])
def test_what_a_class_has_of_our_names(base: str, Loader: Any) -> None:
    class Mine(Loader if base == "torch" else feedrate.DataLoader):  # type: ignore[misc]
        workers = 4
        _epochs = "many"

        @property
        def seed(self) -> str:
            return "of the class"

        def distributed(self) -> str:
            return "a method"

    loader = Mine(range(6), batch_size=2, seed=3, seeding="sample", distributed=(1, 2))
    assert (loader.workers, loader._epochs, loader.seed, loader.distributed()) == (4, "many", "of the class", "a method")
    assert [np.asarray(batch).tolist() for batch in loader] == [[1, 3], [5]]
    assert loader.state_dict()["key"] == 3
    for other in (copy.copy(loader), copy.deepcopy(loader)):
        assert other.state_dict()["epoch"] == 1
        other.load_state_dict({})
        assert (other.state_dict()["epoch"], loader.state_dict()["epoch"]) == (0, 1)


@pytest.mark.parametrize("base", ["torch", "numpy"])
def test_options_that_are_set_later(base: str, Loader: Any) -> None:
    """They are in force from the next epoch on, and refused as in the constructor; trainers find them among a loader's attributes."""
    cls = Loader if base == "torch" else feedrate.DataLoader
    loader = cls(range(6), batch_size=2, num_workers=1, seeding="sample")
    assert {name: vars(loader)[name] for name in ("seeding", "redo", "seed", "distributed")} == {
        "seeding": "sample",
        "redo": True,
        "seed": None,
        "distributed": None,
    }
    loader.seed, loader.workers = np.int64(7), "thread"
    assert loader.seed == 7
    it = iter(loader)
    next(it)
    assert loader.state_dict()["key"] == 7
    assert all(isinstance(worker, threading.Thread) for worker in it._workers)
    for name, value in (("workers", "fork"), ("seeding", True), ("items_in_flight", 0), ("seed", "7")):
        with pytest.raises((ValueError, TypeError), match=f"{name} option should be"):
            setattr(loader, name, value)
        assert getattr(loader, name) != value


@pytest.mark.parametrize("base", ["torch", "numpy"])
def test_copies_that_users_make_stand_alone(base: str, Loader: Any) -> None:
    class Mine(Loader if base == "torch" else feedrate.DataLoader):  # type: ignore[misc]
        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "_iterator": None}

    for make in (copy.copy, lambda one: (two := Mine.__new__(Mine), two.__dict__.update(one.__dict__))[0]):
        loader = Mine(range(8), 2)
        list(loader)
        other = make(loader)
        list(other), list(other)
        assert (loader.state_dict()["epoch"], other.state_dict()["epoch"]) == (1, 3)
        other.skip(1)
        other.workers = "thread"
        assert len(list(loader)) == 4 and loader.workers != "thread"
        assert len(list(other)) == 3
        del loader
        assert other.state_dict()["epoch"] == 4


@pytest.mark.parametrize("base", ["torch", "numpy"])
def test_options_that_cannot_be_set_now(base: str, Loader: Any) -> None:
    cls = Loader if base == "torch" else feedrate.DataLoader
    loader = cls(range(8), 2, num_workers=1, persistent_workers=True, seeding="sample", seed=1)
    list(loader)
    loader.seed = 1
    with pytest.raises(ValueError, match="seed attribute should not be set while persistent workers run"):
        loader.seed = 2
    assert loader.seed == 1
    # In the middle of an epoch it is for the next one.
    loader = cls(range(8), 2, num_workers=1, seeding="sample", seed=1)
    it = iter(loader)
    next(it)
    loader.seed = 2
    assert loader.state_dict()["key"] == 1
    list(it)
    assert loader.state_dict()["key"] == 2

    class Property(cls):  # type: ignore[misc, valid-type]
        @property
        def seed(self) -> int:
            return 5

    own = Property(range(4), seeding="sample", seed=1)
    with pytest.raises(AttributeError):
        own.seed = 3
    list(own)
    assert own.state_dict()["key"] == 1
    with pytest.raises(TypeError, match="coordinator option should be a feedrate.Coordinator or None"):
        cls(range(4), coordinator="mine")

    class Half(cls):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self.num_workers = self.timeout = 0

    with pytest.raises(RuntimeError, match=r"the constructor of .*Half did not run to its end"):
        feedrate.DataLoader.state_dict(Half())


def overlapping(batch: Any) -> Any:
    whole = np.zeros(1000)
    other = np.ones(1000)
    return whole, whole[:500], whole[500:], other, torch.from_numpy(other)


def test_arrays_that_share_memory_in_the_worker(Loader: Any) -> None:
    for cls in (Stock, Loader):
        whole, front, back, other, tensor = next(iter(cls(Four(), num_workers=1, collate_fn=overlapping)))
        whole += 1
        other += 1
        assert (front.sum(), back.sum(), tensor.sum()) == (0, 0, 1000)


def test_samplers_that_were_changed(Loader: Any) -> None:
    def reweighted(weights: Any) -> Any:
        def make(cls: Any) -> Any:
            sampler = WeightedRandomSampler([1.0] * 4, 40)
            sampler.weights = weights
            return cls(Four(), sampler=sampler, batch_size=5)

        return make

    torch.manual_seed(0)
    for weights in (
        torch.rand(1000),
        torch.rand(1000).half(),
        torch.rand(4, dtype=torch.float64),
        torch.rand(3, requires_grad=True),
    ):
        same(Loader, reweighted(weights))

    class Any64:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> str:
            return str(index)

    for indices in ([1 << 63, (1 << 60) + 1], [1 << 63, (1 << 63) + 5], [1 << 70, 1]):
        same(Loader, lambda cls, indices=indices: cls(Any64(), sampler=SubsetRandomSampler(indices)))

    def grown(cls: Any) -> Any:
        data = list(range(4))
        sampler: Any = DistributedSampler(data, 2, 0, shuffle=False)
        data += [4, 5]
        return cls(data, sampler=sampler)

    def ranked(cls: Any) -> Any:
        sampler: Any = DistributedSampler(range(4), 2, 0)
        sampler.epoch = np.int64(3)
        return cls(range(4), sampler=sampler)

    same(Loader, grown)
    same(Loader, ranked)


def test_index_objects_that_cannot_be_hashed(Loader: Any) -> None:
    class Index:
        def __init__(self, at: int) -> None:
            self.at = at

        def __repr__(self) -> str:
            raise ValueError("no")

        def __index__(self) -> int:
            return self.at

    class Indices(Sampler[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([Index(2), Index(0)])

    assert same(Loader, lambda cls: cls(range(4), sampler=Indices()))[:2] == [[2], [0]]
