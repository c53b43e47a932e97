"""The ordinary loop, with set_epoch() before each epoch, goes on exactly behind load_state_dict()."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler

import feedrate
import feedrate.samplers as S
from feedrate._progress import progress
from feedrate.testing import assert_resumable
from feedrate.torch import DataLoader

pytestmark = pytest.mark.ours


class Epochs:
    """A dataset whose samples depend on the epoch that it was told."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> int:
        return 1000 * self.epoch + i


class Counting(Epochs):
    """One that also has a state, in which its epoch is."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __getitem__(self, i: int) -> int:
        self.calls += 1
        return 100_000 * self.calls + 1000 * self.epoch + i

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.calls = state["epoch"], state["calls"]


class Stream(feedrate.IterableDataset, torch.utils.data.IterableDataset[int]):
    """A stream of that kind."""

    def __init__(self) -> None:
        self.epoch = self.passes = self.at = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        while self.at < 12:
            self.at += 1
            yield 100_000 * self.passes + 1000 * self.epoch + self.at
        self.at = 0
        self.passes += 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "passes": self.passes, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.passes, self.at = state["epoch"], state["passes"], state["at"]


class Subclass(DistributedSampler[int]):
    """Not known by its class, and without a state."""


class Stateful:
    """A user's sampler with epochs and a state."""

    def __init__(self) -> None:
        self.epoch = self.at = 0

    def __len__(self) -> int:
        return 12

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng(self.epoch).permutation(12).tolist()
        while self.at < 12:
            self.at += 1
            yield order[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "torch": lambda: {"sampler": DistributedSampler(range(12), 2, 0, seed=3), "batch_size": 2},
    "subclass": lambda: {"sampler": Subclass(range(12), 2, 0, seed=3), "batch_size": 2},
    "feedrate": lambda: {"sampler": S.DistributedSampler(range(12), 2, 0, seed=3), "batch_size": 2},
    "batches": lambda: {"batch_sampler": S.BatchSampler(S.DistributedSampler(range(12), 2, 0, seed=3), 2, False)},
    "stateful": lambda: {"sampler": Stateful(), "batch_size": 2},
}
LOADERS = pytest.mark.parametrize("loader_class", [DataLoader, feedrate.DataLoader], ids=["torch", "numpy"])


def train(loader: Any, start: int, stop: int, steps: int | None = None, tell: Any = None) -> list[list[int]]:
    """``for epoch in range(start, stop)``, at most ``steps`` steps of the first one."""
    seen = []
    for epoch in range(start, stop):
        (tell or loader).set_epoch(epoch)
        seen += [batch.tolist() for batch in itertools.islice(loader, steps)]
        steps = None
    return seen


@LOADERS
@pytest.mark.parametrize("steps", [1, None], ids=["mid-epoch", "boundary"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_ordinary_loop_goes_on_exactly(loader_class: Any, name: str, steps: int | None) -> None:
    """Samplers and the dataset are told the epoch of a state too."""

    def make() -> Any:
        return loader_class(Epochs(), **SAMPLERS[name]())

    whole = train(make(), 0, 4)
    loader = make()
    head = train(loader, 0, 1) + train(loader, 1, 2, steps)
    state = loader.state_dict()
    assert state["epoch"] == (2 if steps is None else 1)
    resumed = make()
    resumed.load_state_dict(state)
    assert head + train(resumed, state["epoch"], 4) == whole


@LOADERS
@pytest.mark.parametrize("name", ["feedrate", "batches", "stateful"])
def test_a_sampler_that_is_told_itself_has_the_last_word_between_epochs(loader_class: Any, name: str) -> None:
    """Its own state is that of the epoch before."""

    def make() -> tuple[Any, Any]:
        arguments = SAMPLERS[name]()
        sampler = arguments.get("sampler") or arguments["batch_sampler"].sampler
        return loader_class(Epochs(), **arguments), sampler

    loader, sampler = make()
    whole = train(loader, 0, 4, tell=sampler)
    loader, sampler = make()
    head = train(loader, 0, 2, tell=sampler)
    resumed, sampler = make()
    resumed.load_state_dict(loader.state_dict())
    assert head + train(resumed, 2, 4, tell=sampler) == whole


def test_a_state_from_before_the_first_epoch_is_told_too() -> None:
    """The sampler of a loader that was never iterated has a state as well."""
    state = DataLoader(Epochs(), sampler=Stateful()).state_dict()
    sampler = Stateful()
    loader = DataLoader(Epochs(), sampler=sampler)
    loader.load_state_dict(state)
    sampler.set_epoch(5)
    assert [int(batch) for batch in loader] == np.random.default_rng(5).permutation(12).tolist()


@LOADERS
@pytest.mark.parametrize("dataset", [Counting, Stream], ids=["map", "stream"])
@pytest.mark.parametrize("pool", [{}, {"num_workers": 1, "persistent_workers": True}], ids=["inline", "persistent"])
def test_a_dataset_with_a_state_is_told_its_epoch_between_epochs(loader_class: Any, dataset: Any, pool: dict[str, Any]) -> None:
    """The state brings all but the epoch, which the user says."""

    def make() -> Any:
        return loader_class(dataset(), batch_size=4, workers="process", **pool)

    whole = train(make(), 0, 4)
    for steps in (1, None):
        loader = make()
        head = train(loader, 0, 1) + train(loader, 1, 2, steps)
        resumed = make()
        resumed.load_state_dict(loader.state_dict())
        assert head + train(resumed, 2 if steps is None else 1, 4) == whole, steps


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: RandomSampler(range(12), num_samples=20, generator=torch.Generator().manual_seed(1)),
        lambda: Shuffled(),
    ],
    ids=["torch", "own"],
)
@pytest.mark.parametrize("batch_size", [2, None])
def test_from_persistent_workers_to_none_and_again(sampler: Any, batch_size: int | None) -> None:
    """The generators of a sampler without a state are noted where its epoch begins, and not before they were put back."""
    loader = DataLoader(range(12), batch_size, sampler=sampler(), num_workers=1, persistent_workers=True, workers="thread")
    list(loader)
    state = loader.state_dict()
    want = [batch if batch_size is None else batch.tolist() for batch in loader]
    first = DataLoader(range(12), batch_size, sampler=sampler())
    first.load_state_dict(state)
    got = list(itertools.islice(first, 2))
    second = DataLoader(range(12), batch_size, sampler=sampler())
    second.load_state_dict(first.state_dict())
    assert [batch if batch_size is None else batch.tolist() for batch in [*got, *second]] == want


class Shuffled:
    """A sampler without a state that draws as soon as ``iter()`` is called."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.permutation(12).tolist())


class Deaf(DataLoader[Any]):
    """Tells nobody the epoch of a state, as a loader of ours once did."""

    def set_epoch(self, epoch: int) -> None:
        loaded = progress(self).loaded
        if loaded is None or loaded["epoch"] != epoch:
            super().set_epoch(epoch)


def test_verify_tells_epochs_as_users_do() -> None:
    """Through the loader, the dataset too."""
    assert_resumable(lambda num_workers=0: DataLoader(Epochs(), batch_size=4, num_workers=num_workers), workers=(0,))
    with pytest.raises(AssertionError, match="WRONG"):
        assert_resumable(lambda num_workers=0: Deaf(Epochs(), batch_size=4, num_workers=num_workers), workers=(0,))


class Wraps:
    """A sampler of indices of another one, under a name of its own."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base)

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.base))


@pytest.mark.parametrize("depth", [1, 2])
def test_generators_of_wrapped_samplers(depth: int) -> None:
    def make() -> Any:
        sampler: Any = RandomSampler(range(12), generator=torch.Generator().manual_seed(3))
        for _ in range(depth):
            sampler = type("Wraps", (Wraps, torch.utils.data.Sampler), {})(sampler)
        return DataLoader(range(12), batch_size=2, sampler=sampler)

    whole = make()
    want = [[b.tolist() for b in whole] for _ in range(3)]
    for epoch in range(3):
        loader = make()
        for _ in range(epoch):
            list(loader)
        it = iter(loader)
        got = [next(it).tolist() for _ in range(3)]
        other = make()
        other.load_state_dict(loader.state_dict())
        assert got + [b.tolist() for b in other] == want[epoch]


def test_an_iterator_from_before_a_state_is_told() -> None:
    loader, other = (DataLoader(range(20), batch_size=4) for _ in range(2))
    it, old = iter(loader), iter(other)
    next(it)
    other.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match=r"taken up by the next iter\(loader\)"):
        assert next(old).tolist() == [0, 1, 2, 3]
    assert next(iter(other)).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_state_that_was_filled_in_is_refused(shuffle: bool) -> None:
    """As torch.distributed.checkpoint does it: what a fresh state has comes of the saved one, and the rest is lost."""

    def make() -> Any:
        return DataLoader(range(20), batch_size=4, shuffle=shuffle, generator=torch.Generator().manual_seed(1))

    def fill(fresh: Any, saved: Any) -> Any:
        if isinstance(fresh, dict):
            return {name: fill(value, saved[name]) if name in saved else value for name, value in fresh.items()}
        return saved

    loader = make()
    it = iter(loader)
    next(it)
    state = loader.state_dict()
    with pytest.raises(feedrate.ResumeError, match="its parts are of two states, .* pickle.dumps"):
        make().load_state_dict(fill(make().state_dict(), state))
    other = make()
    other.load_state_dict(state)
    assert [b.tolist() for b in other] == [b.tolist() for b in it]
