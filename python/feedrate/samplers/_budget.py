"""Batches as large as a budget allows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from feedrate._errors import short
from feedrate._hashing import mix
from feedrate.samplers._base import Run, count, field, positive
from feedrate.samplers._batch import Wrapper, check_batch_size
from feedrate.samplers._inner import Inner
from feedrate.samplers._random import digest

OVERSIZE = ("error", "skip", "alone")


class Padding(NamedTuple):
    """What the batches of an iteration hold so far."""

    tokens: int
    """Real tokens, or pixels."""
    padded_tokens: int
    """Tokens once each batch is padded to its largest sample."""
    ratio: float
    """The share of ``padded_tokens`` that is padding, 0 to 1."""
    skipped: int
    """Samples left out by ``oversize="skip"``."""


class BudgetBatchSampler(Wrapper):
    """Lists of indices, each as long as its padded size stays within a budget.

    Takes the indices of ``sampler`` in their order. The size of a batch is that of its padded tensor: the number of samples times
    the largest length, or for samples of several dimensions (an image's height and width) times the largest of each. The number of
    batches is known only at the end, so there is no ``len()``. ``padding`` reports on the present or last iteration.

    Args:
        sampler: any iterable of indices.
        lengths: the length of a sample by its index: an array, a sequence, a mapping or a function. A length is a whole number, or a tuple
            of them.
        budget: the largest size of a batch.
        max_samples: the largest number of samples in a batch; ``None`` for no limit.
        oversize: what to do with a sample that is larger than the budget by itself: ``"error"`` raises a ``ValueError`` that names it,
            ``"skip"`` leaves it out, ``"alone"`` makes it a batch.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        lengths: Any,
        budget: int,
        *,
        max_samples: int | None = None,
        oversize: Literal["error", "skip", "alone"] = "error",
    ) -> None:
        if not positive(budget):
            raise ValueError(f"budget should be a positive integer value, but got budget={budget}")
        if max_samples is not None:
            check_batch_size(max_samples)
        if oversize not in OVERSIZE:
            raise ValueError(f"oversize should be one of {OVERSIZE}, but got oversize={oversize!r}")
        self.sampler = sampler
        self.lengths = lengths
        self.budget = budget
        self.max_samples = max_samples
        self.oversize = oversize
        self._counts = [0, 0, 0]
        self._digest: str | None = None

    @property
    def padding(self) -> Padding:
        """Of the batches that were given so far in the iteration that was begun last."""
        tokens, padded, skipped = self._counts
        return Padding(tokens, padded, 1 - tokens / padded if padded else 0.0, skipped)

    def _begin(self, known: Any, pending: dict[str, Any] | None) -> Run:
        self._counts = list(pending["counts"]) if pending else [0, 0, 0]
        return _Filled(self, self._counts, pending)

    def _describe(self) -> dict[str, Any]:
        if self._digest is None and isinstance(self.lengths, np.ndarray | list | tuple):
            self._digest = _digest(self.lengths)
        return {"budget": self.budget, "max_samples": self.max_samples, "oversize": self.oversize, "lengths": self._digest}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        if state["begun"]:
            name = type(self).__name__
            field(state, "carry", name)
            for key, value in zip(("tokens", "padded_tokens", "skipped"), field(state, "counts", name), strict=True):
                count({key: value}, key, name)
        return super()._check(state)


def _digest(lengths: Any) -> str:
    """Of all lengths, where they are at hand: the same for a list as for an array."""
    try:
        return digest(np.asarray(lengths).astype(np.int64, casting="safe"))
    except (TypeError, ValueError):  # tuples of several lengths, or what is found to be no length when it is reached
        found = hashlib.blake2b(digest_size=8)
        mix(found, lengths)
        return found.hexdigest()


class _Filled(Run):
    """Fills one batch after the other. The sample that did not fit into the last one is carried over to the next."""

    def __init__(self, sampler: BudgetBatchSampler, counts: list[int], pending: dict[str, Any] | None) -> None:
        super().__init__(pending["position"] if pending else 0)
        self._inner = Inner(sampler.sampler, pending["sampler"] if pending else None)
        self._carry: list[Any] = list(pending["carry"]) if pending else []
        self._counts = counts
        self._length: Callable[[Any], Any] = sampler.lengths if callable(sampler.lengths) else sampler.lengths.__getitem__
        self._budget = sampler.budget
        self._most = sampler.max_samples
        self._oversize = sampler.oversize

    def page(self) -> list[Any]:
        """One batch."""
        batch: list[Any] = []
        try:
            real, padded = self._fill(batch)
        except BaseException:
            self._carry = batch + self._carry  # going on after an error loses nothing unseen
            raise
        if not batch:
            return []
        self._counts[0] += real
        self._counts[1] += padded
        self.position += 1
        return [batch]

    def _fill(self, batch: list[Any]) -> tuple[int, int]:
        """Appends what fits; the real and the padded size of it."""
        real = padded = 0
        largest: tuple[int, ...] = ()
        while self._most is None or len(batch) < self._most:
            self._carry = self._carry or self._inner.take(1)
            if not self._carry:
                break
            size = self._size(self._carry[0])
            area = math.prod(size)
            if area > self._budget:
                if self._oversize == "skip":
                    del self._carry[0]
                    self._counts[2] += 1
                    continue
                if not batch and self._oversize == "error":
                    raise ValueError(
                        f"sample {short(self._carry[0])} has a size of {' x '.join(map(str, size))}, which is over the budget of "
                        f'{self._budget} by itself: raise the budget, or use oversize="skip" or "alone"'
                    )
                if not batch:
                    batch.append(self._carry.pop(0))
                    return area, area
                break
            if batch and len(size) != len(largest):
                raise ValueError(
                    f"the size of sample {short(self._carry[0])} has {len(size)} dimensions, that of others has {len(largest)}"
                )
            grown = tuple(map(max, largest, size)) if batch else size
            if math.prod(grown) * (len(batch) + 1) > self._budget:
                break
            batch.append(self._carry.pop(0))
            largest = grown
            real += area
            padded = math.prod(largest) * len(batch)
        return real, padded

    def _size(self, index: Any) -> tuple[int, ...]:
        length = self._length(index)
        numbers = np.atleast_1d(np.asarray(length))
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1 or not numbers.size or numbers.min() < 0:
            raise ValueError(
                f"the length of sample {short(index)} is {short(length)}: it should be a whole number, or a tuple of them"
            )
        return tuple(numbers.tolist())

    def state(self) -> dict[str, Any]:
        """Batches, the sample carried over, and the state of what is batched."""
        return {"position": self.given, "carry": list(self._carry), "counts": list(self._counts), "sampler": self._inner.state()}
