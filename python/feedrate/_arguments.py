"""What steps of pipelines are given, checked where they are defined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


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


def padding(step: str, given: Any) -> tuple[int | float, list[tuple[str, int | float]]]:
    """A number for all fields, or numbers by name; of fields that are not named it is 0."""

    def number(value: Any) -> int | float:
        if isinstance(value, (int, np.integer, np.bool_)):
            whole = int(value)
            if not -(2**63) <= whole < 2**63:
                raise ValueError(f"{step}() takes padding of 64 bits at most, but got {whole}")
            return whole
        if isinstance(value, (float, np.floating)):
            return float(value)
        raise TypeError(f"{step}() takes a number as padding, or a dict of numbers by field, but got {given!r}")

    if not isinstance(given, Mapping):
        return number(given), []
    names(step, tuple(given))
    return 0, [(name, number(value)) for name, value in given.items()]


def count(step: str, value: Any, smallest: int) -> int:
    """A whole number from ``smallest`` on, also one of NumPy's."""
    try:
        number = int(value.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"{step}() takes a whole number, but got {value!r}") from None
    if number < smallest:
        raise ValueError(f"{step}() takes a whole number from {smallest} on, but got {number}")
    return number
