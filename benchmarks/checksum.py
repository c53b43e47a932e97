"""One number for a sequence of batches, the same for torch tensors and NumPy arrays with the same contents."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np


def update(crc: int, value: Any) -> int:
    """The running CRC-32 after `value`: structure, types, shapes and bytes all count."""
    if hasattr(value, "detach"):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        head = f"{value.dtype.str}{value.shape}".encode()
        return zlib.crc32(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data, zlib.crc32(head, crc))
    if isinstance(value, dict):
        crc = zlib.crc32(b"{", crc)
        for key, item in value.items():
            crc = update(zlib.crc32(repr(key).encode(), crc), item)
        return crc
    if isinstance(value, list | tuple):
        crc = zlib.crc32(b"[", crc)
        for item in value:
            crc = update(crc, item)
        return crc
    return zlib.crc32(repr(value).encode(), crc)
