"""Loaders for test_verify.py: right ones, and one for each fault that has to be found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

import feedrate
from feedrate.torch import DataLoader

N = 22


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> int:
        return i


def shuffled(num_workers: int = 0) -> Any:
    return DataLoader(Numbers(), 4, shuffle=True, num_workers=num_workers)


def as_it_is() -> Any:
    return DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(1))


def ranks(num_workers: int = 0, distributed: tuple[int, int] = (0, 1)) -> Any:
    return DataLoader(Numbers(), 3, shuffle=True, num_workers=num_workers, distributed=distributed)


def ranks_exact(rank: int, world_size: int) -> Any:
    return DataLoader(Numbers(), 3, shuffle=True, distributed=(rank, world_size), remainder="exact")


def ranks_drop() -> Any:
    return DataLoader(Numbers(), 3, shuffle=True, distributed=(0, 1), remainder="drop")


def without_torch(num_workers: int = 0) -> Any:
    return feedrate.DataLoader(np.arange(N), 4, shuffle=True, generator=3, num_workers=num_workers)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(worker, 15, workers)


def stream(num_workers: int = 0) -> Any:
    return DataLoader(Stream(), 2, num_workers=num_workers)


class Noisy(Numbers):
    """Randomness that depends on which worker gets the sample, and which ones it had before."""

    def __getitem__(self, i: int) -> Any:
        return i, random.random()


def noisy(num_workers: int = 0) -> Any:
    return DataLoader(Noisy(), 4, num_workers=num_workers)


def noisy_by_position(num_workers: int = 0) -> Any:
    return DataLoader(Noisy(), 4, num_workers=num_workers, seeding="sample", seed=1)


def index_of(batch: Any) -> Any:
    return batch[0]


# -- faults


class Forgetful:
    """A sampler that draws another order each time it is iterated, from where nobody can see it."""

    def __iter__(self) -> Iterator[int]:
        yield from np.random.default_rng().permutation(N).tolist()

    def __len__(self) -> int:
        return N


def sampler_forgets() -> Any:
    return DataLoader(Numbers(), 4, sampler=Forgetful())


class SeededByTheWorld(Forgetful):
    """Its order hangs on a process-wide generator, and its state says it stands somewhere else."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(N).tolist()
        while self.at < N:
            self.at += 1
            yield order[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def state_without_the_order() -> Any:
    return DataLoader(Numbers(), 4, sampler=SeededByTheWorld())


class Hidden(Numbers):
    def __init__(self) -> None:
        self.asked = 0

    def __getitem__(self, i: int) -> int:
        self.asked += 1
        return 1000 * i + self.asked


def hidden_state() -> Any:
    return DataLoader(Hidden(), 4)


class Own:
    """A loader of somebody else, right but for what its subclasses do."""

    ahead = 0

    def __init__(self) -> None:
        self.epoch = 0
        self.at = 0
        self.loaded = False

    def _order(self) -> list[int]:
        return np.random.default_rng(self.epoch).permutation(N).tolist()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[list[int]]:
        self.at = self.at if self.loaded else 0
        self.loaded = False
        order = self._order()
        while self.at < len(order):
            self.at += 4
            yield order[self.at - 4 : self.at]
        self.at = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": max(0, self.at + self.ahead)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]
        self.loaded = True


class TooFar(Own):
    ahead = 4


class TooShort(Own):
    ahead = -4


class Again(Own):
    """Gives the first batch behind a restore twice."""

    def __iter__(self) -> Iterator[list[int]]:
        twice = self.loaded and self.at > 0
        for batch in super().__iter__():
            if twice:
                yield batch
                twice = False
            yield batch


class Shared(Own):
    """Gives away its state and goes on changing it."""

    def __init__(self) -> None:
        super().__init__()
        self.state = super().state_dict()

    def state_dict(self) -> dict[str, int]:
        self.state.update(super().state_dict())
        return self.state


class Drawing(Own):
    """Draws a random number to make its state."""

    def _order(self) -> list[int]:
        return torch.randperm(N, generator=torch.Generator().manual_seed(random.getrandbits(20))).tolist()  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, int]:
        random.random()
        return super().state_dict()


class EndForgotten(Own):
    """At the end of an epoch its state is that of the first one."""

    def state_dict(self) -> dict[str, int]:
        state = super().state_dict()
        return state if state["at"] else {"epoch": 0, "at": 0}


class Broken(Own):
    """Cannot be loaded, and does not say why."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state["at"] % 8 == 0


class OwnRanks(Own):
    """Takes each rank's share of the order; drops a tail when it is taken up by another number of ranks."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        self.rank, self.world = rank, world
        self.begin = 0

    def _order(self) -> list[int]:
        # 22 samples: one rank, or two, have them all.
        return super()._order()[self.begin :][self.rank :: self.world]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at, "begin": self.begin, "world": self.world}

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.begin = state["begin"]
        if state["world"] != self.world:
            left = (N - self.begin - state["at"] * state["world"]) // (4 * self.world) * 4 * self.world
            self.begin, self.at = N - left, 0

    def __iter__(self) -> Iterator[list[int]]:
        yield from super().__iter__()
        self.begin = 0


def tail_lost(rank: int, world: int) -> Any:
    return OwnRanks(rank, world)


class Uneven(Own):
    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        self.share = slice(rank * 5 if world > 1 else 0, N if rank == world - 1 else 5)

    def _order(self) -> list[int]:
        return super()._order()[self.share]


NOT_A_FUNCTION = 3


def not_a_loader() -> Any:
    return [1, 2]


def no_batches() -> Any:
    return DataLoader(Numbers(), 40, drop_last=True)


def fails() -> Any:
    raise ValueError("no such file: images/")
