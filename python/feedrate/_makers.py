"""The native definition of each step of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedrate import _native
from feedrate._context import Alone


class _Getter:
    """``items[index]``, as a step."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __call__(self, index: int) -> Any:
        return self.items[index]


def _items(_: Any, args: Any) -> Any:
    items, kind = args
    return _native.Pipeline.numbers(type(items).__name__, len(items), kind).map("[index]", _Getter(items))


def _iterable(_: Any, args: Any) -> Any:
    items, kind = args
    return _native.Pipeline.iterable(type(items).__name__, Alone(items), kind)


def _step(name: str) -> Any:
    return lambda parents, args: getattr(parents[0]._native, name)(*args)


def _joined(name: str) -> Any:
    return lambda parents, args: getattr(_native.Pipeline, name)([p._native for p in parents], *args)


def _batch(parents: Any, args: Any) -> Any:
    size, drop_last, padding, collate = args
    return parents[0]._native.batch(size, drop_last=drop_last, padding=padding, collate=collate)


def _pack(parents: Any, args: Any) -> Any:
    length, opened, fit, long, fields, padding = args
    return parents[0]._native.pack(length, open=opened, fit=fit, long=long, fields=fields, padding=padding)


def _gather(parents: Any, args: Any) -> Any:
    name, key, rule, drop_last, padding, collate = args
    return parents[0]._native.gather(name, key, rule, drop_last=drop_last, padding=padding, collate=collate)


#: Steps that run Python code.
PYTHON = frozenset({"items", "iterable", "map", "filter", "flat_map", "sort_within", "gather"})

#: Of each step what makes its native definition, of the pipelines before it and its arguments.
MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "open": lambda _, args: _native.Pipeline.open(*args),
    "items": _items,
    "iterable": _iterable,
    "same": lambda parents, _: parents[0]._native,
    "batch": _batch,
    "pack": _pack,
    "gather": _gather,
    **{
        name: _step(name)
        for name in (
            *(
                "map",
                "filter",
                "flat_map",
                "select",
                "without",
                "shuffle_parts",
                "shuffle_all",
                "shuffle",
                "unbatch",
                "sort_within",
            ),
            *("take", "skip", "repeat", "cache", "prefetch", "branch"),
        )
    },
    **{name: _joined(name) for name in ("zip", "concat", "interleave", "mix", "ready")},
    "image": _step("map"),
}
