"""Agreement of ranks, while they run, on the number of steps of streams that end at different times.

Nobody can know that a stream has a batch for step ``k`` but by having that batch. So each rank takes a few batches more than it
hands over (``ahead``), and says how many it has, and whether its stream has ended with them, in one key of a store that all ranks
share. What a rank says in one pass only grows: ``have`` goes up, and once ``ended`` is said it stays as it is. From that, each rank
works out for itself whether step ``k`` takes place:

- ``remainder="drop"``: yes when every rank has more than ``k`` batches, no when one has ended with ``k`` or fewer;
- ``"pad"`` and ``"exact"``: yes when any rank has more than ``k``, no when all have ended with ``k`` or fewer.

Both answers depend on the final counts alone, so they are the same on all ranks whenever each of them asks, and an answer that is
known never changes. While it is not known the rank looks again and again, up to the deadline.

No rank waits for another in a circle. A rank says what it has before it asks, and takes its next batches without asking; the rank
that is furthest behind in a pass is at a step that all others have passed or are at, so the answer to its question needs only what
streams, and no steps, have still to give.

How often there is talk: a rank speaks when what it said before covers less than half of ``ahead`` beyond the step that it is about
to hand over, so that ranks in lockstep hear of each step before they come to it. It listens only to ranks whose last word does
not answer its question: with ``"pad"`` and ``"exact"`` a rank whose own stream goes on does not listen at all, but for the first
step. There, all ranks meet: what they were told (policy, number of ranks) must be the same, and a rank whose stream is
empty, which has no batch to show the others' form, is found on all ranks and not by a hang.

At the end of a pass rank 0, whose process usually holds the store, waits until all have said that they are through, so that it
does not take the store away from one that still asks. The others wait for nobody there. A rank that leaves a pass early says
nothing; if others go on, their deadline names it.

Each pass has keys of its own, one for each rank. They are deleted by the rank that wrote them when all have said something in a
later pass, since nobody reads them any more.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from feedrate._errors import Error
from feedrate._fetch import END, NOT_READY, Carried
from feedrate._ranks import Ranks, emptied

# Seconds between two looks at the store.
_SHORTEST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.01

_unnamed = itertools.count()


class Store(Protocol):
    """What ranks share: any of ``torch.distributed``'s stores, or an object with these methods. ``get`` is called for keys that
    are there. ``multi_get(keys)`` and ``delete_key(key)`` are used when it has them."""

    def set(self, key: str, value: str) -> Any:
        """Sets a key, also one that is there."""

    def get(self, key: str) -> str | bytes:
        """The value of a key."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there. Does not wait."""


class RankMissing(Error, TimeoutError):
    """A rank did not say within the deadline whether it has a batch for a step. ``ranks`` holds the numbers of those that are
    missing."""

    ranks: list[int]

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = list(ranks)


class Coordinator:
    """Where the ranks of one loader agree on the number of its steps, when they cannot know it beforehand.

    Args:
        store: what ranks share; ``None`` takes the store with which ``torch.distributed`` was initialised, which is not its process
            group: no collective is ever called.
        timeout: seconds that a rank waits for what others have to say before it raises :class:`RankMissing`. A rank that is busy
            with something else for that long (a validation on rank 0 only) needs more.
        ahead: batches that each rank holds beyond the one that it hands over: memory for that many. With 0 each step waits for
            the news of the others; with more of them news is more seldom.
        name: tells apart several coordinators on one store. Those without a name are numbered as they are made, so that all ranks
            have to make them in the same order.
    """

    def __init__(self, store: Store | None = None, *, timeout: float = 60.0, ahead: int = 2, name: str | None = None) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout option should be a positive number of seconds, but got timeout={timeout!r}")
        number: Any = ahead
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"ahead option should be a number of batches that is not negative, but got ahead={ahead!r}")
        self.store = store
        self.timeout = timeout
        self.ahead = ahead
        self.name = f"{next(_unnamed)}" if name is None else f"name {name}"
        self._passes = 0
        # Keys of this rank in passes that others may still read.
        self._old: list[str] = []

    def begin(self, ranks: Ranks) -> Agreement:
        """The agreement on the next pass. All ranks begin the same passes: one that is begun on some of them only counts there."""
        store = self.store
        if store is None and ranks.world > 1:
            store = _default_store()
        number, self._passes = self._passes, self._passes + 1
        return Agreement(self, store, ranks, number)

    def steps(self, batches: Iterable[Any], ranks: Ranks) -> Steps:
        """The batches of this rank's iterator, in as many steps as the other ranks have."""
        return Steps(AgreedSource(_Plain(iter(batches)), self.begin(ranks)))


class Agreement:
    """What ranks know of each other in one pass. Used by one thread."""

    def __init__(self, coordinator: Coordinator, store: Any, ranks: Ranks, number: int) -> None:
        self._coordinator = coordinator
        self._store = store
        self.ranks = ranks
        self.ahead = coordinator.ahead
        self._number = number
        self._keys = [f"feedrate/{coordinator.name}/{number}/{rank}" for rank in range(ranks.world)]
        coordinator._old.append(self._keys[ranks.rank])
        # By rank: whether it said anything, the batches that it has had, and whether those are all.
        self._heard = [False] * ranks.world
        self._have = [0] * ranks.world
        self._ended = [False] * ranks.world
        self._over = [False] * ranks.world
        self._met = False

    def say(self, have: int, *, ended: bool, over: bool = False) -> None:
        """Tells the others that this rank has had ``have`` batches of its stream in this pass, and whether it ``ended`` with them;
        ``over``: that it asks no more."""
        rank = self.ranks.rank
        self._note(rank, have, ended, over)
        if self.ranks.world > 1:
            word = {"have": have, "ended": ended, "over": over, "remainder": self.ranks.remainder, "world": self.ranks.world}
            self._ask(lambda: self._store.set(self._keys[rank], json.dumps(word)))

    @property
    def said(self) -> int:
        """Batches that the others were told of; -1 before the first word."""
        rank = self.ranks.rank
        return self._have[rank] if self._heard[rank] else -1

    def exists(self, step: int) -> bool:
        """Whether ``step`` takes place. This rank must have said what it knows of it. Blocks until there is an answer, with the
        GIL free and Ctrl-C at work; raises :class:`RankMissing` at the deadline."""
        if not self._met and self.ranks.remainder != "drop":
            self._wait(lambda: all(self._heard), self._silent, f"step {step}")
            self._meet()
        self._wait(lambda: self._answer(step) is not None, lambda: self._open(step), f"step {step}")
        return bool(self._answer(step))

    def close(self) -> None:
        """This rank has come to the end of the pass. On rank 0 it blocks until all have, at most until the deadline."""
        mine = self.ranks.rank
        self.say(self._have[mine], ended=self._ended[mine], over=True)
        if mine == 0:
            try:
                self._wait(lambda: all(self._over), lambda: [r for r, over in enumerate(self._over) if not over], "the end")
            except RankMissing as error:
                warnings.warn(f"{error}. This rank has come to the end and goes on", RuntimeWarning, stacklevel=4)
        if all(self._heard):
            self._forget()

    # -- what follows from what was said

    def _answer(self, step: int) -> bool | None:
        have = [n > step for n in self._have]
        lack = [ended and n <= step for n, ended in zip(self._have, self._ended, strict=True)]
        if self.ranks.remainder == "drop":
            return False if any(lack) else (True if all(have) else None)
        return True if any(have) else (False if all(lack) else None)

    def _open(self, step: int) -> list[int]:
        """Ranks that can still say something about ``step``."""
        return [r for r, n in enumerate(self._have) if n <= step and not self._ended[r]]

    def _silent(self) -> list[int]:
        return [r for r, heard in enumerate(self._heard) if not heard]

    def _meet(self) -> None:
        """All have said something: none of them may have nothing to show, unless nobody has."""
        self._met = True
        empty = [r for r, n in enumerate(self._have) if n == 0 and self._ended[r]]
        if empty and len(empty) < self.ranks.world:
            what = "an empty batch is made" if self.ranks.remainder == "exact" else "the batch to repeat is taken"
            raise Error(
                f"{_named(empty)} of {self.ranks.world} had no batch in this pass, and remainder={self.ranks.remainder!r} needs one, from "
                f'which {what}: give each rank some of the data, or use remainder="drop". (A pass that is resumed where a stream '
                "has ended has none either.)"
            )
        self._forget()

    def _forget(self) -> None:
        """All are in this pass: nobody reads what was said in a former one."""
        mine = self._keys[self.ranks.rank]
        old = self._coordinator._old
        delete = getattr(self._store, "delete_key", None)
        if delete is not None:
            for key in [key for key in old if key != mine]:
                # Stores need not be able to.
                with contextlib.suppress(Exception):
                    delete(key)
        old[:] = [mine]

    # -- the store

    def _wait(self, done: Callable[[], bool], lagging: Callable[[], list[int]], what: str) -> None:
        if done():
            return
        deadline = time.monotonic() + self._coordinator.timeout
        pause = _SHORTEST_PAUSE
        while True:
            late = time.monotonic() >= deadline
            self._listen([r for r in lagging() if r != self.ranks.rank])
            if done():
                return
            if late:
                self._give_up([r for r in lagging() if r != self.ranks.rank], what)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _listen(self, ranks: list[int]) -> None:
        store = self._store
        silent = [self._keys[r] for r in ranks if not self._heard[r]]
        if silent and not self._ask(lambda: store.check(silent)):
            ranks = [r for r in ranks if self._heard[r] or self._is_there(self._keys[r])]
        if not ranks:
            return
        keys = [self._keys[r] for r in ranks]
        many = getattr(store, "multi_get", None)
        words = self._ask(lambda: many(keys) if many is not None else [store.get(key) for key in keys])
        for rank, word in zip(ranks, map(json.loads, words), strict=True):
            for fact, mine in (("remainder", self.ranks.remainder), ("world", self.ranks.world)):
                if word[fact] != mine:
                    raise Error(
                        f"ranks do not agree on how to go on: rank {rank} has {fact}={word[fact]!r}, rank {self.ranks.rank} has "
                        f"{fact}={mine!r}. Give all the same, and make the coordinators of several loaders in the same order or "
                        "with names"
                    )
            self._note(rank, word["have"], word["ended"], word["over"])

    def _is_there(self, key: str) -> bool:
        return bool(self._ask(lambda: self._store.check([key])))

    def _note(self, rank: int, have: int, ended: bool, over: bool) -> None:
        self._heard[rank] = True
        self._have[rank], self._ended[rank], self._over[rank] = have, ended, over

    def _give_up(self, missing: list[int], what: str) -> None:
        words = "; ".join(
            f"rank {r} has had {self._have[r]} batches" if self._heard[r] else f"rank {r} has not begun this pass"
            for r in missing
        )
        raise RankMissing(
            f"{_named(missing)} of {self.ranks.world} did not answer for {self._coordinator.timeout:g} s, and rank {self.ranks.rank} "
            f"needs to know of {what} of pass {self._number} ({words}): dead, stuck, or gone from its loop. If it is only slow, give "
            "the Coordinator a longer timeout",
            missing,
        )

    def _ask(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise Error(
                f"the store in which ranks agree on their steps cannot be reached ({type(error).__name__}: {error}): the process that "
                "holds it, with torch.distributed that of rank 0, has ended or is out of reach"
            ) from error


class _Source(Protocol):
    """An engine, or what stands behind one: batches that can be taken ahead."""

    def next(self, timeout: float | None) -> Any:
        """The next batch, or ``END``."""

    def mark(self) -> tuple[int, int] | None:
        """Position and worker of what was given or raised last."""


class _Plain:
    """Any iterator as a source."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def next(self, timeout: float | None) -> Any:
        return next(self._iterator, END)

    def mark(self) -> tuple[int, int] | None:
        return None


class AgreedSource:
    """The batches of one pass of ``source``, in as many steps as all ranks agree on. A source itself: it stands between an engine
    and what counts its batches, so that those taken ahead are not taken for delivered.

    All methods are called from one thread. An exception of the source comes in the place of its batch and is no step.
    ``batched=False``: the source gives samples and not batches.
    """

    def __init__(self, source: _Source, agreement: Agreement, *, batched: bool = True) -> None:
        self._source = source
        self._agreement = agreement
        self._batched = batched
        # Taken and not yet handed over: batch, exception in its place, mark.
        self._waiting: deque[tuple[Any, Exception | None, tuple[int, int] | None]] = deque()
        self._have = 0
        self._ended = False
        self._over = False
        self._keep = agreement.ranks.remainder != "drop" and agreement.ranks.world > 1
        self._last: Any = None
        self._given: Any = None
        self._own = True
        self._mark: tuple[int, int] | None = None
        self._told_end = False
        #: Steps that were agreed on and handed over.
        self.step = 0
        #: Those for which this rank's stream had no batch.
        self.filled = 0

    def next(self, timeout: float | None) -> Any:
        """The batch of the next step, or ``END``. ``timeout`` holds for a batch's arrival, not for the agreement; with 0 ``NOT_READY``
        when it is not there yet."""
        if self._over:
            return END
        waiting = self._waiting
        # Two at a time until there are as many as there should be, so that the first step need not wait for all of them.
        wanted = min(self._agreement.ahead + 1, len(waiting) + 2)
        while len(waiting) < wanted and self._take(timeout):
            pass
        if timeout == 0 and not waiting and not self._ended:
            return NOT_READY
        if waiting and waiting[0][1] is not None:
            return self._hand_over()
        self._tell()
        if not self._agreement.exists(self.step):
            self._over = True
            waiting.clear()
            self._last = self._given = self._mark = None
            self._agreement.close()
            return END
        self.step += 1
        if waiting:
            return self._hand_over()
        self.filled += 1
        self._own, self._mark = False, None
        self._given = emptied(self._last) if self._agreement.ranks.remainder == "exact" else _with_own_containers(self._last)
        return self._given

    def mark(self) -> tuple[int, int] | None:
        """As the source's, for what :meth:`next` gave or raised; ``None`` for a batch that fills up a step."""
        return self._mark

    def mask(self) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Which samples of the batch handed over last are from this rank's stream: all or none. ``None`` before the first one, and
        for a batch without a length."""
        if self.step == 0 or self._over:
            return None
        rows = _rows(self._given) if self._batched else 1
        return None if rows is None else np.full(rows, self._own, np.bool_)

    def _take(self, timeout: float | None) -> bool:
        """Takes one more from the source; ``False`` when there was no batch."""
        if self._ended:
            return False
        try:
            batch = self._source.next(timeout)
        except Exception as error:
            self._waiting.append((None, error, self._source.mark()))
            return False
        if batch is NOT_READY:
            return False
        if batch is END:
            self._ended = True
            return False
        if self._have == 0 and self._keep and self._agreement.ranks.remainder == "exact":
            # What cannot be emptied is found at the first step, and not at the end of a day.
            emptied(_plain(batch))
        self._have += 1
        self._waiting.append((batch, None, self._source.mark()))
        return True

    def _tell(self) -> None:
        agreement = self._agreement
        said = agreement.said
        if self._ended:
            if not self._told_end:
                self._told_end = True
                agreement.say(self._have, ended=True)
        elif said < self._have and said <= self.step + (agreement.ahead + 1) // 2:
            agreement.say(self._have, ended=False)

    def _hand_over(self) -> Any:
        batch, error, self._mark = self._waiting.popleft()
        if error is not None:
            raise error
        self._given = _plain(batch)
        if self._keep:
            # The user may take things out of a batch.
            self._last = _with_own_containers(self._given)
        return batch


class Steps:
    """Iterator over the batches of :meth:`Coordinator.steps`."""

    def __init__(self, source: AgreedSource) -> None:
        self._source = source

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> Any:
        batch = self._source.next(None)
        if batch is END:
            raise StopIteration
        return batch

    @property
    def mask(self) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Which samples of the last batch are from this rank's own iterator: all or none."""
        return self._source.mask()


def _default_store() -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        raise ValueError(
            "ranks need a store to agree in, and torch.distributed is not initialised: call init_process_group() first, or give the "
            "Coordinator a store, such as torch.distributed.TCPStore"
        )
    return torch.distributed.distributed_c10d._get_default_store()


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def _plain(batch: Any) -> Any:
    """A batch without the state that came with it."""
    return batch.batch if isinstance(batch, Carried) else batch


def _with_own_containers(batch: Any) -> Any:
    """The same tensors and arrays in lists and mappings of their own."""
    if isinstance(batch, Mapping):
        try:
            made = copy.copy(batch)
            for key, value in batch.items():
                made[key] = _with_own_containers(value)  # type: ignore[index]
        except (TypeError, AttributeError):
            # A mapping that cannot be changed.
            return batch
        return made
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_with_own_containers, batch))
    if type(batch) in (list, tuple):
        return type(batch)(map(_with_own_containers, batch))
    return batch


def _rows(batch: Any) -> int | None:
    """Samples in a batch, by the first thing in it that has a length."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) > 0 else None
    if isinstance(batch, Mapping):
        return next((n for n in map(_rows, batch.values()) if n is not None), None)
    if isinstance(batch, (list, tuple)):
        # A list of fields, each with all samples, or of samples that are no tensors.
        if batch and (hasattr(batch[0], "shape") or isinstance(batch[0], (Mapping, list, tuple))):
            return next((n for n in map(_rows, batch) if n is not None), None)
        return len(batch)
    return None
