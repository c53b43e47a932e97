"""What tells one sample from another: ids made of the content of a batch."""

from __future__ import annotations

import hashlib
import math
import pickle
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

#: Longest text, and longest tuple of numbers, that stands for itself in an id.
_TEXT, _FIELDS = 40, 4


def sample_ids(batch: Any) -> list[Any]:
    """One id for each sample of a batch, by its content: a number or a short text stands for itself, everything else for a hash.

    A batch is split as default collation puts it together: tensors and arrays along their first axis, mappings and tuples by their
    fields, other lists by their items. What cannot be split is one sample. Raises ``TypeError`` for content that cannot be pickled.
    """
    samples = _split(batch)
    return [_id(batch)] if samples is None else [_id(sample) for sample in samples]


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _split(batch: Any) -> list[Any] | None:
    if isinstance(batch, np.ndarray) or _is_tensor(batch):
        return list(batch) if batch.ndim > 0 else None
    if isinstance(batch, Mapping):
        return _rows(list(batch.values()))
    if isinstance(batch, (list, tuple)):
        if not batch:
            return []
        if all(isinstance(v, (np.ndarray, Mapping, list, tuple)) or _is_tensor(v) for v in batch):
            rows = _rows(list(batch))
            if rows is not None:
                return rows
        return None if hasattr(batch, "_fields") else list(batch)
    return None


def _rows(columns: list[Any]) -> list[Any] | None:
    """Columns of one length, turned into rows."""
    split = [_split(column) for column in columns]
    lengths = {len(part) for part in split if part is not None}
    if len(lengths) != 1:
        return None
    (n,) = lengths
    # What has no rows belongs to each of them.
    return [tuple(column if part is None else part[i] for column, part in zip(columns, split, strict=True)) for i in range(n)]


def _scalar(value: Any) -> Any:
    """A value that can stand for itself, or ``None``."""
    if isinstance(value, np.generic) or ((isinstance(value, np.ndarray) or _is_tensor(value)) and value.ndim == 0):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= _TEXT):
        return value
    return None


def _id(sample: Any) -> Any:
    plain = _scalar(sample)
    if plain is not None:
        return plain
    if isinstance(sample, tuple) and 0 < len(sample) <= _FIELDS:
        fields = tuple(map(_scalar, sample))
        if all(field is not None for field in fields):
            return fields
    digest = hashlib.blake2b(digest_size=6)
    _mix(digest, sample)
    return f"#{digest.hexdigest()}"


def _mix(digest: Any, value: Any) -> None:
    """Adds a value to a hash, so that equal content gives the same whatever made it."""
    if _is_tensor(value):
        flat = value.detach().cpu().reshape(-1).contiguous()
        digest.update(f"t{value.dtype}{tuple(value.shape)}".encode())
        digest.update(flat.view(sys.modules["torch"].uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"a{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        digest.update(b"m%d" % len(value))
        for key, item in value.items():
            _mix(digest, key)
            _mix(digest, item)
    elif isinstance(value, (list, tuple)):
        digest.update(b"s%d" % len(value))
        for item in value:
            _mix(digest, item)
    elif isinstance(value, (str, bytes, int, float, bool, complex, type(None))):
        digest.update(f"{type(value).__name__}{value!r};".encode())
    else:
        try:
            digest.update(pickle.dumps(value))
        except Exception as error:
            raise TypeError(
                f"a batch holds a {type(value).__name__}, which cannot be compared by its content ({error}): give ids=, a function "
                "that makes a list of sample ids out of a batch"
            ) from error
