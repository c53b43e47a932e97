"""What users' iterators and datasets are asked for beyond iterating."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any


def has_state(obj: Any) -> bool:
    """Whether an object can save and restore where it is: torchdata's ``Stateful``. A module of torch has its weights there."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.nn.Module):
        return False
    return callable(attribute(obj, "state_dict")) and callable(attribute(obj, "load_state_dict"))


def attribute(obj: Any, name: str) -> Any:
    """It, or ``None``; also where ``__getattr__`` or a property is the user's and raises."""
    try:
        return getattr(obj, name, None)
    except Exception:
        return None


class Unsaved:
    """Stands for a state that could not be had, until somebody asks for it."""

    def __init__(self, error: Exception) -> None:
        self.why = f"{type(error).__name__}: {error}"

    def __reduce__(self) -> Any:
        return _unsaved, (self.why,)


def _unsaved(why: str) -> Unsaved:
    made = Unsaved.__new__(Unsaved)
    made.why = why
    return made


def pickled(make: Callable[[], Any]) -> bytes:
    """A state of the user's as bytes; of an :class:`Unsaved` where it fails or cannot be pickled: nobody may want it."""
    try:
        return pickle.dumps(make())
    except Exception as error:
        return pickle.dumps(Unsaved(error))


def copied(make: Callable[[], Any]) -> Any:
    """The same as an object of its own."""
    try:
        return copy.deepcopy(make())
    except Exception as error:
        return Unsaved(error)


class Late(Iterator[Any]):
    """An iterator that is made when it is first asked. Where making it fails, or is interrupted, the next call makes it."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make
        self._made: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return next(self._made)


class NextOnly(Iterator[Any]):
    """The items of an iterator, which is asked for nothing but the next one: there are some whose ``__iter__`` starts over, and
    ``for`` and ``islice`` call it. Goes on behind an error, if the iterator does."""

    __slots__ = ("_of",)

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._of = iterator

    def __next__(self) -> Any:
        return next(self._of)
