"""The plan of one epoch: its index objects, and where in them the user has come to."""

from __future__ import annotations

import copy
import hashlib
import operator
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from feedrate import _orders, _randoms
from feedrate._hashing import mix
from feedrate._iterate import Late, NextOnly, Unsaved, copied, has_state
from feedrate._ranks import Empty, Ranks
from feedrate._state_errors import ResumeError

_NOTHING = object()

#: In the place of an iterator's state: that of its sampler.
_SAME = "as the sampler's"

#: Indices that become Python numbers at a time when batching is off.
PAGE = 1024


class Plan(ABC):
    """Gives the index objects of an epoch, once. ``iter()`` of it is what a feed is begun with; nothing is drawn before its first
    ``next()``."""

    #: Step from one sample of an index object to the next, in positions of the epoch.
    stride = 1

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    @abstractmethod
    def position(self, ordinal: int) -> int:
        """Position in the epoch of the first sample of the index object at ``ordinal``, the last that ``iter()`` gave."""

    def mask(self, ordinal: int) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Which samples of the index object at ``ordinal`` are no padding; ``None`` where samples are not known."""
        return None

    @abstractmethod
    def state(self, delivered: int) -> dict[str, Any]:
        """What a plan of the same loader needs to go on behind ``delivered`` index objects, counted from where this one began."""


class Cut:
    """How an order is cut into index objects: batches of a size, or single indices (``batch_size`` None)."""

    def __init__(self, batch_size: int | None, drop_last: bool) -> None:
        self.batch_size = batch_size
        self.drop_last = drop_last

    @property
    def step(self) -> int:
        """Samples in an index object."""
        return 1 if self.batch_size is None else self.batch_size


class OrderPlan(Plan):
    """A known order. ``saved`` is what :meth:`state` gave, or ``None`` at the start of an epoch."""

    def __init__(self, known: _orders.Known, cut: Cut, saved: dict[str, Any] | None, ranks: Ranks | None = None) -> None:
        self._known = known
        self._cut = cut
        self._ranks = ranks
        self.rank, self.world = (known.rank, known.world) if ranks is None else (ranks.rank, ranks.world)
        saved = saved or {}
        #: Positions of the common order of all ranks that are passed over.
        self.start: int = saved.get("samples", 0)
        self.stride = self.world
        self._seed: Any = saved.get("seed")
        #: The seed was looked up ahead of the draw, which is still to be made.
        self._peeked = bool(saved.get("peeked"))
        #: What is drawn when the order has run out is drawn: by workers that are ahead, before the user is there.
        self._finished = bool(saved.get("finished"))
        self._order: Any = None
        self._facts: dict[str, Any] = {}

    def order(self) -> Any:
        """The order; the first call draws it."""
        if self._order is None:
            if self._peeked:
                self._known.pass_over_draws()
            self._order, self._seed = self._known.draw(self._seed, self.start)
            self._facts = self._known.all_facts()
            if self._finished:
                self._known.finish()
        return self._order

    def _finish(self) -> Iterator[Any]:
        self._finished = True
        self._known.finish()
        return iter(())

    def use(self, order: Any) -> None:
        """Takes an order that was drawn before."""
        self._order = order

    def __iter__(self) -> Iterator[Any]:
        # No generators: one that is interrupted is at its end.
        return Late(self._objects)

    def _objects(self) -> Iterator[Any]:
        order = self.order()
        cut = self._cut
        if self._ranks is None:
            if cut.batch_size is not None:
                batches = order.batches(self.start, cut.batch_size, cut.drop_last, rank=self.rank, world=self.world)
                full = islice(batches, max(0, len(order) - self.start) // (cut.step * self.world))
                # A last short batch is known to be one when the sampler has run out.
                return chain(full, Late(self._finish), batches)
            pages = order.batches(self.start, PAGE, False, rank=self.rank, world=self.world)
            return chain(chain.from_iterable(pages), Late(self._finish))
        # Steps that fill a batch of each rank; the rest goes by the policy.
        steps = max(0, len(order) - self.start) // (cut.step * self.world)
        full = islice(order.batches(self.start, cut.step, True, rank=self.rank, world=self.world), steps)
        tail = iter(()) if cut.drop_last else Late(lambda: self._tail(order))
        objects = chain(full, tail)
        return chain(objects if cut.batch_size is not None else map(operator.itemgetter(0), objects), Late(self._finish))

    def position(self, ordinal: int) -> int:
        """Position among all ranks' samples."""
        return self.start + ordinal * self._cut.step * self.world + self.rank

    def _tail(self, order: Any) -> Iterator[list[int]]:
        """The last step, in which not every rank has a full batch, if there is one."""
        assert self._ranks is not None
        size = len(order)
        span = self._cut.step * self.world
        rest = max(0, size - self.start) % span
        exists, own, padding = self._ranks.tail(rest)
        if not exists:
            return iter(())
        begin = size - rest
        index = order.take(begin + self.rank, size, self.world)[:own]
        for k in range(own, own + padding):
            # Repeated from the front of the epoch, as torch's sampler pads.
            index.append(order[(begin + self.rank + k * self.world - size) % size])
        return iter((index or Empty([order[size - 1]]),))

    def indices(self, step: int) -> list[int]:
        """The samples of the index object at ``step``, counted from ``start``. Raises ``IndexError`` behind the end."""
        order, cut = self.order(), self._cut
        span = cut.step * self.world
        begin = self.start + step * span
        size = len(order)
        if step < 0 or begin >= size:
            raise IndexError(step)
        if self._ranks is not None and begin + span > size:
            last = None if cut.drop_last else next(self._tail(order), None)
            if last is None:
                raise IndexError(step)
            return [] if type(last) is Empty else last
        found: list[int] = order.take(begin + self.rank, min(begin + span, size), self.world)
        if not found or (cut.drop_last and len(found) < cut.step):
            raise IndexError(step)
        return found

    def mask(self, ordinal: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which samples of an index object are its rank's own, and not padding."""
        index = self.indices(ordinal)
        mask = np.ones(len(index), np.bool_)
        if self._ranks is not None:
            span = self._cut.step * self.world
            rest = len(self.order()) - (self.start + ordinal * span)
            if rest < span:
                mask[self._ranks.tail(rest)[1] :] = False
        return mask

    def state(self, delivered: int) -> dict[str, Any]:
        facts = self._facts or self._known.all_facts()
        known = self._known
        extent: Any = known.extent()
        if extent is None:
            extent = len(self._order) if self._order is not None else facts.get("num_samples", facts.get("size"))
        samples = self.start + delivered * self._cut.step * self.world
        state = {"kind": known.kind, "facts": facts, "samples": min(samples, extent), "seed": self._seed}
        if self._order is None and self._seed is None and (upcoming := known.upcoming()) is not None:
            state["seed"], state["peeked"] = upcoming, True
        elif self._order is None and self._peeked:
            state["peeked"] = True
        state["batch_size"] = self._cut.batch_size
        if self._finished:
            state["finished"] = True
        if known.kind == "distributed":
            state["ranks"] = {"world": known.world, "total": extent}
        return state


def _is_ours(sampler: Any) -> bool:
    """Whether it is one of ``feedrate.samplers``, without importing them."""
    found = sys.modules.get("feedrate.samplers")
    return found is not None and isinstance(sampler, found.Sampler)


class _Ledger:
    """What a state needs to know of each index object that was planned and not yet left behind."""

    def __init__(self, delivered: Callable[[], int]) -> None:
        self._delivered = delivered
        self._entries: deque[Any] = deque()
        self._first = 0

    def append(self, entry: Any) -> None:
        """The entry behind the next index object (the first one: behind none)."""
        while len(self._entries) > 1 and self._first < self._delivered():
            self._entries.popleft()
            self._first += 1
        self._entries.append(entry)

    def at(self, delivered: int) -> Any:
        """The entry behind ``delivered`` index objects."""
        return self._entries[delivered - self._first] if self._entries else None


_NOTHING = object()


def run_out(sampler: Any, state: Any) -> None:
    """Gives a sampler its state of the end of a pass, so that the next one begins at the start. Whether it still has to find that end, or
    starts over at once, only asking tells."""
    with _randoms.preserved():
        sampler.load_state_dict(copy.deepcopy(state))
        if next(iter(sampler), _NOTHING) is not _NOTHING:
            sampler.load_state_dict(copy.deepcopy(state))


class SamplerPlan(Plan):
    """A sampler that is iterated: the user's, or one of ours with a state of its own.

    Where sampler or iterator have ``state_dict`` and ``load_state_dict``, those are used. Others are iterated again from the start,
    with the random generators as they were then, and must give the same: a hash of the order is compared.
    """

    def __init__(
        self,
        sampler: Any,
        cut: Cut | None,
        *,
        made: Iterator[Any] | None = None,
        saved: dict[str, Any] | None = None,
        skip: int = 0,
        delivered: Callable[[], int] = int,
        globals_before: dict[str, Any] | None = None,
        draw_seed: Callable[[], Any] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._sampler = sampler
        # None: the sampler gives index objects itself.
        self._cut = cut
        self._made = made
        self._saved = saved or {}
        self._skip = skip
        self._ledger = _Ledger(delivered)
        #: States of the process-wide generators at the start of the epoch, packed.
        self._globals: dict[str, Any] | None = self._saved.get("globals", globals_before)
        #: What is drawn between the making of the iterator and its first item, if that is part of the start.
        self._draw_seed = draw_seed
        self._ranks = ranks
        # Behind each index object: the number of its samples, or which of them are no padding.
        self._masks = _Ledger(delivered)
        self._at = 0
        #: The last error that was passed over, with nothing behind it.
        self._told: Exception | None = None
        if ranks is not None and cut is not None:
            self.stride = ranks.world

    def __iter__(self) -> Iterator[Any]:
        return _Steps(self)

    def position(self, ordinal: int) -> int:
        """Position among all ranks' samples."""
        return self._at

    def _before_mine(self, raw: list[Any]) -> int:
        """Samples of a step that come before this rank's first one."""
        rank = 0 if self._ranks is None else self._ranks.rank
        return rank if self._cut is not None else self._count(raw[:rank])

    @property
    def _passed(self) -> int:
        """What the sampler has given up to where this begins."""
        found: int = self._saved.get("passed" if self._cut is None else "samples", 0)
        return found

    @property
    def _span(self) -> int:
        """What is taken from the sampler for one step of all ranks."""
        world = 1 if self._ranks is None else self._ranks.world
        return world * (1 if self._cut is None else self._cut.step)

    def _count(self, raw: list[Any]) -> int:
        """Samples in what the sampler gave."""
        return len(raw) if self._cut is not None else sum(map(_length, raw))

    def _share(self, raw: list[Any]) -> Any:
        """The index object of this rank out of a full step."""
        own = raw if self._ranks is None else raw[self._ranks.rank :: self._ranks.world]
        return own if self._cut is not None and self._cut.batch_size is not None else own[0]

    def _last_shares(self, raw: list[Any]) -> Iterator[Any]:
        """The index object of this rank out of a step that is not full, if there is one, and its mask."""
        cut, ranks = self._cut, self._ranks
        if cut is not None and cut.drop_last:
            return
        if ranks is None:
            yield raw, None
            return
        rest = len(raw)
        exists, own, padding = ranks.tail(rest)
        if not exists:
            return
        share = raw[ranks.rank :: ranks.world][:own]
        # What came before is not kept: repeated from the front of this step.
        share += [raw[(ranks.rank + k * ranks.world - rest) % rest] for k in range(own, own + padding)]
        batched = cut is not None and cut.batch_size is not None
        if batched or not share:
            mask = np.arange(len(share)) < own
        else:
            mask = np.full(self._count(share[:1]), own > 0)
        if not share:
            yield Empty([raw[0] if cut is not None else raw[0][0]]), mask
        else:
            yield share if batched else share[0], mask

    def _pages(self, inner: Iterator[Any], count: int) -> Iterator[list[Any]]:
        """So many items, in pieces. Errors among them were told before; the last one, and where none comes behind it, is kept."""
        errors = 0
        while count > 0:
            raw: list[Any] = []
            try:
                raw += islice(inner, min(count, PAGE))
            except Exception as error:
                # Its frames hold this plan.
                self._told = error.with_traceback(None)
                errors = 0 if raw else errors + 1
                if errors > _ERRORS:
                    raise
            else:
                if not raw:
                    return
                self._told, errors = None, 0
            count -= len(raw)
            yield raw

    def mask(self, ordinal: int) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Which samples of the index object at ``ordinal``, the last that was delivered, are its rank's own."""
        found = self._masks.at(ordinal + 1)
        return np.ones(found, np.bool_) if isinstance(found, int) else found

    def _restored(self) -> Iterator[Any] | None:
        """The iterator over the sampler where its own state says; ``None`` if there is no such state."""
        sampler, state = self._sampler, self._saved.get("sampler")
        if state is None:
            return None
        if state["sampler"] is not None and not _is_ours(sampler) and (self._saved.get("ended") or self._all_given(state)):
            run_out(sampler, state["sampler"])
            return iter(())
        if state["sampler"] is not None:
            sampler.load_state_dict(copy.deepcopy(state["sampler"]))
        if self._saved.get("ended"):
            # Its state is of its next pass, which an iterator made now would take up.
            return iter(())
        inner: Any = iter(sampler)
        if state["iterator"] is not None:
            saved = state["sampler"] if _is_ours(sampler) and state["iterator"] == _SAME else state["iterator"]
            inner.load_state_dict(copy.deepcopy(saved))
        found: Iterator[Any] = inner
        return found

    def _all_given(self, state: dict[str, Any]) -> bool:
        """Whether the sampler, by its length, had given all of this pass. One that starts over when it has would do so now."""
        if state["iterator"] is not None:
            return False
        try:
            return 0 < self._passed == len(self._sampler)
        except TypeError:
            return False

    def _replayed(self, digest: Any) -> Iterator[Any]:
        """Iterates the sampler again from the start of the epoch to where this begins."""
        count = 0
        with _randoms.preserved():
            for name, generator in _randoms.process_wide().items():
                if self._globals is not None and name in self._globals:
                    _randoms.restore(generator, self._globals[name])
            inner = iter(self._sampler)
            if self._saved.get("unseeded") and self._draw_seed is not None:
                self._draw_seed()
            items = NextOnly(inner)
            for raw in self._pages(items, self._passed):
                mix(digest, raw)
                count += len(raw)
            # What it draws when it starts belongs to the start.
            inner = chain([] if count else list(islice(items, 1)), items)
        want = self._saved.get("hash")
        if count < self._passed or (want is not None and digest.hexdigest() != want):
            raise ResumeError(
                f"the sampler {type(self._sampler).__name__} has no state_dict(), so it was iterated again to pass over what it gave "
                f"before, and it gave another order ({count} items with hash {digest.hexdigest()}; saved: {self._passed} with {want}). "
                "Give it state_dict() and load_state_dict(), or make its order depend on a seed or generator that it keeps as an "
                "attribute"
            ) from self._told
        return inner

    def _entry(self, inner: Any, stateful: bool, digest: Any, samples: int, passed: int) -> dict[str, Any]:
        # One that gives index objects itself is replayed by their number; the last step of all ranks may have had fewer.
        counts = {"samples": samples} if self._cut is not None else {"samples": samples, "passed": passed}
        if not stateful:
            return {"hash": digest.copy().hexdigest(), **counts}
        state = {
            "sampler": copied(self._sampler.state_dict) if has_state(self._sampler) else None,
            "iterator": copied(inner.state_dict) if has_state(inner) and inner is not self._sampler else None,
        }
        if _is_ours(self._sampler) and state["iterator"] == state["sampler"]:
            # A generator's state is all but some bytes of it: once is enough.
            state["iterator"] = _SAME
        return {"sampler": state, **counts}

    def state(self, delivered: int) -> dict[str, Any]:
        entry = self._ledger.at(delivered)
        state: dict[str, Any] = {
            "kind": "sampler",
            "facts": {"sampler": type(self._sampler).__qualname__, "cut": self._cut is not None},
            "batch_size": None if self._cut is None else self._cut.batch_size,
        }
        if self._cut is None:
            world = 1 if self._ranks is None else self._ranks.world
            state["passed"] = self._saved.get("passed", 0) + (self._skip + delivered) * world
        if entry is None and self._saved:
            # Not begun: as it was loaded.
            return {**self._saved, **state}
        if entry is None and has_state(self._sampler):
            entry = {"sampler": {"sampler": copy.deepcopy(self._sampler.state_dict()), "iterator": None}}
        for what, found in (entry or {}).get("sampler", {}).items():
            if isinstance(found, Unsaved):
                raise ResumeError(f"state_dict() of the {what} cannot be used: {found.why}")
        state.update(entry or {})
        if "sampler" not in state and self._globals is not None:
            state["globals"] = self._globals
            state["unseeded"] = self._draw_seed is not None
        return state


#: Errors in a row, without an item between them, that a sampler is taken to go on behind.
_ERRORS = 1000


class _Steps:
    """The index objects of a :class:`SamplerPlan`. An error of a sampler that gives index objects itself is not the end, if it goes on
    behind it: no generator. What is cut into batches has torch's ``BatchSampler`` there, which ends."""

    def __init__(self, plan: SamplerPlan) -> None:
        self._plan = plan
        self._over = False
        self._items: Iterator[Any] | None = None
        # Of the step that an error came into.
        self._raw: list[Any] = []
        #: The step that is drawn, its mask, its place, and whether it is a full one, until where the sampler stands behind it is known: a
        #: user's ``state_dict()`` is asked, and what a signal's handler raises there takes nothing along.
        self._drawn: tuple[Any, Any, int, bool] | None = None

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        share, mask, at, full = self._drawn = self._drawn or self._draw()
        plan = self._plan
        entry = plan._entry(self._inner, self._stateful, self._digest, self._samples, self._passed)
        if not full:
            # It has seen its end already: what it says now is of its next pass.
            entry["ended"] = True
        plan._masks.append(_length(share) if mask is None else mask)
        plan._at = at
        plan._ledger.append(entry)
        self._drawn = None
        return share

    def _draw(self) -> tuple[Any, Any, int, bool]:
        plan, raw = self._plan, self._raw
        try:
            items = self._items or self._begin()
            raw += islice(items, plan._span - len(raw))
        except Exception:
            # What a Ctrl-C came into goes on.
            self._over = self._items is None or (plan._cut is not None and plan._cut.batch_size is not None)
            raise
        full = len(raw) == plan._span
        shares = [] if not raw else [(plan._share(raw), None)] if full else list(plan._last_shares(raw))
        if not shares:
            self._over = True
            raise StopIteration
        share, mask = shares[0]
        at = self._samples + plan._before_mine(raw)
        self._count(raw, told=self._stateful)
        self._raw = []
        return share, mask, at, full

    def _begin(self) -> Iterator[Any]:
        plan = self._plan
        self._digest = hashlib.blake2b(digest_size=8)
        inner = plan._restored()
        if inner is None and ("globals" in plan._saved or plan._passed):
            inner = plan._replayed(self._digest)
        elif inner is None:
            inner = iter(plan._sampler) if plan._made is None else plan._made
        plan._made = None
        self._inner = inner
        self._stateful = has_state(plan._sampler) or has_state(inner)
        self._samples: int = plan._saved.get("samples", 0)
        self._passed: int = plan._saved.get("passed", 0)
        items = NextOnly(inner)
        plan._told, left = None, plan._skip * plan._span
        for raw in plan._pages(items, left):
            self._count(raw, told=False)
            left -= len(raw)
        told, plan._told = plan._told, None
        if left > 0 and told is not None:
            raise told
        first = plan._entry(inner, self._stateful, self._digest, self._samples, self._passed)
        if plan._saved.get("ended"):
            first = {name: plan._saved[name] for name in ("sampler", "hash", "samples", "passed", "ended") if name in plan._saved}
        plan._ledger.append(first)
        plan._masks.append(None)
        self._items = items
        return items

    def _count(self, raw: list[Any], *, told: bool) -> None:
        """Books what the sampler gave; its order is hashed if it does not tell where it is."""
        if not told:
            mix(self._digest, raw)
        self._samples += self._plan._count(raw)
        self._passed += len(raw)


def _length(index: Any) -> int:
    """Samples of an index object."""
    return len(index) if isinstance(index, (list, tuple)) else 1


class StreamPlan(Plan):
    """An iterable dataset: each worker is asked for the next of its own stream, for ever."""

    def __init__(self, cut: Cut, made: Iterator[Any]) -> None:
        self._cut = cut
        self._made = made

    def __iter__(self) -> Iterator[Any]:
        return self._made

    def position(self, ordinal: int) -> int:
        """Not known: seeding by sample is refused for streams."""
        raise NotImplementedError

    def state(self, delivered: int) -> dict[str, Any]:
        return {"kind": "stream", "facts": {"batch_size": self._cut.batch_size}}
