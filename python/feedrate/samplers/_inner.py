"""The iteration of a sampler inside another one, whoever wrote it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from feedrate._iterate import has_state, next_only
from feedrate._state_errors import ResumeError
from feedrate.samplers._base import Cursor, Sampler, count, field
from feedrate.samplers._streams import GeneratorStream, Stream, decode, encode

_NOTHING = object()
_AT_A_TIME = 1 << 16  # items of a user's sampler that are passed over


class Inner:
    """Passes through any sampler and can say where it stands.

    One of ours knows that itself. Another one is saved by its own ``state_dict()``, or that of its iterator, or both. One that has
    neither is iterated anew, from where the ``torch.Generator`` that it keeps as ``generator`` stood if it has one, and passed over up
    to its place; a hash of its items tells when its order is another one.
    """

    def __init__(self, sampler: Iterable[Any], state: dict[str, Any] | None = None) -> None:
        self._sampler = sampler
        self._given = 0
        self._over = False
        self._hash = hashlib.blake2b(digest_size=8)
        self._stream = None if isinstance(sampler, Sampler) else _stream(sampler)
        if state is not None and self._stream is not None:
            self._stream.restore(decode(state["generator"], type(sampler).__name__))
        self._start = None if self._stream is None else self._stream.mark()
        self._it: Iterator[Any]
        if state is None or isinstance(sampler, Sampler):
            self._it = iter(sampler)  # one of ours was told by `load` already
        else:
            self._go_on(state)

    def _go_on(self, state: dict[str, Any]) -> None:
        self._given = count(state, "position", type(self._sampler).__name__)
        self._over = bool(state.get("over"))
        if self._over and "hash" in state:
            self._it = iter(())
            return
        self._it = iter(self._sampler)
        if "iterator" in state:
            self._it.load_state_dict(state["iterator"])  # type: ignore[attr-defined]
        elif "hash" in state:
            self._pass_over(state["hash"])
        elif self._over and next(self._it, _NOTHING) is not _NOTHING:
            # Its state was that of its next iteration already; others run out once more before that.
            self._it = iter(())
            load(self._sampler, state)

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
        items = list(islice(next_only(self._it), total))
        self._given += len(items)
        self._over = len(items) < total
        self._hash.update("".join(map(_name, items)).encode(errors="surrogatepass"))
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
        if self._stream is not None and self._start is not None:
            state["generator"] = encode(self._stream.mark() if self._over else self._start)
        return {**state, "over": True} if self._over else state


def fresh(sampler: Iterable[Any]) -> dict[str, Any]:
    """How the next iteration of a sampler starts."""
    if isinstance(sampler, Sampler):
        return sampler._label(sampler._fresh(), begun=False)
    stream = _stream(sampler)
    generator = {} if stream is None else {"generator": encode(stream.mark())}
    return {"position": 0, **generator, **_own_state(sampler)}


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
    if _stream(sampler) is not None:
        decode(field(inner, "generator", name), name)
    return inner


def load(sampler: Iterable[Any], state: dict[str, Any]) -> None:
    """Tells a sampler where its next iteration goes on; ``state`` is what ``check`` gave."""
    if isinstance(sampler, Sampler):
        sampler._apply(state)
        return
    stream = _stream(sampler)
    if stream is not None:
        stream.restore(decode(state["generator"], type(sampler).__name__))
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


def _stream(sampler: Any) -> Stream | None:
    """The stream of the generator that a sampler keeps, as torch's do, when its state is ours to save."""
    torch = sys.modules.get("torch")
    generator = getattr(sampler, "generator", None)
    if torch is None or not isinstance(generator, torch.Generator) or has_state(sampler):
        return None
    return GeneratorStream(generator)


def _name(item: Any) -> str:
    """For the hash: the value where it tells, and not an address."""
    return f"{item!r}\n" if isinstance(item, int | str | list | tuple) else f"{type(item).__name__}\n"
