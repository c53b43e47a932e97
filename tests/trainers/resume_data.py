"""Iterable datasets of the resume tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info


def sample(i: int) -> dict[str, torch.Tensor]:
    x = torch.tensor([float(i)])
    return {"x": x, "labels": 2 * x}


class Plain(IterableDataset[Any]):
    """Numbers, split over the workers, another order in each pass over them; has no position that could be loaded."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return map(sample, range(worker, self.n, workers))


class Stream(IterableDataset[Any]):
    """Numbers, split over the workers, that goes on from a loaded position without reading what lies before."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.next = 0
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        mine = range(worker, self.n, workers)
        while self.next < len(mine):
            self.next += 1
            yield sample(mine[self.next - 1] + 100 * self.passes)
        self.next = 0
        self.passes += 1

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next, self.passes = state["next"], state["passes"]
