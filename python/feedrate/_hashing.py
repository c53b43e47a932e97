"""Hashes of what samplers give, which tell one order from another."""

from __future__ import annotations

import pickle
from array import array
from typing import Any


def mix(digest: Any, items: Any) -> None:
    """Adds the values of index objects to a running hash: the same in pieces of any size, in any process, and for NumPy's and torch's
    numbers as for Python's."""
    try:
        digest.update(array("q", items).tobytes())
    except (TypeError, OverflowError):
        for item in items:
            try:
                _add(digest, item)
            except Exception:
                # Of the user's making, and perhaps nobody wants a state.
                digest.update(type(item).__qualname__.encode())


def _add(digest: Any, item: Any) -> None:
    if hasattr(item, "tolist"):  # NumPy's scalars and arrays, tensors: by their values, with no import
        item = item.tolist()
    if isinstance(item, list | tuple):
        digest.update(b"[%d:" % len(item))
        mix(digest, item)
        return
    if isinstance(item, int):
        # Those that are too long for the array, and the others as they are in one.
        fits = -(2**63) <= item < 2**63
        digest.update(array("q", (item,)).tobytes() if fits else b"%d;" % item)
        return
    digest.update(f"{type(item).__qualname__}:{_text(item)};".encode(errors="surrogatepass"))


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
        return repr(pickle.dumps(item))
    except Exception:
        return ""
