"""What code inside a worker can ask: who am I, and which random numbers are mine."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_local = threading.local()


class Rng:
    """Random generators of one key. Each is made when it is first asked for, on the thread that asks.

    ``python`` is a :class:`random.Random`, ``numpy`` a :class:`numpy.random.Generator` (PCG64), ``torch`` a
    :class:`torch.Generator`. The longer names are those of torch's own ``WorkerInfo.rng``.
    """

    def __init__(self, seeds: tuple[int, int, int]) -> None:
        self._seeds = seeds
        self._made: dict[str, Any] = {}
        self._taken = 0

    def take_key(self) -> tuple[int, int, int, int]:
        """A key for native code that draws by itself: another one with each call, and independent of the generators."""
        a, b, c = self._seeds
        self._taken += 1
        return a, b, self._taken - 1, c

    @property
    def python(self) -> random.Random:
        """A generator of Python's :mod:`random`."""
        if "python" not in self._made:
            self._made["python"] = random.Random(self._seeds[0])
        made: random.Random = self._made["python"]
        return made

    @property
    def numpy(self) -> np.random.Generator:
        """A NumPy generator (PCG64)."""
        if "numpy" not in self._made:
            self._made["numpy"] = np.random.default_rng(self._seeds[1])
        made: np.random.Generator = self._made["numpy"]
        return made

    @property
    def torch(self) -> Any:
        """A ``torch.Generator`` on the CPU."""
        if "torch" not in self._made:
            import torch

            self._made["torch"] = torch.Generator().manual_seed(self._seeds[2])
        return self._made["torch"]

    random_generator = python
    numpy_generator = numpy
    torch_generator = torch


class CurrentRng:
    """Stands in ``WorkerInfo.rng`` for the generators of whatever runs on the calling thread at the moment."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(rng(), name)


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Who a worker is. The fields are those of torch's class of the same name."""

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: Any = None
    worker_method: str | None = "multiprocessing"


_process_info: Any = None
_is_worker = False


def set_process_info(info: Any) -> None:
    """For worker processes: ``info`` is the answer on every thread of this process."""
    global _process_info, _is_worker
    _process_info, _is_worker = info, True


def set_thread_info(info: Any) -> None:
    """For worker threads: ``info`` is the answer on the calling thread."""
    _local.info = info


def get_worker_info() -> Any:
    """The :class:`WorkerInfo` of the worker that runs the caller; ``None`` outside of workers.

    Works in process workers and in thread workers; in a process worker of the drop-in it is the object that
    ``torch.utils.data.get_worker_info()`` gives.
    """
    if getattr(_local, "hidden", 0):
        return None
    info = getattr(_local, "info", None)
    return _process_info if info is None else info


class Alone:
    """An iterable that is read whole by each who iterates it, whatever worker that is: it is told of no worker meanwhile, of which it would
    give a share only."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items) if get_worker_info() is None else _Alone(self.items)


class _Alone:
    __slots__ = ("_iterator",)

    def __init__(self, items: Any) -> None:
        with _hidden:
            self._iterator = iter(items)

    def __iter__(self) -> _Alone:
        return self

    def __next__(self) -> Any:
        with _hidden:
            return next(self._iterator)


class _Hidden:
    """Where nobody is told of a worker: neither by us nor, in a worker process, by torch, whose answer is one for the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: tuple[Any, Any] = None, None

    def __enter__(self) -> None:
        global _process_info
        _local.hidden = getattr(_local, "hidden", 0) + 1
        if not _is_worker:
            return
        stock = sys.modules.get("torch.utils.data._utils.worker")
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = _process_info, getattr(stock, "_worker_info", None)
                _process_info = None
                if stock is not None:
                    stock._worker_info = None  # type: ignore[attr-defined]

    def __exit__(self, *_: object) -> None:
        global _process_info
        _local.hidden -= 1
        if not _is_worker:
            return
        stock = sys.modules.get("torch.utils.data._utils.worker")
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                _process_info, info = self._before
                if stock is not None:
                    stock._worker_info = info  # type: ignore[attr-defined]

    def forget(self) -> None:
        """In a child that was forked: a thread that it does not have may have been at it."""
        self._lock = threading.Lock()


_hidden = _Hidden()
os.register_at_fork(after_in_child=_hidden.forget)


def sample_seeds(seed: int, epoch: int, position: int, kind: bytes) -> tuple[int, int, int]:
    """Three 64-bit seeds from a key: BLAKE2b over (seed, epoch, position), personalised by ``kind``.

    The same key gives the same seeds on any machine, for any number of workers.
    """
    key = struct.pack("<QQQ", seed & 0xFFFFFFFFFFFFFFFF, epoch, position)
    digest = hashlib.blake2b(key, digest_size=24, person=kind).digest()
    return struct.unpack("<QQQ", digest)


SAMPLE = b"feedrate sample"
BATCH = b"feedrate batch"


STEP = b"feedrate step"

#: What reseeds the process-wide generators before each call of a step, if that was asked for.
_reseed: Any = None


def set_reseed(reseed: Any) -> None:
    """For worker processes: ``reseed(seed, epoch, position, kind)`` is called before each call of a pipeline's step."""
    global _reseed
    _reseed = reseed


def keyed_call(function: Any, argument: Any, key: tuple[int, int, int, int]) -> Any:
    """Calls a step of a pipeline with one element. ``key`` is (seed, epoch, step, place of the element); :func:`rng` gives the generators
    that belong to it meanwhile."""
    before = getattr(_local, "rng", None)
    _local.rng = key
    try:
        if _reseed is not None:
            _reseed(*_step_key(key), STEP)
        return function(argument)
    finally:
        _local.rng = before


def _step_key(key: tuple[int, int, int, int]) -> tuple[int, int, int]:
    seed, epoch, step, place = key
    # Steps are few: their numbers spread over the words by an odd constant (the golden ratio).
    return seed, epoch, (place + step * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF


def set_pipeline_key(key: tuple[int, int] | None) -> None:
    """By which seed and epoch pipelines that are asked for elements by number on the calling thread draw; ``None``: by their own."""
    _local.pipeline_key = key


def pipeline_key() -> tuple[int, int] | None:
    """What :func:`set_pipeline_key` was given on this thread."""
    return getattr(_local, "pipeline_key", None)


def set_rng(value: Rng | None) -> None:
    """Makes ``value`` the answer of :func:`rng` on the calling thread."""
    _local.rng = value


def current_rng() -> Rng | None:
    """:func:`rng`, or ``None`` where there is none."""
    return None if getattr(_local, "rng", None) is None else rng()


def rng() -> Rng:
    """The generators of the sample (or batch, in ``__getitems__`` and collate functions) at work on this thread.

    With ``seeding="sample"`` they are keyed by (seed, epoch, sample position), so that what is drawn depends neither on the
    number of workers nor on their kind. With ``seeding="worker"`` a worker thread has one that is seeded like a worker process
    and runs on from sample to sample. In a step of a :class:`feedrate.Pipeline` they are always keyed: by (seed, epoch, step, where the
    element is stored).

    Raises ``RuntimeError`` where there is none.
    """
    value = getattr(_local, "rng", None)
    if value is None:
        raise RuntimeError(
            "feedrate.rng() is for code that a loader runs: in the dataset or collate function of a loader with "
            'seeding="sample" (any pool), or in worker threads. Here there is no sample at work.'
        )
    if type(value) is tuple:
        value = _local.rng = Rng(sample_seeds(*_step_key(value), STEP))
    found: Rng = value
    return found
