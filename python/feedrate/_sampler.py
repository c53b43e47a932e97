"""Samplers of the loader without torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np

from feedrate._native import Order

#: Samples from which on a shuffle is computed and not stored.
KEYED_FROM = 1 << 24


class SequentialSampler:
    """The indices of ``source`` in order."""

    def __init__(self, source: Sized) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.source)))

    def __len__(self) -> int:
        return len(self.source)


class RandomSampler:
    """The indices of ``source`` in a new random order each time, drawn from ``generator``.

    Holds 4 bytes a sample while it is iterated, and from ``KEYED_FROM`` samples on nothing: such an order is computed from a drawn
    key.
    """

    def __init__(self, source: Sized, generator: np.random.Generator, *, given: bool = True) -> None:
        if len(source) <= 0:
            raise ValueError(
                f"shuffle=True needs a dataset with samples, this one has {len(source)}: the cause is often a path that matched nothing"
            )
        self.source = source
        self.generator = generator
        #: Whether it is the user's, who seeds it alike on all ranks.
        self.given = given

    def order(self) -> Order:
        """Draws the order of an epoch."""
        n = len(self.source)
        if n >= KEYED_FROM:
            return Order.keyed(n, int(self.generator.integers(0, 1 << 63, dtype=np.int64)), 0)
        return Order.of(self.generator.permutation(n).data)

    def __iter__(self) -> Iterator[int]:
        for page in self.order().batches(0, 1024, False):
            yield from page

    def __len__(self) -> int:
        return len(self.source)


class BatchSampler:
    """Lists of ``batch_size`` indices from ``sampler``; the last one may be shorter unless ``drop_last``."""

    def __init__(self, sampler: Iterable[Any], batch_size: Any, drop_last: Any) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        source = iter(self.sampler)
        while batch := list(itertools.islice(source, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield batch

    def __len__(self) -> int:
        n = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


class InfiniteSampler:
    """``None`` for ever: what an iterable dataset is asked for."""

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)
