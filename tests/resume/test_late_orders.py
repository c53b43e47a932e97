"""Orders of which only the end is drawn, in data long enough that it is done in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, SubsetRandomSampler

from feedrate import samplers
from feedrate.torch import DataLoader

#: From 64 times 65,536 on a short piece is made first.
LONG = 64 * 65536 + 11
BATCH = 4096


class Numbers(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def as_tensor(items: list[int]) -> torch.Tensor:
    return torch.tensor(items)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


KINDS: dict[str, Any] = {
    "shuffle": lambda data: {"shuffle": True},
    "generator": lambda data: {"shuffle": True, "generator": generator()},
    "distributed": lambda data: {"sampler": DistributedSampler(data, 3, 1)},
    "ours": lambda data: {"sampler": samplers.RandomSampler(data, generator=generator())},
    "ranks": lambda data: {"shuffle": True, "seed": 5, "distributed": (2, 3), "remainder": "pad"},
    "subset": lambda data: {"sampler": samplers.SubsetRandomSampler(range(len(data)), generator=generator())},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.1, 0.8])
def test_the_rest_of_the_epoch_and_the_next_one(kind: str, part: float) -> None:
    data = Numbers(LONG)

    def loader() -> Any:
        torch.manual_seed(1)
        return DataLoader(data, BATCH, collate_fn=as_tensor, **KINDS[kind](data))

    whole = loader()
    batches = list(whole)
    following = next(iter(whole))
    cut = int(len(batches) * part)

    stopped = loader()
    iterator = iter(stopped)
    for _ in range(cut):
        next(iterator)
    state = stopped.state_dict()
    del iterator

    resumed = loader()
    resumed.load_state_dict(state)
    rest = list(resumed)
    assert len(rest) == len(batches) - cut
    assert all(torch.equal(a, b) for a, b in zip(rest, batches[cut:], strict=True))
    if kind in ("generator", "ours", "subset"):
        # Generators of the user's are left where they would be.
        assert torch.equal(next(iter(resumed)), following)


def test_looking_back() -> None:
    """What lies before the place where a loader went on can be asked for."""
    data = Numbers(LONG)

    def loader() -> Any:
        return DataLoader(data, BATCH, collate_fn=as_tensor, shuffle=True, seed=2, distributed=(0, 1))

    first = loader()
    plans = [first.plan(0, step) for step in (0, 500, 1000)]
    late = loader()
    late.skip(900)
    iterator = iter(late)
    assert next(iterator).tolist() == first.plan(0, 900)
    assert [late.plan(0, step) for step in (0, 500, 1000)] == plans


def test_torch_gives_the_same_rest() -> None:
    data = Numbers(LONG)
    theirs = torch.utils.data.DataLoader(data, BATCH, collate_fn=as_tensor, sampler=SubsetRandomSampler(range(LONG), generator()))
    ours = DataLoader(data, BATCH, collate_fn=as_tensor, sampler=SubsetRandomSampler(range(LONG), generator()))
    ours.skip(1000)
    expected = list(theirs)[1000:]
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
