"""Finds the culprit when collation or pickling has failed. Slow, and called only then."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

_DEPTH = 16


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is None:
        return type(value).__name__
    return f"{type(value).__name__} of shape {tuple(shape)} and type {getattr(value, 'dtype', '?')}"


def _differ(samples: list[Any], path: str, depth: int) -> str | None:
    first = samples[0]
    if depth > _DEPTH:
        return None
    if isinstance(first, Mapping):
        for i, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                return f"at {path or 'the sample'}: {_kind(first)} in sample 0, {_kind(sample)} in sample {i}"
            for key in first:
                if key not in sample:
                    return f"at {path}[{key!r}]: present in sample 0, missing in sample {i}"
        for key in first:
            found = _differ([sample[key] for sample in samples], f"{path}[{key!r}]", depth + 1)
            if found:
                return found
        return None
    if isinstance(first, Sequence) and not isinstance(first, str | bytes):
        for i, sample in enumerate(samples):
            if not isinstance(sample, Sequence):
                return f"at {path or 'the sample'}: {_kind(first)} in sample 0, {_kind(sample)} in sample {i}"
            if len(sample) != len(first):
                return f"at {path or 'the sample'}: length {len(first)} in sample 0, {len(sample)} in sample {i}"
        for k in range(len(first)):
            found = _differ([sample[k] for sample in samples], f"{path}[{k}]", depth + 1)
            if found:
                return found
        return None
    if first is None:
        return f"at {path or 'the sample'}: None in sample 0, which cannot be collated"
    for i, sample in enumerate(samples):
        same_shape = getattr(sample, "shape", None) == getattr(first, "shape", None)
        numbers = isinstance(sample, int | float) and isinstance(first, int | float)
        if not same_shape or (type(sample) is not type(first) and not numbers):
            return f"at {path or 'the sample'}: {_kind(first)} in sample 0, {_kind(sample)} in sample {i}"
    return None


def collation(data: Any, indices: Any) -> str | None:
    """Where the samples of a batch first differ in structure, as text for a note; ``None`` when they do not.

    ``indices`` are their indices in the dataset, if known.
    """
    try:
        found = _differ(list(data), "", 0)
    except Exception:
        return None
    if found is None:
        return None
    try:
        number = int(found.rsplit("sample ", 1)[1])
        known = f" (dataset index {list(indices)[number]!r})"
    except (ValueError, IndexError, TypeError):
        known = ""
    return f"feedrate: the samples differ {found}{known}"


def _unpicklable(value: Any, path: str, depth: int) -> str | None:
    try:
        pickle.dumps(value)
    except Exception as error:
        inside: list[tuple[str, Any]] = []
        if isinstance(value, dict):
            inside = [(f"{path}[{key!r}]", item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            inside = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            inside = [(f"{path}.{name}", item) for name, item in vars(value).items()]
        if depth < _DEPTH:
            for name, item in inside[:1000]:
                found = _unpicklable(item, name, depth + 1)
                if found:
                    return found
        return f"{path} ({type(value).__qualname__}): {error}"
    return None


def pickling(parts: dict[str, Any]) -> str | None:
    """The path of the first thing in ``parts`` that cannot be pickled, with the reason; ``None`` when all can."""
    for name, value in parts.items():
        found = _unpicklable(value, name, 0)
        if found:
            return found
    return None
