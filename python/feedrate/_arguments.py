"""What steps of pipelines are given, checked where they are defined."""

from __future__ import annotations

from typing import Any


def names(step: str, fields: tuple[Any, ...]) -> None:
    """Names of fields."""
    for field in fields:
        if not isinstance(field, str):
            raise TypeError(f'{step}() takes names, each an argument of its own ({step}("a", "b")), but got {field!r}')


def function(step: str, given: Any) -> Any:
    """It, if it can be called."""
    if not callable(given):
        raise TypeError(f"{step}() takes a function, but got {given!r}")
    return given


def count(step: str, value: Any, smallest: int) -> int:
    """A whole number from ``smallest`` on, also one of NumPy's."""
    try:
        number = int(value.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"{step}() takes a whole number, but got {value!r}") from None
    if number < smallest:
        raise ValueError(f"{step}() takes a whole number from {smallest} on, but got {number}")
    return number
