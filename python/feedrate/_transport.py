"""How a batch leaves a worker process: tensors and arrays in place, everything else as a pickle around them."""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal

import numpy as np

from feedrate import _native

# Smaller arrays are cheaper inside the pickle.
_SMALL = 512
_RAW_KINDS = frozenset("biufcmMSU")


def _array(index: int, shape: tuple[int, ...], dtype: Any, order: Literal["C", "F"]) -> np.ndarray[Any, Any]:
    """The array over tensor ``index`` of the batch that is being unpickled."""
    memory: Any = _native.block(index)
    return np.ndarray(shape, dtype, memory, 0, None, order)


def _place(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """An array as raw bytes: its type travels in the pickle."""
    address = array.__array_interface__["data"][0]
    return (address, address, array.nbytes, 1, 8, (array.nbytes,), (1,))


class Encoder:
    """Turns batches into messages; one for each worker process.

    Not thread-safe. ``torch`` is the framework's reducer for tensors, or ``None`` when the loader knows no torch.
    """

    def __init__(self, end: Any, reduce_tensor: Any = None) -> None:
        self._end = end
        self._buffer = io.BytesIO()
        encoder = self
        tensor_type, plain, describe = reduce_tensor or (Encoder, bool, None)
        self._describe: Any = describe
        # Described when all is pickled: while it reduces one tensor, torch may move the storage of another.
        self._tensors: list[Any] = []
        native_tensor, ndarray = _native.tensor, np.ndarray

        class Pickler(ForkingPickler):
            def reducer_override(self, obj: Any) -> Any:
                kind = type(obj)
                if kind is tensor_type:
                    if not plain(obj):
                        return NotImplemented
                    encoder._tensors.append(obj)
                    return native_tensor, (len(encoder._tensors) - 1,)
                if kind is ndarray:
                    return encoder._reduce_array(obj)
                return NotImplemented

        # Python's default protocol, as torch's queues use it: what NumPy makes of a foreign byte order depends on it.
        self._pickler = Pickler(self._buffer)

    def _reduce_array(self, array: np.ndarray[Any, Any]) -> Any:
        if array.nbytes < _SMALL or array.dtype.kind not in _RAW_KINDS or array.dtype.metadata or not array.dtype.isnative:
            return NotImplemented
        order = "C"
        if not array.flags.c_contiguous:
            if array.flags.f_contiguous:
                order = "F"
            else:
                array = np.ascontiguousarray(array)
        self._tensors.append(array)
        dtype = array.dtype
        return _array, (len(self._tensors) - 1, array.shape, dtype.str if dtype.isbuiltin else dtype, order)

    def _part(self, places: list[tuple[Any, ...]]) -> None:
        """Arrays that share memory with something else get their own, as pickling gives it to them."""
        end, last = 0, -1
        for at in sorted(range(len(places)), key=lambda at: places[at][1]):
            start, size = places[at][1:3]
            if start < end:
                copied = at if type(self._tensors[at]) is np.ndarray else last
                array = self._tensors[copied]
                if type(array) is np.ndarray:
                    self._tensors[copied] = array.copy(order="K")
                    places[copied] = _place(self._tensors[copied])
            if start + size > end:
                end, last = start + size, at

    def send(self, epoch: int, position: int, obj: Any, *, error: bool = False) -> bool:
        """Sends ``obj`` as the result of a task. Raises what pickling raises, and then nothing has been sent; false when the
        parent is gone."""
        buffer = self._buffer
        buffer.seek(0)
        try:
            self._pickler.dump(obj)
            buffer.truncate()
            places = [_place(t) if type(t) is np.ndarray else self._describe(t) for t in self._tensors]
            if len(places) > 1:
                self._part(places)
            sent: bool = self._end.complete(epoch, position, error, places, buffer.getbuffer())
            return sent
        finally:
            self._pickler.clear_memo()
            self._tensors.clear()
            if buffer.tell() > 1 << 20:
                self._buffer.seek(0)
                self._buffer.truncate()
