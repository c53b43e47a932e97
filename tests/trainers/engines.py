"""Which engine makes the iterators: counts those of the stock loader and those of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, dataloader


@dataclass
class Counts:
    """Iterators made inside `counting()`."""

    stock: int = 0
    ours: int = 0


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts every iterator that a torch or feedrate loader makes while the block runs."""
    counts = Counts()
    original = dataloader.DataLoader.__iter__
    stock_get = dataloader.DataLoader._get_iterator
    from feedrate.torch import DataLoader as Ours

    ours_get = Ours._get_iterator

    def count_stock(self: Any) -> Any:
        it = stock_get(self)
        if type(it).__module__.startswith("torch."):
            counts.stock += 1
        return it

    def count_ours(self: Any) -> Any:
        before = counts.stock
        it = ours_get(self)
        if counts.stock == before and not type(it).__module__.startswith("torch."):
            counts.ours += 1
        return it

    dataloader.DataLoader._get_iterator = count_stock  # type: ignore[method-assign]
    Ours._get_iterator = count_ours
    try:
        yield counts
    finally:
        dataloader.DataLoader._get_iterator = stock_get  # type: ignore[method-assign]
        Ours._get_iterator = ours_get
        assert dataloader.DataLoader.__iter__ is original


class Numbers(Dataset[Any]):
    """Pairs (x, y) with y = 2x; remembers nothing."""

    def __init__(self, n: int = 32) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        x = torch.tensor([float(i)])
        return {"x": x, "labels": 2 * x}


class Line(nn.Module):
    """A one-weight model that keeps the inputs it saw, in the shape that transformers' Trainer wants too."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(1, 1)
        self.seen: list[list[float]] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, **_: Any) -> dict[str, Any]:
        self.seen.append([float(v) for v in x[:, 0]])
        out = self.w(x)
        loss = ((out - (labels if labels is not None else 0)) ** 2).mean()
        return {"loss": loss * 1e-6, "logits": out}
