"""Iterable datasets whose ranks end at different times: the loader's steps are those that ranks agree on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_coordinator import Lockstep, Memory, on_ranks
from torch.utils.data import IterableDataset, get_worker_info

import feedrate
from feedrate import _loader
from feedrate._coordinator import Coordinator
from feedrate.torch import DataLoader

pytestmark = pytest.mark.ours


class Shares(IterableDataset[int], _loader.IterableDataset):
    """The share of a rank, split among its workers."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count

    def __iter__(self) -> Any:
        info = feedrate.get_worker_info() or get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter([1000 * self.rank + i for i in range(first, self.count, step)])


@pytest.mark.parametrize("front", ["torch", "numpy"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("remainder", ["pad", "drop", "exact"])
def test_ranks_have_the_same_steps(remainder: str, workers: int, front: str) -> None:
    store, steps = Memory(), Lockstep(2)
    counts = [21, 9]
    kind: Any = DataLoader if front == "torch" else feedrate.DataLoader

    def work(rank: int) -> Any:
        loader = kind(
            Shares(rank, counts[rank]),
            batch_size=3,
            num_workers=workers,
            workers="thread",
            persistent_workers=workers > 0,
            distributed=(rank, 2),
            remainder=remainder,
            coordinator=Coordinator(store, name="x"),
        )
        found = []
        for _ in range(2):
            got = []
            for batch in loader:
                got.append((np.asarray(batch).tolist(), loader.mask.tolist(), loader.state_dict()["batches"]))
                steps.step()
            found.append(got)
        return found

    found = on_ranks(2, work)
    assert not any(isinstance(f, Exception) for f in found), found
    for epoch in range(2):
        sizes = [len(f[epoch]) for f in found]
        assert sizes[0] == sizes[1]
        samples = [[i for got, mask, _ in f[epoch] for i, mine in zip(got, mask, strict=True) if mine] for f in found]
        for rank in range(2):
            assert set(samples[rank]) <= set(Shares(rank, counts[rank]))
            assert len(set(samples[rank])) == len(samples[rank])
            assert [n for _, _, n in found[rank][epoch]] == list(range(1, sizes[0] + 1))
        if remainder == "drop":
            assert len(samples[1]) == 9
        else:
            assert [sorted(s) for s in samples] == [sorted(Shares(r, counts[r])) for r in range(2)]
            assert sizes[0] == (7 if workers == 0 else 8)
            last = found[1][epoch][-1]
            assert (last[0] == []) == (remainder == "exact") and not any(last[1])
