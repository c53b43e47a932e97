"""What all samplers share: iterations that know where they stand, and states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from operator import index, length_hint
from typing import TYPE_CHECKING, Any

from feedrate._errors import short
from feedrate._state_errors import ResumeError

if TYPE_CHECKING:
    from feedrate._native import Order

PAGE = 1024  # indices that become Python numbers at a time
FORMAT = 1  # of states

# What to do about a difference, where it is not an argument of that name.
_FIXES = {
    "size": "load it with the data that it was saved with",
    "indices": "build the sampler from the indices that it was saved with, in the same order",
    "weights": "build the sampler from the weights that it was saved with",
    "lengths": "build the sampler from the lengths that it was saved with",
    "samplers": "build it from as many samplers as it was saved with",
    "generator given": "give the sampler a generator or a seed if it had one when it was saved, and none if it had none",
}


class Run(ABC):
    """An iteration that has begun. Items leave it a page at a time.

    ``position`` counts the items up to the end of the last page, and ``ready`` holds those of them that nobody has taken yet.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.ready: Iterator[Any] = iter(())

    @property
    def given(self) -> int:
        """Items that were taken so far."""
        return self.position - length_hint(self.ready)

    @abstractmethod
    def page(self) -> list[Any]:
        """The items after ``position``, which it moves; none at the end."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Where it stands, ``given`` as ``"position"``."""

    def take(self, total: int, offset: int = 0, step: int = 1) -> list[Any]:
        """Passes over ``total`` items, fewer only at the end, and gives every ``step``-th of them from ``offset`` on."""
        items = list(islice(self.ready, total))
        while len(items) < total and (page := self.page()):
            self.ready = iter(page)
            items += islice(self.ready, total - len(items))
        return items[offset::step]

    def front(self, count: int) -> list[Any] | None:
        """The first items of the iteration, wherever it stands; ``None`` when they are not known any more."""
        return None


class OrderRun(Run):
    """Through an order that is known as a whole. ``facts`` go into the state as they are."""

    def __init__(self, order: Order, stop: int, position: int = 0, facts: dict[str, Any] | None = None) -> None:
        super().__init__(min(position, stop))
        self.order = order
        self.stop = stop
        self.facts = facts or {}

    def pick(self, start: int, stop: int, step: int) -> list[Any]:
        """The items at these positions, which lie below ``self.stop``."""
        return self.order.take(start, stop, step)

    def page(self) -> list[Any]:
        """Up to ``PAGE`` items."""
        start = self.position
        self.position = min(start + PAGE, self.stop)
        return self.pick(start, self.position, 1)

    def take(self, total: int, offset: int = 0, step: int = 1) -> list[Any]:
        """Straight from the order."""
        start = self.given
        self.ready = iter(())
        self.position = min(start + total, self.stop)
        return self.pick(start + offset, self.position, step)

    def front(self, count: int) -> list[Any] | None:
        """From the order."""
        return self.pick(0, min(count, self.stop), 1)

    def state(self) -> dict[str, Any]:
        """Position and facts."""
        return {"position": self.given, **self.facts}


class Cursor(Iterator[Any]):
    """What ``iter(sampler)`` gives.

    Nothing is drawn before the first ``next()``. ``state_dict()`` is exact after any ``next()``; ``load_state_dict()`` moves this
    iterator there.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._reset(sampler)

    def _reset(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._pending = sampler._pending
        sampler._run = None  # the sampler's state is that of the iterator made last
        self._known = sampler._prepare()
        self._run: Run | None = None
        self._over = False
        self._ready: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        for item in self._ready:
            return item
        if self._over:
            raise StopIteration
        run = self._begun()
        page = run.page()
        if not page:
            self._end(run)
            raise StopIteration
        self._ready = run.ready = iter(page)
        return next(self._ready)

    def take(self, total: int, offset: int = 0, step: int = 1) -> list[Any]:
        """Passes over ``total`` items, fewer only at the end, and gives every ``step``-th of them from ``offset`` on."""
        if self._over:
            return []
        run = self._begun()
        goal = run.given + total
        items = run.take(total, offset, step)
        self._ready = run.ready
        if run.given < goal:
            self._end(run)
        return items

    def front(self, count: int) -> list[Any] | None:
        """The first items of the iteration, wherever it stands; ``None`` when they are not known any more."""
        return self._begun().front(count)

    @property
    def given(self) -> int:
        """A count that each item taken moves by one. Begins the iteration."""
        return self._begun().given

    def _begun(self) -> Run:
        if self._run is None:
            sampler = self._sampler
            pending = self._pending if self._pending is sampler._pending else None
            self._run = sampler._run = sampler._begin(self._known, pending)
            if pending is not None:
                sampler._pending = None
        return self._run

    def _end(self, run: Run) -> None:
        self._over = True
        if self._sampler._run is run:
            self._sampler._run = None

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: small and JSON-safe. Draws nothing."""
        sampler = self._sampler
        if self._run is not None:
            return sampler._label(self._run.state(), begun=True)
        return sampler._label(sampler._fresh(), begun=False) if self._pending is None else dict(self._pending)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to where ``state`` was taken. Raises :class:`feedrate.ResumeError` when it is of other data."""
        self._sampler.load_state_dict(state)
        self._reset(self._sampler)


class Sampler(ABC):
    """Base of feedrate's samplers: an iterable of indices, or of lists of indices, whose iterations can be taken up again.

    ``state_dict()`` tells where the iterator that was made last stands, or, when it is over or has not begun, how an iteration
    starts. ``load_state_dict()`` affects the next ``iter()``. One sampler belongs to one thread at a time.
    """

    _pending: dict[str, Any] | None = None
    _run: Run | None = None

    def __iter__(self) -> Cursor:
        return Cursor(self)

    @abstractmethod
    def _begin(self, known: Any, pending: dict[str, Any] | None) -> Run:
        """Begins an iteration, or goes on with one. ``known`` is what ``_prepare`` gave at ``iter()``."""

    def _prepare(self) -> Any:
        """What is settled at ``iter()`` and not at the first ``next()``."""
        return None

    @abstractmethod
    def _describe(self) -> dict[str, Any]:
        """The data and arguments on which the order depends; a state is refused when one of them differs."""

    def _fresh(self) -> dict[str, Any]:
        """How the next iteration starts."""
        return {"position": 0}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        """Checks what is special to the class; gives the state, translated where that is possible."""
        return state

    def _restore(self, state: dict[str, Any]) -> None:  # noqa: B027, most have nothing to do
        """What a state changes at once and not at the next iteration."""

    def _forget(self) -> None:
        """Drops the place of a state, which was in another epoch."""
        self._pending = None

    def _label(self, state: dict[str, Any], *, begun: bool) -> dict[str, Any]:
        return {"type": type(self).__name__, "format": FORMAT, "begun": begun, **self._describe(), **state}

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands: small and JSON-safe. Draws nothing."""
        if self._pending is not None:
            return dict(self._pending)
        run = self._run
        return self._label(self._fresh(), begun=False) if run is None else self._label(run.state(), begun=True)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next ``iter()`` goes on where ``state`` was taken.

        Raises :class:`feedrate.ResumeError` when it was taken from other data or arguments.
        """
        self._apply(self._verified(state))

    def _verified(self, state: Any) -> dict[str, Any]:
        """A copy of the state, translated to this sampler. Changes nothing."""
        name = type(self).__name__
        if not isinstance(state, dict):
            raise ResumeError(f"a state of a {name} is a dict, got {type(state).__name__}: load what state_dict() gave")
        if state.get("type") != name:
            raise ResumeError(
                f"the state is of type {state.get('type')!r}, this sampler is a {name}: load a state that a {name} gave"
            )
        if state.get("format") != FORMAT:
            raise ResumeError(
                f"the state has format {state.get('format')!r}, this version of feedrate reads {FORMAT}: load it with the version "
                "that saved it"
            )
        for key, mine in self._describe().items():
            theirs = field(state, key, name)
            if theirs != mine:
                fix = _FIXES.get(key, f"build it with {key}={short(theirs)}")
                raise ResumeError(f"the state of the {name} has {key}={short(theirs)}, here it is {short(mine)}: {fix}")
        count(state, "position", name)
        if not isinstance(field(state, "begun", name), bool):
            raise ResumeError(
                f"the state of the {name} has begun={short(state['begun'])}: load what state_dict() gave, unchanged"
            )
        return self._check(dict(state))

    def _apply(self, state: dict[str, Any]) -> None:
        """Takes a verified state."""
        self._restore(state)
        self._run = None
        self._pending = state if state["begun"] else None

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins anew: iterations do not travel."""
        state = self.__dict__.copy()
        state.pop("_run", None)
        return state


class EpochSampler(Sampler):
    """A sampler whose order depends on an epoch number.

    ``epoch`` is that of the last iteration that was begun, or that of the next one after ``set_epoch()``. Without ``set_epoch()`` each
    iteration that gives at least one item is an epoch, so that no order comes twice.
    """

    _epoch = 0
    _used = False

    @property
    def epoch(self) -> int:
        """The epoch's number, from 0."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        epoch = index(epoch)
        if self._pending is not None and epoch != self._pending["epoch"]:
            self._forget()
        self._epoch = epoch
        self._used = False

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch. After ``load_state_dict()`` the epoch of the state goes on, and another one starts at its
        beginning."""
        self.epoch = epoch

    def _begin_epoch(self) -> int:
        self._epoch += self._used
        self._used = True
        return self._epoch

    def _fresh(self) -> dict[str, Any]:
        return {"position": 0, "epoch": self._epoch + self._used}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        integer(state, "epoch", type(self).__name__)
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        self._epoch = state["epoch"]
        self._used = False


def field(state: dict[str, Any], key: str, name: str) -> Any:
    """A value that a state must have."""
    try:
        return state[key]
    except KeyError:
        raise ResumeError(f"the state of the {name} has no {key!r}: load what state_dict() gave, unchanged") from None


def integer(state: dict[str, Any], key: str, name: str) -> int:
    """A whole number that a state must have."""
    value = field(state, key, name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ResumeError(
            f"the state of the {name} has {key}={short(value)}, where a whole number belongs: load what state_dict() gave"
        )
    return value


def count(state: dict[str, Any], key: str, name: str) -> int:
    """A number of items that a state must have."""
    value = integer(state, key, name)
    if value < 0:
        raise ResumeError(f"the state of the {name} has {key}={value}, which cannot be below 0: load what state_dict() gave")
    return value


def check_seed(state: dict[str, Any], seed: int | None, name: str) -> None:
    """That a state's seed is the one that was asked for; ``None`` takes any."""
    theirs = count(state, "seed", name)
    if seed is not None and theirs != seed:
        raise ResumeError(
            f"the state of the {name} has seed={theirs}, here it is {seed}: build it with seed={theirs}, or without a seed, which takes "
            "that of the state"
        )


def within(state: dict[str, Any], total: int, name: str) -> dict[str, Any]:
    """That a state's position is one of an iteration of ``total`` items."""
    if state["position"] > total:
        raise ResumeError(
            f"the state of the {name} has position={state['position']}, an iteration has {total} items: load what state_dict() gave"
        )
    return state


def positive(value: Any) -> bool:
    """Whether an argument is an integer above 0, by torch's rule."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
