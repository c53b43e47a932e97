"""Hashes of what samplers give, which tell one order from another."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


def mix(digest: Any, items: Any) -> None:
    """Adds the values of index objects to a running hash: the same in pieces of any size, in any process, and for NumPy's and torch's
    numbers as for Python's."""
    digest.update(_all(items))


def _all(items: Any) -> bytes:
    try:
        return array("q", items).tobytes()
    except (TypeError, OverflowError):
        return b"".join(map(_item, items))


def _item(item: Any) -> bytes:
    try:
        return _one(item)
    except Exception:
        # Of the user's making, and perhaps nobody wants a state.
        return _again(_one, item, type(item).__qualname__.encode())


def _again(make: Callable[[Any], _T], item: Any, otherwise: _T) -> _T:
    """What ``make`` gives where it has failed once, which may be what a signal's handler raised meanwhile."""
    try:
        return make(item)
    except Exception:
        return otherwise


def _one(item: Any) -> bytes:
    if hasattr(item, "tolist"):  # NumPy's scalars and arrays, tensors: by their values, with no import
        item = item.tolist()
    if isinstance(item, list | tuple):
        return b"[%d:" % len(item) + _all(item)
    if isinstance(item, int):
        # Those that are too long for the array, and the others as they are in one.
        fits = -(2**63) <= item < 2**63
        return array("q", (item,)).tobytes() if fits else b"%d;" % item
    return f"{type(item).__qualname__}:{_text(item)};".encode(errors="surrogatepass")


def _text(item: Any) -> str:
    """A value as text that holds no address."""
    if hasattr(item, "tolist"):
        item = item.tolist()
    if isinstance(item, str | bytes):
        return repr(item)
    if isinstance(item, dict):
        return repr({_text(key): _text(value) for key, value in item.items()})
    if isinstance(item, set | frozenset):
        return repr(sorted(map(_text, item)))
    text = repr(item)
    if " at 0x" not in text:
        return text
    try:
        return _pickled(item)
    except Exception:
        return _again(_pickled, item, "")


def _pickled(item: Any) -> str:
    return repr(pickle.dumps(item))
