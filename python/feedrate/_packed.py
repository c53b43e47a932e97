"""A list whose items lie in two arrays instead of a million Python objects."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np


class PackedList(Sequence[Any]):
    """An immutable list of picklable items, kept pickled in one array of bytes.

    For the metadata of a dataset (paths, labels, captions). A list of a million Python objects is copied page by page into every
    forked worker, because reading an object writes its reference count; this one stays shared, and goes to spawned workers as two
    arrays. An item is unpickled each time it is read (about a microsecond for a small one).
    """

    def __init__(self, items: Iterable[Any]) -> None:
        lengths, parts = [0], bytearray()
        for item in items:
            parts += pickle.dumps(item, 5)
            lengths.append(len(parts))
        self._ends = np.asarray(lengths, dtype=np.int64)
        self._bytes = np.frombuffer(bytes(parts), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        n = len(self)
        at = index + n if index < 0 else index
        if not 0 <= at < n:
            raise IndexError(f"index {index} is out of range for a PackedList of {n} items")
        start, end = self._ends[at : at + 2].tolist()
        return pickle.loads(self._bytes[start:end].data)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"PackedList({len(self)} items, {self._bytes.nbytes + self._ends.nbytes} bytes)"
