"""Lists of indices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from feedrate.samplers import _inner
from feedrate.samplers._base import Run, Sampler, positive
from feedrate.samplers._inner import Inner


class Wrapper(Sampler):
    """A sampler around another one, whose epochs and states it passes on."""

    sampler: Iterable[Any]

    def set_epoch(self, epoch: int) -> None:
        """Passed on to the inner sampler if that has epochs."""
        if not _inner.set_epoch(self.sampler, epoch):
            self._forget()

    def _forget(self) -> None:
        super()._forget()
        _inner.forget(self.sampler)

    def _fresh(self) -> dict[str, Any]:
        return {"position": 0, "sampler": _inner.fresh(self.sampler)}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "sampler": _inner.check(self.sampler, state, type(self).__name__)}

    def _restore(self, state: dict[str, Any]) -> None:
        _inner.load(self.sampler, state["sampler"])


class BatchSampler(Wrapper):
    """Lists of ``batch_size`` indices from any iterable of indices; the last one may be shorter unless ``drop_last``."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        check_batch_size(batch_size)
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __len__(self) -> int:
        n = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def _begin(self, known: Any, pending: dict[str, Any] | None) -> Run:
        return _Batches(self, pending)

    def _describe(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "drop_last": self.drop_last}


class _Batches(Run):
    def __init__(self, sampler: BatchSampler, pending: dict[str, Any] | None) -> None:
        super().__init__(pending["position"] if pending else 0)
        self._inner = Inner(sampler.sampler, pending["sampler"] if pending else None)
        self._size = sampler.batch_size
        self._smallest = sampler.batch_size if sampler.drop_last else 1

    def page(self) -> list[Any]:
        """One batch."""
        batch = self._inner.take(self._size)
        if len(batch) < self._smallest:
            return []
        self.position += 1
        return [batch]

    def state(self) -> dict[str, Any]:
        """Batches, and the state of what is batched."""
        return {"position": self.given, "sampler": self._inner.state()}


def check_batch_size(batch_size: Any) -> None:
    """Torch's rule and message."""
    if not positive(batch_size):
        raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
