"""Default collation without torch: the structure rules of torch's ``default_collate``, with NumPy arrays for tensors."""

from __future__ import annotations

import collections.abc as abc
import contextlib
import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Allocate = Callable[[int], Any]

_process_allocator: Allocate | None = None

# Below this a fresh array is cheaper than a slot; above it reused memory saves the page faults.
_ARENA_MIN = 1 << 16


def set_process_allocator(allocate: Allocate | None) -> None:
    """In a worker process: where ``default_collate`` puts arrays."""
    global _process_allocator
    _process_allocator = allocate


def _stack(arrays: list[np.ndarray[Any, Any]], allocate: Allocate | None) -> np.ndarray[Any, Any]:
    first = arrays[0]
    if allocate is None or first.dtype.hasobject or first.nbytes * len(arrays) == 0:
        return np.stack(arrays)
    shape = (len(arrays), *first.shape)
    for i, array in enumerate(arrays):
        if array.shape != first.shape:
            raise RuntimeError(
                f"default_collate: arrays of one batch must have equal shapes: sample 0 has {first.shape}, "
                f"sample {i} has {array.shape}. Pad them, or give a collate_fn"
            )
    dtype = first.dtype if all(a.dtype == first.dtype for a in arrays) else np.result_type(*arrays)
    out = np.ndarray(shape, dtype, allocate(math.prod(shape) * dtype.itemsize))
    return np.stack(arrays, out=out)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], allocate: Allocate) -> np.ndarray[Any, Any]:
    """An array whose memory comes from ``allocate`` where that pays."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _ARENA_MIN:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, allocate(nbytes))


def default_collate(batch: Any) -> Any:
    """Puts samples together to a batch.

    Arrays and NumPy scalars are stacked, Python floats become a float64 array, ints int64, bools bool; strings and bytes stay as
    they are; mappings, namedtuples and sequences are collated field by field (tuples become lists), keeping their type where it
    can be made. Everything is decided by the first sample.

    Raises ``TypeError`` for anything else, ``RuntimeError`` for sequences of unequal length or arrays of unequal shape.
    """
    return _collate(batch, _process_allocator)


def with_allocator(allocate: Allocate) -> Callable[[Any], Any]:
    """``default_collate`` with memory for large arrays from ``allocate(nbytes)`` (an object with the buffer protocol)."""

    def collate(batch: Any) -> Any:
        return _collate(batch, allocate, _ARENA_MIN)

    return collate


def _collate(batch: Any, allocate: Allocate | None, smallest: int = 1) -> Any:
    first = batch[0]
    kind = type(first)
    if isinstance(first, np.ndarray):
        if first.dtype.kind in "SUaO":
            raise TypeError(_unknown(first.dtype))
        use = allocate if first.nbytes * len(batch) >= smallest else None
        arrays = [np.asarray(a) for a in batch]
        # NumPy would make strings of numbers beside them, and objects of what has nothing in common.
        at = next((k for k, a in enumerate(arrays) if a.dtype != first.dtype and a.dtype.kind in "SUaO"), None)
        if at is not None:
            raise TypeError(
                f"default_collate: arrays of one batch must be of one kind: sample 0 is of {first.dtype}, sample {at} of {arrays[at].dtype}"
            )
        return _stack(arrays, use)
    if isinstance(first, np.bool_ | np.number | bool | int):
        return _numbers(batch)
    if isinstance(first, float):
        numbers = _numbers(batch)
        if numbers.dtype.kind == "c":
            at = next(k for k, x in enumerate(batch) if isinstance(x, complex | np.complexfloating))
            raise TypeError(_mixed(batch, at))
        return numbers.astype(np.float64, copy=False)
    if isinstance(first, str | bytes):
        return batch
    if isinstance(first, abc.Mapping):
        return _mapping_like(first, {key: _collate([sample[key] for sample in batch], allocate, smallest) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return kind(*(_collate(samples, allocate, smallest) for samples in zip(*batch, strict=True)))
    if isinstance(first, abc.Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        return _sequence_like(first, [_collate(samples, allocate, smallest) for samples in zip(*batch, strict=True)])
    raise TypeError(_unknown(kind))


def _numbers(batch: Any) -> np.ndarray[Any, Any]:
    """Numbers as one array. NumPy would make strings of numbers beside strings, objects of those beside ``None``, and floats of whole
    numbers on both sides of 2**63."""
    try:
        array = np.asarray(batch)
    except ValueError:
        # Sequences among them.
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biufc" or array.ndim != 1:
        at = next((k for k, x in enumerate(batch) if not isinstance(x, np.bool_ | np.number | int | float) or np.ndim(x)), None)
        if at is None:
            raise OverflowError(
                f"default_collate: whole numbers of one batch do not fit 64 bits: {max(batch, key=abs)!r} is among them"
            )
        raise TypeError(_mixed(batch, at))
    if array.dtype.kind == "f" and all(isinstance(x, int | np.integer) for x in batch):
        raise OverflowError(
            f"default_collate: whole numbers below 2**63 and above ({max(batch)!r}) have no type of 64 bits in common: give a collate_fn"
        )
    return array


def _mixed(batch: Any, at: int) -> str:
    return (
        f"default_collate: samples of one batch must be of one kind: sample 0 is {type(batch[0]).__name__}, sample {at} is "
        f"{type(batch[at]).__name__} ({batch[at]!r:.100}). Convert them before, or give a collate_fn"
    )


def _unknown(what: Any) -> str:
    hint = ": use feedrate.torch.DataLoader" if getattr(what, "__module__", "").partition(".")[0] == "torch" else ""
    return f"default_collate: batch must contain arrays, numbers, strings, dicts or lists; found {what}{hint}"


def _mapping_like(like: abc.Mapping[Any, Any], fields: dict[Any, Any]) -> Any:
    """``fields`` in a mapping of the type (and with the attributes) of ``like``, or as they are where none can be made."""
    with contextlib.suppress(TypeError):
        if isinstance(like, abc.MutableMapping):
            clone = copy.copy(like)
            clone.update(fields)
            return clone
        make: Any = type(like)
        return make(fields)
    return fields


def _sequence_like(like: abc.Sequence[Any], values: list[Any]) -> Any:
    """``values`` in a sequence of the type of ``like``, or as they are for a tuple and where none can be made."""
    if isinstance(like, tuple):
        return values
    with contextlib.suppress(TypeError):
        if isinstance(like, abc.MutableSequence):
            clone = copy.copy(like)
            for i, value in enumerate(values):
                clone[i] = value
            return clone
        make: Any = type(like)
        return make(values)
    return values


def default_convert(data: Any) -> Any:
    """A single sample when batching is off: containers are copied, their contents stay as they are."""
    if isinstance(data, abc.Mapping):
        return _mapping_like(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(default_convert, data))
    if isinstance(data, abc.Sequence) and not isinstance(data, str | bytes):
        return _sequence_like(data, [default_convert(value) for value in data])
    return data
