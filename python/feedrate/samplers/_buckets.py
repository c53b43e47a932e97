"""Batches of samples of similar length."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np

from feedrate._errors import short
from feedrate._native import Order
from feedrate.samplers._base import EpochSampler, Run, check_seed, positive, within
from feedrate.samplers._batch import check_batch_size
from feedrate.samplers._random import digest
from feedrate.samplers._streams import fresh_seed, seed_of

_Ints = np.ndarray[Any, np.dtype[np.int64]]


class BucketBatchSampler(EpochSampler):
    """Lists of indices of samples of similar length, so that batches need little padding.

    Bucket ``b`` holds the samples whose length is at least ``boundaries[b - 1]`` and below ``boundaries[b]``; the first and the
    last one are open. Each batch is from one bucket. With ``shuffle`` samples are shuffled within their bucket and batches across
    buckets, as a function of (lengths, arguments, seed, epoch); without, both stay in order. Takes 8 bytes a sample.

    Args:
        lengths: the length of each sample: an array or sequence, or a function from the index, which is called for each sample once,
            here; then ``num_samples`` says how many there are.
        batch_size: samples in a batch, or one number for each bucket.
        boundaries: ascending lengths at which a new bucket begins.
        num_buckets: instead of them: so many buckets of about equally many samples. Fewer when lengths repeat.
        shuffle: see above.
        seed: of the shuffle; ``None`` takes a fresh one, readable as ``seed``.
        drop_last: leave out the last batch of each bucket when it is short.
        num_samples: how many samples there are, when ``lengths`` is a function.
    """

    def __init__(
        self,
        lengths: Sequence[int] | _Ints | Callable[[int], int],
        batch_size: int | Sequence[int],
        *,
        boundaries: Sequence[int] | None = None,
        num_buckets: int | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        drop_last: bool = False,
        num_samples: int | None = None,
    ) -> None:
        array = _lengths(lengths, num_samples)
        if (boundaries is None) == (num_buckets is None):
            raise ValueError(
                f"give either boundaries or num_buckets, got boundaries={short(boundaries)} and num_buckets={num_buckets}"
            )
        if num_buckets is not None:
            edges = _quantiles(array, num_buckets)
        else:
            given = np.asarray(boundaries)
            whole = given.dtype.kind in "iu" or (given.dtype.kind == "f" and bool((given % 1 == 0).all()))
            if given.ndim != 1 or not whole or (np.diff(given) <= 0).any():
                raise ValueError(
                    f"boundaries should be ascending lengths, which are whole numbers, but got boundaries={short(boundaries)}"
                )
            edges = given.astype(np.int64)
        self.boundaries: list[int] = edges.tolist()
        self.batch_sizes = _sizes(batch_size, len(edges) + 1)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed_given = seed is not None or not shuffle
        self.seed = fresh_seed() if seed is None else seed_of(seed, "seed", "an integer or None")
        bucket = np.searchsorted(edges, array, side="right")
        # All samples, bucket after bucket, each in its order.
        self._members: _Ints = np.argsort(bucket, kind="stable")
        counts = np.bincount(bucket, minlength=len(edges) + 1)
        self._starts: list[int] = [0, *np.cumsum(counts).tolist()]
        sizes = np.asarray(self.batch_sizes)
        batches = counts // sizes if drop_last else -(-counts // sizes)
        self._first_batch: _Ints = np.concatenate([[0], np.cumsum(batches)]).astype(np.int64)
        self._digest = digest(array)

    def __len__(self) -> int:
        return int(self._first_batch[-1])

    def batch(self, epoch: int, number: int) -> list[int]:
        """A batch of an epoch, without making those before it."""
        return self._plan(epoch)(number)

    def _plan(self, epoch: int) -> Callable[[int], list[int]]:
        across: Order | None = None
        within: list[Order] = []
        if self.shuffle:
            across = Order.keyed(len(self), _key(self.seed, 0), epoch % 2**64)
            spans = zip(self._starts, self._starts[1:], strict=False)
            within = [Order.keyed(stop - start, _key(self.seed, 1 + b), epoch % 2**64) for b, (start, stop) in enumerate(spans)]

        def batch(number: int) -> list[int]:
            if across is not None:
                number = across[number]
            b = int(np.searchsorted(self._first_batch, number, side="right")) - 1
            start, stop, size = self._starts[b], self._starts[b + 1], self.batch_sizes[b]
            first = (number - int(self._first_batch[b])) * size
            if across is None:
                chosen = self._members[start + first : min(start + first + size, stop)]
            else:
                chosen = self._members[start + np.asarray(within[b].take(first, first + size), dtype=np.int64)]
            indices: list[int] = chosen.tolist()
            return indices

        return batch

    def _begin(self, known: Any, pending: dict[str, Any] | None) -> Run:
        epoch = self._begin_epoch()
        return _BucketRun(self, epoch, pending["position"] if pending else 0)

    def _describe(self) -> dict[str, Any]:
        return {
            "lengths": self._digest,
            "boundaries": self.boundaries,
            "batch_size": self.batch_sizes,
            "shuffle": bool(self.shuffle),
            "drop_last": bool(self.drop_last),
        }

    def _fresh(self) -> dict[str, Any]:
        return {**super()._fresh(), "seed": self.seed}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        check_seed(state, self.seed if self.shuffle and self.seed_given else None, type(self).__name__)
        return within(super()._check(state), len(self), type(self).__name__)

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.seed = state["seed"]


class _BucketRun(Run):
    def __init__(self, sampler: BucketBatchSampler, epoch: int, position: int) -> None:
        super().__init__(position)
        self._batch = sampler._plan(epoch)
        self._total = len(sampler)
        self._facts = {"epoch": epoch, "seed": sampler.seed}

    def page(self) -> list[Any]:
        """One batch."""
        if self.position >= self._total:
            return []
        self.position += 1
        return [self._batch(self.position - 1)]

    def take(self, total: int, offset: int = 0, step: int = 1) -> list[Any]:
        """Makes only the batches that are wanted."""
        start = self.given
        self.ready = iter(())
        self.position = min(start + total, self._total)
        return [self._batch(number) for number in range(start + offset, self.position, step)]

    def front(self, count: int) -> list[Any] | None:
        """The first batches."""
        return [self._batch(number) for number in range(min(count, self._total))]

    def state(self) -> dict[str, Any]:
        """Batches."""
        return {"position": self.given, **self._facts}


def _lengths(lengths: Any, num_samples: int | None) -> _Ints:
    if callable(lengths):
        if num_samples is None:
            raise ValueError("lengths is a function, so num_samples must say how many samples there are")
        array = np.fromiter((_whole(i, lengths(i)) for i in range(num_samples)), dtype=np.int64, count=num_samples)
    else:
        array = np.asarray(lengths)
        if array.size == 0:
            array = array.astype(np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(
                f"lengths should be one whole number for each sample, but got an array of {array.dtype} of shape {array.shape}"
            )
        if num_samples is not None and num_samples != len(array):
            raise ValueError(f"num_samples is {num_samples}, and there are {len(array)} lengths: leave it out")
        array = array.astype(np.int64)
    if (array < 0).any():
        raise ValueError(f"lengths should not be negative, but sample {int(np.argmax(array < 0))} has {int(array[array < 0][0])}")
    return array


def _whole(sample: int, length: Any) -> int:
    """NumPy would cut a float down to an integer."""
    try:
        return index(length)
    except TypeError:
        raise ValueError(f"the length of sample {sample} is {short(length)}: it should be a whole number") from None


def _quantiles(lengths: _Ints, num_buckets: int) -> _Ints:
    if not positive(num_buckets):
        raise ValueError(f"num_buckets should be a positive integer value, but got num_buckets={num_buckets}")
    if not len(lengths):
        return np.zeros(0, dtype=np.int64)
    ordered = np.sort(lengths)
    # A bucket begins at the first sample of its share; one that would begin at the shortest length would be empty before it.
    edges: _Ints = np.unique(ordered[[k * len(ordered) // num_buckets for k in range(1, num_buckets)]])
    inner: _Ints = edges[edges > ordered[0]]
    return inner


def _sizes(batch_size: Any, buckets: int) -> list[int]:
    sizes = [batch_size] * buckets if isinstance(batch_size, int) else [*batch_size]
    for size in sizes:
        check_batch_size(size)
    if len(sizes) != buckets:
        raise ValueError(
            f"batch_size has {len(sizes)} numbers, and there are {buckets} buckets: give one number, or one for each"
        )
    return sizes


def _key(seed: int, number: int) -> int:
    """Independent seeds for the order of the batches and of each bucket."""
    text = f"feedrate bucket {seed} {number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
