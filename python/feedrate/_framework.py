"""What a loader asks of the array library it serves. This is NumPy's side; ``feedrate.torch`` has torch's."""

from __future__ import annotations

import ctypes
import importlib
import pickle
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

# At once: NumPy loads it when it is first asked for, and a child that is forked meanwhile would wait for the lock of that import.
import numpy.random

from feedrate import _collate
from feedrate._context import CurrentRng, WorkerInfo, sample_seeds, set_process_info

Allocate = Callable[[int], Any]


def numpy_seed(base_seed: int, worker: int) -> list[int]:
    """Four 32-bit words from (worker, base_seed), as torch's loader seeds NumPy: the hash of ``numpy.random.SeedSequence`` over
    ``[worker, low word, high word, 0]`` (M. E. O'Neill's seed_seq_fe)."""
    entropy = [worker, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    words = np.random.SeedSequence(entropy).generate_state(4)
    return [int(w) for w in words]


class _PythonState:
    """Reads the state of Python's global generator without building a tuple of 625 integers.

    ``random.Random`` is a C object with the index and the 624 words of its Mersenne Twister behind the object head. The address
    is checked against ``getstate()`` once; where it does not hold, the slow way is taken.
    """

    def __init__(self) -> None:
        self._view: memoryview | None = None
        head = object.__basicsize__
        raw = (ctypes.c_uint32 * 625).from_address(id(random._inst) + head)
        words = random.getstate()[1]
        if raw[0] == words[-1] and list(raw[1:]) == list(words[:-1]):
            self._view = memoryview(raw).cast("B")

    def get(self) -> Any:
        if self._view is None:
            return random.getstate()
        return bytes(self._view), random._inst.gauss_next  # type: ignore[attr-defined]

    @staticmethod
    def set(state: Any) -> None:
        if len(state) == 2:
            words = np.frombuffer(state[0], np.uint32).tolist()
            state = (3, (*words[1:], words[0]), state[1])
        random.setstate(state)


class _NumpyState:
    """Tells cheaply whether NumPy's global generator was used: by its raw state, at the address that NumPy gives for it."""

    def __init__(self) -> None:
        generator: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
        self._view: memoryview | None = None
        if type(generator) is np.random.MT19937:
            # struct mt19937_state: 624 words of key, then the position.
            raw = (ctypes.c_uint32 * 625).from_address(generator.ctypes.state_address)
            self._view = memoryview(raw).cast("B")
        # The view is into its memory.
        self._owner = generator

    def mark(self) -> Any:
        if self._view is None:
            return object()
        return bytes(self._view)


#: In a worker process that was seeded before it had torch, whose generator begins everywhere with the same numbers.
torch_is_unseeded = False


def _seed_torch(seed: int) -> None:
    global torch_is_unseeded
    torch: Any = sys.modules.get("torch")
    torch_is_unseeded = torch is None
    if torch is not None:
        torch.manual_seed(seed)


def _torch_state() -> list[bytes]:
    torch: Any = sys.modules.get("torch")
    return [] if torch is None else [torch.default_generator.get_state().numpy().tobytes()]


def revive(first: str, module: str, name: str) -> Any:
    """In a worker: imports ``first``, then makes a ``name`` of ``module``. A framework is imported by itself, before our module
    that is built on it, so that whoever hooks its import finds ours whole."""
    importlib.import_module(first)
    return getattr(importlib.import_module(module), name)()


class Framework:
    """NumPy: arrays, ``random`` and ``numpy.random``."""

    #: Name of a worker process in ``ps``.
    process_name = "feedrate_worker"

    def __init__(self) -> None:
        self._state_readers: tuple[_PythonState, _NumpyState] | None = None
        self._last_marks: list[Any] | None = None

    def __reduce__(self) -> Any:
        # What it holds are views of this process's memory.
        return type(self), ()

    # -- worker processes

    def enter_worker(
        self, worker: int, workers: int, base_seed: int, dataset: Any, *, sample_keyed: bool, shared_seed: int | None
    ) -> Any:
        """Sets up the process-wide state of a worker process; returns the dataset to use."""
        self.seed_worker(base_seed, worker)
        info = WorkerInfo(worker, workers, base_seed + worker, dataset, CurrentRng() if sample_keyed else None)
        set_process_info(info)
        return dataset

    def begin_epoch(self, dataset: Any, shared_seed: int | None) -> Any:
        """A further epoch in the same worker; returns the dataset to use."""
        return dataset

    def seed_worker(self, base_seed: int, worker: int) -> None:
        """Seeds the process-wide generators as torch's loader does in worker ``worker``: also torch's, if it is imported."""
        random.seed(base_seed + worker)
        np.random.seed(numpy_seed(base_seed, worker))
        _seed_torch(base_seed + worker)

    # -- states of the process-wide generators

    def save_states(self) -> bytes:
        """The states of all generators that ``seed_worker`` seeds."""
        return pickle.dumps(self._states(), 5)

    def changed_states(self) -> bytes | None:
        """``save_states()`` if a generator was used since the last call, else ``None``. Made to be called after each task."""
        marks = self._marks()
        if marks == self._last_marks:
            return None
        self._last_marks = marks
        return self.save_states()

    def restore_states(self, blob: bytes) -> None:
        """Puts back what ``save_states`` gave."""
        self._restore(pickle.loads(blob))

    def _readers(self) -> tuple[_PythonState, _NumpyState]:
        if self._state_readers is None:
            self._state_readers = _PythonState(), _NumpyState()
        return self._state_readers

    def _marks(self) -> list[Any]:
        python, numpy = self._readers()
        return [python.get(), numpy.mark(), *_torch_state()]

    def _states(self) -> list[Any]:
        return [self._readers()[0].get(), np.random.get_state(legacy=False), *_torch_state()]

    def _restore(self, states: list[Any]) -> None:
        _PythonState.set(states[0])
        np.random.set_state(states[1])
        if len(states) > 2:
            torch = importlib.import_module("torch")
            torch.default_generator.set_state(torch.frombuffer(bytearray(states[2]), dtype=torch.uint8))

    def seed_sample(self, seed: int, epoch: int, position: int, kind: bytes) -> None:
        """Seeds the process-wide generators for one sample (or batch): Python's, NumPy's, and torch's CPU generator if it is imported."""
        a, b, c = sample_seeds(seed, epoch, position, kind)
        random.seed(a)
        np.random.seed([b & 0xFFFFFFFF, b >> 32])
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.default_generator.manual_seed(c)

    # -- collation

    def reducer(self) -> Any:
        """How the transport deals with tensors, ``None`` without them: their type, which of them it takes, and where those are; the type of
        storages, address and bytes of one that is not to be copied for this tensor (or ``None``), a tensor over all of one (``None``: not
        here), and the storage of that tensor, by its number, where it arrives."""
        return None

    def arena_collate(self, collate_fn: Callable[[Any], Any], allocate: Allocate) -> Callable[[Any], Any]:
        """``collate_fn``, writing into memory from ``allocate`` if it is the default one of this framework."""
        if collate_fn is _collate.default_collate:
            return _collate.with_allocator(allocate)
        return collate_fn

    def install_arena(self, allocate: Allocate) -> None:
        """In a worker process: makes the default collation allocate from the arena wherever it is called from."""
        _collate.set_process_allocator(allocate)

    # -- batches that a dataset writes itself

    def is_default_collate(self, collate_fn: Callable[[Any], Any]) -> bool:
        """Whether ``collate_fn`` is the default one of this framework, unchanged."""
        return collate_fn is _collate.default_collate

    def has_dtype(self, dtype: str) -> bool:
        """Whether there are arrays of this dtype."""
        return dtype != "bfloat16"

    def batch_memory(self, allocate: Allocate, dtype: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """An array of this shape and its bytes, to be written to."""
        array = _collate.empty(shape, np.dtype(dtype), allocate)
        return array, array.reshape(-1).view(np.uint8)
