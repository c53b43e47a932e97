"""What users' iterators and datasets are asked for beyond iterating."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def has_state(obj: Any) -> bool:
    """Whether an object can save and restore where it is: torchdata's ``Stateful``."""
    return callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))


class NextOnly(Iterator[Any]):
    """The items of an iterator, which is asked for nothing but the next one: there are some whose ``__iter__`` starts over, and
    ``for`` and ``islice`` call it. Goes on behind an error, if the iterator does."""

    __slots__ = ("_of",)

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._of = iterator

    def __next__(self) -> Any:
        return next(self._of)
