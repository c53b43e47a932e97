"""The iteration of a sampler inside another one, whoever wrote it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from feedrate import _randoms
from feedrate._hashing import mix
from feedrate._iterate import NextOnly, has_state
from feedrate._ranks import nested
from feedrate._state_errors import ResumeError
from feedrate.samplers._base import Cursor, Sampler, count, field

_NOTHING = object()
_AT_A_TIME = 1 << 16  # items of a user's sampler that are passed over


class Inner:
    """Passes through any sampler and can say where it stands.

    One of ours knows that itself. Another one is saved by its own ``state_dict()``, or that of its iterator, or both. One that has
    neither is iterated anew, with the random generators that it keeps as attributes, and the process-wide ones if it drew from them
    when it started, as they stood then, and passed over up to its place; a hash of its items tells when its order is another one.
    """

    def __init__(self, sampler: Iterable[Any], state: dict[str, Any] | None = None) -> None:
        self._sampler = sampler
        self._given = 0
        self._over = False
        self._hash = hashlib.blake2b(digest_size=8)
        self._generators = _generators(sampler)
        if state is not None:
            _restore(sampler, self._generators, state)
        self._before = {path: _randoms.read(generator) for path, generator in self._generators.items()}
        # The process-wide ones before it started; once it has, those from which it drew.
        self._globals: dict[str, Any] = {}
        self._started = isinstance(sampler, Sampler) or has_state(sampler)
        self._it: Iterator[Any]
        if state is not None and not isinstance(sampler, Sampler):  # one of ours was told by `load` already
            self._go_on(state)
            return
        if not self._started:
            self._globals = _process_wide()
        self._it = iter(sampler)

    def _go_on(self, state: dict[str, Any]) -> None:
        self._given = count(state, "position", type(self._sampler).__name__)
        self._over = bool(state.get("over"))
        if self._over and "hash" in state:
            self._it = iter(())
            return
        if "hash" in state and self._given:
            self._replay(state)
            return
        if not self._started:
            self._globals = _process_wide()
        self._it = iter(self._sampler)
        if "iterator" in state:
            self._it.load_state_dict(state["iterator"])  # type: ignore[attr-defined]
        elif self._over and next(self._it, _NOTHING) is not _NOTHING:
            # Its state was that of its next iteration already; others run out once more before that.
            self._it = iter(())
            load(self._sampler, state)

    def _replay(self, state: dict[str, Any]) -> None:
        self._started = True
        self._globals = state.get("globals", {})
        with _randoms.preserved():
            for name, generator in _randoms.process_wide().items():
                if name in self._globals:
                    _randoms.restore(generator, self._globals[name])
            self._it = iter(self._sampler)
            self._pass_over(state["hash"])

    def _note_draws(self) -> None:
        """It has given its first item: what it has not drawn from until then need not be in its state."""
        if not self._started:
            self._started = True
            now = _process_wide()
            self._globals = {name: before for name, before in self._globals.items() if before != now.get(name)}

    def _pass_over(self, expected: str) -> None:
        goal = self._given
        self._given = 0
        while self._given < goal and self.take(min(goal - self._given, _AT_A_TIME)):
            pass
        if self._given < goal or self._hash.hexdigest() != expected:
            name = type(self._sampler).__name__
            raise ResumeError(
                f"the state is behind {goal} items of a {name} (hash {expected}), which gives {self._given} (hash "
                f"{self._hash.hexdigest()}) now: load it with the data, seed and epoch that it was saved with, or give the {name} "
                "state_dict() and load_state_dict()"
            )

    @property
    def given(self) -> int:
        """A count that each item taken moves by one."""
        return self._it.given if isinstance(self._it, Cursor) else self._given

    def take(self, total: int, offset: int = 0, step: int = 1) -> list[Any]:
        """Passes over ``total`` items, fewer only at the end, and gives every ``step``-th of them from ``offset`` on."""
        if isinstance(self._it, Cursor):
            return self._it.take(total, offset, step)
        items = list(islice(NextOnly(self._it), total))
        self._given += len(items)
        self._over = len(items) < total
        self._note_draws()
        mix(self._hash, items)
        return items[offset::step] if offset or step > 1 else items

    def front(self, count: int) -> list[Any] | None:
        """The first items of the iteration, wherever it stands; ``None`` when they are not known any more."""
        return self._it.front(count) if isinstance(self._it, Cursor) else None

    def state(self) -> dict[str, Any]:
        """For ``load`` and the constructor."""
        if isinstance(self._it, Cursor):
            return self._it.state_dict()
        state = {"position": self._given, **_own_state(self._sampler)}
        if has_state(self._it):
            state["iterator"] = self._it.state_dict()  # type: ignore[attr-defined]
        elif "sampler" not in state:
            state["hash"] = self._hash.hexdigest()
            if self._started and self._globals and not self._over:
                state["globals"] = self._globals
        if self._generators:
            now = {path: _randoms.read(generator) for path, generator in self._generators.items()}
            state["generators"] = {path: _randoms.pack(mark) for path, mark in (now if self._over else self._before).items()}
        return {**state, "over": True} if self._over else state


def fresh(sampler: Iterable[Any]) -> dict[str, Any]:
    """How the next iteration of a sampler starts."""
    if isinstance(sampler, Sampler):
        return sampler._label(sampler._fresh(), begun=False)
    found = {path: _randoms.pack(_randoms.read(generator)) for path, generator in _generators(sampler).items()}
    return {"position": 0, **({"generators": found} if found else {}), **_own_state(sampler)}


def check(sampler: Iterable[Any], state: dict[str, Any], owner: str) -> dict[str, Any]:
    """The state of a sampler within that of its owner, verified as far as it can be. Changes nothing."""
    inner = field(state, "sampler", owner)
    name = type(sampler).__name__
    if isinstance(sampler, Sampler):
        return sampler._verified(inner)
    if not isinstance(inner, dict) or "type" in inner:
        theirs = inner["type"] if isinstance(inner, dict) else type(inner).__name__
        raise ResumeError(
            f"the state of the {owner} is around a {theirs}, this one is around a {name}: build it around the sampler that it was saved "
            "with"
        )
    if "sampler" in inner and not has_state(sampler):
        raise ResumeError(
            f"the state of the {owner} holds one of a sampler with state_dict(), and {name} has none: build it around the sampler that it "
            "was saved with"
        )
    generators = _generators(sampler)
    if generators:
        theirs = field(inner, "generators", name)
        for path, generator in generators.items():
            _randoms.check(generator, field(theirs, path, name), name)
    return inner


def load(sampler: Iterable[Any], state: dict[str, Any]) -> None:
    """Tells a sampler where its next iteration goes on; ``state`` is what ``check`` gave."""
    if isinstance(sampler, Sampler):
        sampler._apply(state)
        return
    _restore(sampler, _generators(sampler), state)
    if "sampler" in state:
        sampler.load_state_dict(state["sampler"])  # type: ignore[attr-defined]


def set_epoch(sampler: Iterable[Any], epoch: int) -> bool:
    """Tells a sampler its epoch if it can be told. False when it had a place from a state, which was in another epoch."""
    tell = getattr(sampler, "set_epoch", None)
    if not callable(tell):
        return True
    if not isinstance(sampler, Sampler):
        tell(epoch)
        return True
    pending = sampler._pending
    tell(epoch)
    return pending is sampler._pending


def forget(sampler: Iterable[Any]) -> None:
    """Drops the place that a sampler has from a state."""
    if isinstance(sampler, Sampler):
        sampler._forget()


def _own_state(sampler: Any) -> dict[str, Any]:
    return {"sampler": sampler.state_dict()} if has_state(sampler) else {}


def _generators(sampler: Any) -> dict[str, Any]:
    """The random generators that a sampler, or one inside it, keeps as attributes, when their states are ours to save."""
    return {} if isinstance(sampler, Sampler) or has_state(sampler) else _randoms.owned_by(nested({"sampler": sampler}))


def _restore(sampler: Any, generators: dict[str, Any], state: dict[str, Any]) -> None:
    for path, generator in generators.items():
        _randoms.restore(generator, state["generators"][path], type(sampler).__name__)


def _process_wide() -> dict[str, Any]:
    return {name: _randoms.pack(_randoms.read(generator)) for name, generator in _randoms.process_wide().items()}
