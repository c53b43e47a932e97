"""A value's exact content as plain, comparable data: types, dtypes, shapes, strides and bytes."""

from __future__ import annotations

import array
import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def canon(value: Any) -> Any:
    """What two loaders must agree on for one batch. NaNs compare by their bits."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.Tensor):
        return _tensor(kind, value)
    if isinstance(value, np.ndarray):
        content = value.tolist() if value.dtype == object else np.ascontiguousarray(value).tobytes()
        return (kind, str(value.dtype), value.shape, bool(value.flags.writeable), content)
    if isinstance(value, np.generic):
        return (kind, str(value.dtype), value.tobytes())
    if isinstance(value, Mapping):
        extra = sorted(getattr(value, "__dict__", {}).keys() - {"data"})
        return (kind, [(canon(k), canon(v)) for k, v in value.items()], extra)
    if isinstance(value, (str, bytes, bytearray, int, float, complex, bool, type(None))):
        return (kind, repr(value))
    if isinstance(value, (type, enum.Enum)):
        return (kind, repr(value))
    if isinstance(value, array.array):
        return (kind, value.typecode, value.tolist())
    if isinstance(value, (set, frozenset)):
        return (kind, sorted(map(repr, value)))
    if isinstance(value, BaseException):
        return (kind, str(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (kind, [(f.name, canon(getattr(value, f.name))) for f in dataclasses.fields(value)])
    if hasattr(value, "__iter__") and hasattr(value, "__len__"):
        return (kind, [canon(v) for v in value])
    return (kind, canon(vars(value)) if hasattr(value, "__dict__") else repr(value))


def _tensor(kind: str, t: torch.Tensor) -> Any:
    if t.layout != torch.strided:
        return (kind, str(t.layout), str(t.dtype), tuple(t.shape), canon(t.to_dense()))
    strides = tuple(t.stride()) if t.numel() > 1 else None
    plain = torch.empty(t.numel(), dtype=t.dtype).copy_(t.detach().reshape(-1))
    raw = plain.view(torch.uint8).numpy().tobytes() if t.numel() else b""
    return (kind, str(t.dtype), tuple(t.shape), strides, t.requires_grad, raw)


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors inside a value."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [t for v in value.values() for t in tensors(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []
