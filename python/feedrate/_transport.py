"""How a batch leaves a worker process: tensors and arrays in place, everything else as a pickle around them."""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal

import numpy as np

from feedrate import _native

# Smaller arrays are cheaper inside the pickle.
_SMALL = 512
# Of more parts than this, those below 64 KiB are as well: a message can tell of 65,534.
_MANY = 4096
_SMALL_OF_MANY = 64 << 10
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

    Not thread-safe. ``reduce_tensor`` is the framework's reducer for tensors, or ``None`` when the loader knows no torch.
    """

    def __init__(self, end: Any, reduce_tensor: Any = None) -> None:
        self._end = end
        self._buffer = io.BytesIO()
        encoder = self
        parts: Any = reduce_tensor or (Encoder, *(None,) * 6)
        tensor_type, plain, describe, storage_type, spread, whole, storage = parts
        self._describe: Any = describe
        # Described when all is pickled: while it reduces one tensor, torch may move the storage of another.
        self._tensors: list[Any] = []
        #: Addresses of the storages that torch sends in its own way.
        self._left: set[int] = set()
        native_tensor, ndarray = _native.tensor, np.ndarray

        class Pickler(ForkingPickler):
            def reducer_override(self, obj: Any) -> Any:
                kind = type(obj)
                if kind is tensor_type and plain(obj):
                    encoder._tensors.append(obj)
                    return native_tensor, (len(encoder._tensors) - 1,)
                if kind is ndarray:
                    return encoder._reduce_array(obj)
                if kind is storage_type:
                    # Of a tensor that torch reduces itself: a subclass, a parameter, a type that DLPack does not have, ...
                    if (encoder._left and obj.data_ptr() in encoder._left) or (memory := whole(obj)) is None:
                        return NotImplemented
                    encoder._tensors.append(memory)
                    return storage, (len(encoder._tensors) - 1,)
                if isinstance(obj, tensor_type) and (found := spread(obj)) is not None:
                    encoder._leave(*found)
                return NotImplemented

        # Python's default protocol, as torch's queues use it: what NumPy makes of a foreign byte order depends on it.
        self._pickler = Pickler(self._buffer)

    def _reduce_array(self, array: np.ndarray[Any, Any]) -> Any:
        if array.nbytes < _SMALL or array.dtype.kind not in _RAW_KINDS or array.dtype.metadata or not array.dtype.isnative:
            return NotImplemented
        if len(self._tensors) >= _MANY and array.nbytes < _SMALL_OF_MANY:
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

    def _leave(self, address: int, nbytes: int) -> None:
        """Leaves a storage to torch, which moves it: arrays over its memory are copied before."""
        self._left.add(address)
        for at, array in enumerate(self._tensors):
            if type(array) is np.ndarray and address <= array.__array_interface__["data"][0] < address + nbytes:
                self._tensors[at] = array.copy(order="K")

    def _part(self, places: list[tuple[Any, ...]]) -> None:
        """Arrays that share memory with something else get their own, as pickling gives it to them."""
        end = 0
        #: Those whose memory is one piece with that of the one before them.
        together: list[int] = []
        for at in [*sorted(range(len(places)), key=lambda at: places[at][1]), None]:
            if at is not None and places[at][1] < end:
                together.append(at)
                end = max(end, places[at][1] + places[at][2])
                continue
            if len(together) > 1:
                for copied in together:
                    array = self._tensors[copied]
                    if type(array) is np.ndarray:
                        self._tensors[copied] = array.copy(order="K")
                        places[copied] = _place(self._tensors[copied])
            if at is not None:
                together, end = [at], places[at][1] + places[at][2]

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
            self._left.clear()
            if buffer.tell() > 1 << 20:
                self._buffer.seek(0)
                self._buffer.truncate()
