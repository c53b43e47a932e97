"""Pipelines in a loader: the plan over lanes, the work of a task, and what is delivered.

One step takes a unit of samples from each lane of a row, and the next step from the next row. Which samples a unit holds depends on nothing
but the pipeline, its seed and the epoch; who does the work decides nothing.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from feedrate import _same
from feedrate._context import set_reseed
from feedrate._errors import PipelineError
from feedrate._fetch import END, NOT_READY, Carried, Recipe, explain
from feedrate._pipeline import Mix, Pipeline, StreamPipeline, mixed
from feedrate._plan import Plan
from feedrate._progress import progress
from feedrate._skipper import Skipper, append
from feedrate._state_errors import ResumeError

#: Rows where the pipeline does not say: as many workers can read at a time.
ROWS = 8

#: What can be done about a state of another rank.
_OWN = "Near the end of an epoch load the state that this rank has saved itself, with as many ranks, or one from earlier in the epoch"

#: Bad elements beyond what is allowed in an epoch after which one unit is given up.
PATIENCE = 1000

#: A cursor of more bytes is sent along less often: once in as many units as it has times this many bytes.
LIGHT = 2048


def is_laned(dataset: Any) -> bool:
    """Whether a loader cuts this dataset into lanes."""
    return isinstance(dataset, StreamPipeline)


@dataclass(frozen=True)
class Shape:
    """How a loader cuts a pipeline."""

    rows: int
    #: In a step, over all ranks.
    units: int
    #: Samples in a unit.
    samples: int
    rank: int
    world: int

    @property
    def mine(self) -> range:
        """The units of this rank's batch."""
        each = self.units // self.world
        return range(self.rank * each, (self.rank + 1) * each)

    @property
    def own(self) -> list[int]:
        """The lanes of this rank."""
        return [row * self.units + column for row in range(self.rows) for column in self.mine]

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return self.rows * self.units

    def facts(self) -> dict[str, int]:
        """What a state holds of it."""
        return {"rows": self.rows, "units": self.units, "samples": self.samples}


def shape_of(loader: Any) -> Shape:
    """The shape of a loader's lanes. Raises ``ValueError`` for what does not divide."""
    options, ranks = loader.dataset._options, progress(loader).ranks
    rank, world = (0, 1) if ranks is None else (ranks.rank, ranks.world)
    units = options.get("units") or world
    if units % world:
        legal = [w for w in range(1, units + 1) if units % w == 0]
        raise ValueError(
            f"the pipeline has {units} units a step, and {world} ranks: each rank takes an equal number of units, so the number of ranks "
            f"can be one of {legal}; or build it with lanes(units={world})"
        )
    each = units // world
    size = loader.batch_size
    if size is None and each > 1:
        raise ValueError(
            f"without batching (batch_size=None) a rank takes one unit a step, and here it would be {each}: build the pipeline with "
            f"lanes(units={world})"
        )
    if size is not None and size % each:
        raise ValueError(
            f"a batch of {size} cannot be made of {each} equal units: use a batch_size that {each} divides, or build the pipeline with "
            "other lanes(units=...)"
        )
    native = loader.dataset._native
    if native.timed and (loader.num_workers or world > 1):
        raise ValueError(
            f"the pipeline has a step {native.timed} (join), whose order no other worker and no other rank can repeat, and the loader "
            f"has num_workers={loader.num_workers} and {world} ranks: use num_workers=0 and one rank, or interleave() or mix() instead of "
            "join()"
        )
    keeper = loader.dataset._keeper()
    rows = options.get("rows") or (1 if native.serial or native.timed or keeper else ROWS)
    if keeper and rows * each > 1:
        raise ValueError(
            f"a {keeper} keeps its place in itself (it has state_dict() and load_state_dict()), and {rows} rows of {each} units on each "
            "rank would iterate it at the same time and mix up their places: use lanes(rows=1), or an object whose __iter__ begins anew"
        )
    return Shape(rows, units, 1 if size is None else size // each, rank, world)


def check_length(loader: Any) -> None:
    """Raises ``TypeError`` where the number of batches depends on how the elements are dealt to lanes."""
    step, shape = loader.dataset._native.cut, shape_of(loader)
    if step is not None and shape.lanes > 1:
        raise TypeError(
            f"the number of batches is not known before all is read: {step} makes batches in each of {shape.lanes} lanes, each with an "
            "end of its own. Let the loader make the batches (batch_size=), or use lanes(rows=1, units=1)"
        )


class Turn:
    """What a task is: units of some lanes. ``units`` are ``(lane, units before, where to begin)``, the last one for workers that do not
    have the lane: units given and the cursor behind them, pickled, and how many units it must have; or ``None`` for the lane's start."""

    __slots__ = ("epoch", "row", "seed", "units")

    def __init__(self, row: int, units: tuple[tuple[int, int, Any], ...], epoch: int, seed: int) -> None:
        #: Tasks of one row go to one worker.
        self.row = row
        self.units = units
        self.epoch = epoch
        self.seed = seed

    def __reduce__(self) -> Any:
        return Turn, (self.row, self.units, self.epoch, self.seed)

    def __repr__(self) -> str:
        return ", ".join(f"unit {k} of lane {lane}" for lane, k, _ in self.units)


class Units(Carried):
    """What a task gives."""

    __slots__ = ("rest", "rest_skipped", "skipped", "stands")

    def __init__(
        self,
        batch: Any,
        rest: dict[int, list[Any]],
        stands: dict[int, tuple[int, Any]],
        skipped: list[Any],
        rest_skipped: list[Any],
    ) -> None:
        #: Of the units that were full; ``END`` when none was.
        self.batch = batch
        #: Samples of those that were not: their lanes have nothing more.
        self.rest = rest
        #: By lane: units given, and the cursor behind them, pickled, or ``None`` when it was left out.
        self.stands = stands
        #: Bad elements that were left out of the full units, and of the others, which a state brings again.
        self.skipped = skipped
        self.rest_skipped = rest_skipped

    def __reduce__(self) -> Any:
        return Units, (self.batch, self.rest, self.stands, self.skipped, self.rest_skipped)


class _Open:
    """A lane that runs in this worker."""

    def __init__(self, lane: Any, units: int, turn: Turn) -> None:
        self.lane = lane
        self.units = units
        self.key = turn.epoch, turn.seed
        self.over = False
        #: A last unit that is not full, when it was read ahead of its turn.
        self.left: list[Any] | None = None
        #: Bad elements that were left out of it.
        self.left_skipped: list[Any] = []
        #: Units until the next cursor is sent.
        self.quiet = 0


class LaneFetcher:
    """Batches of the lanes whose turns a worker gets. A lane that it does not have, or that stands elsewhere, is opened from where the turn
    says, and read up to there."""

    def __init__(self, recipe: Recipe, collate: Callable[[Any], Any], shape: Shape) -> None:
        self._pipeline: Pipeline = recipe.dataset
        self._shape = shape
        self._auto = recipe.auto_collation
        self._collate = collate
        self._recipe = recipe
        self._timed = self._pipeline._native.timed is not None
        self._reseeds = recipe.seeding == "sample" and recipe.own_globals
        # Counted and logged where batches are handed over: workers see a share each, and read again what a state has passed.
        self._skipper = Skipper({**self._pipeline._options, "at_most": None, "log": None})
        self._at_most: int | None = self._pipeline._options.get("at_most")
        self._lanes: dict[int, _Open] = {}
        self._at: Any = None
        self._stage = "sample"

    def snapshot(self) -> None:
        """There is no state but the lanes'."""

    def where(self) -> str:
        """Which unit, or the collation of which, the fetcher is at."""
        return f"{'' if self._stage == 'sample' else 'collation of '}{self._at!r}"

    def __call__(self, turn: Turn, epoch: int, position: int) -> Units:
        """The batch of one turn."""
        if not self._reseeds:
            return self._batch(turn)
        framework = self._recipe.framework
        states = framework.save_states() if self._recipe.borrow_globals else None
        set_reseed(framework.seed_sample)
        try:
            return self._batch(turn)
        finally:
            set_reseed(None)
            if states is not None:
                framework.restore_states(states)

    def _batch(self, turn: Turn) -> Units:
        self._stage, self._at = "sample", turn
        samples: list[Any] = []
        rest: dict[int, list[Any]] = {}
        rest_skipped: dict[int, list[Any]] = {}
        stands: dict[int, tuple[int, Any]] = {}
        batch = END
        try:
            for lane, units, begin in turn.units:
                opened = self._lane(lane, units, begin, turn)
                known = len(self._skipper.fresh)
                unit = self._unit(opened)
                if len(unit) == self._shape.samples:
                    samples += unit
                else:
                    rest[lane] = unit
                    rest_skipped[lane] = self._skipper.fresh[known:]
                    del self._skipper.fresh[known:]
                stands[lane] = units + 1, self._cursor(opened)
            self._stage = "collation"
            if samples:
                data = samples if self._auto else samples[0]
                try:
                    batch = self._collate(data)
                except Exception as error:
                    explain(error, data, None)
                    raise
        except BaseException:
            # What is left over of other lanes was not in the batch that failed: it comes with their next turn.
            for lane, unit in rest.items():
                self._lanes[lane].left = unit
                self._lanes[lane].left_skipped = rest_skipped.get(lane, [])
            raise
        skipped, self._skipper.fresh = self._skipper.fresh, []
        return Units(batch, rest, stands, skipped, [entry for entries in rest_skipped.values() for entry in entries])

    def _lane(self, lane: int, units: int, begin: Any, turn: Turn) -> _Open:
        opened = self._lanes.get(lane)
        if opened is None or opened.units > units or opened.key != (turn.epoch, turn.seed):
            at, stored, _ = begin or (0, None, 0)
            cursor = None if stored is None else pickle.loads(stored)
            shape = self._shape
            opened = self._lanes[lane] = _Open(None, at, turn)
            try:
                opened.lane = self._pipeline._native.lane(lane, shape.lanes, shape.samples, turn.seed, turn.epoch, cursor)
            except Exception:
                # Told once, and then it is at its end: who goes on asking gets there.
                opened.units, opened.over = units + 1, True
                raise
            except BaseException:
                del self._lanes[lane]
                raise
        known = len(self._skipper.fresh)
        while opened.units < units:
            # Given before: read again to be where the turn is. What was left out was counted then.
            del self._skipper.fresh[known:]
            try:
                unit = self._unit(opened)
            except BaseException as error:
                if isinstance(error, Exception) and not getattr(error, "of_the_moment", False):
                    # It was told then.
                    continue
                # The next turn begins anew.
                del self._lanes[lane]
                raise
            if len(unit) < self._shape.samples:
                if begin is not None and opened.units <= begin[2]:
                    raise ResumeError(
                        f"the state was saved by another rank, and by its steps lane {lane} has given {begin[2]} units, but it has only "
                        f"{opened.units - 1} full ones: ranks had run out of data before that. {_OWN}"
                    )
                # Not given, then: it is left over.
                opened.left, opened.units = unit, units
                opened.left_skipped = self._skipper.fresh[known:]
        del self._skipper.fresh[known:]
        return opened

    def _unit(self, opened: _Open) -> list[Any]:
        opened.units += 1
        if opened.left is not None:
            unit, opened.left, opened.over = opened.left, None, True
            self._skipper.fresh += opened.left_skipped
            opened.left_skipped = []
            return unit
        known = len(self._skipper.fresh)
        while not opened.over:
            try:
                found: list[Any] = opened.lane.take(self._shape.samples)
            except Exception as error:
                if self._skipper.skips(error):
                    row = len(self._skipper.fresh) - known
                    if self._at_most is None or row <= self._at_most + PATIENCE:
                        continue
                    # They are counted where they are received; who finds nothing else need not read everything before.
                    raise PipelineError(
                        f"{row} bad elements in one unit of a batch, and on_error() allows at_most={self._at_most} in an epoch. The last: "
                        f"{self._skipper.fresh[-1]}"
                    ) from error
                opened.over = not getattr(error, "may_continue", True)
                raise
            return found
        return []

    def _cursor(self, opened: _Open) -> bytes | None:
        if opened.lane is None:
            return None
        # Where the order is another one each time, nothing can be read again. The last one says what the lane has drawn.
        if opened.quiet > 0 and not self._timed and not opened.lane.over:
            opened.quiet -= 1
            return None
        cursor = pickle.dumps(opened.lane.cursor())
        opened.quiet = len(cursor) // LIGHT
        return cursor


class LanePlan(Plan):
    """The turns of an epoch."""

    def __init__(self, loader: Any, shape: Shape, saved: dict[str, Any], epoch: int, seed: int) -> None:
        self._shape = shape
        self._pipeline: Pipeline = loader.dataset
        self._epoch = epoch
        self._seed = seed
        self.drop_last = bool(loader.drop_last)
        #: By lane: units handed over, units since the cursor, and the cursor.
        self.stands: dict[int, list[Any]] = {}
        #: Turns of which the samples were handed over, where nothing else is known of a lane.
        self.turns: int = saved.get("turns", 0)
        self._old: dict[str, Any] = dict(saved.get("lanes", {}))
        #: Batches of what was left over at the lanes' ends that were handed over.
        self.tail: int = saved.get("tail", 0)
        #: Bad elements that were left out of what was handed over.
        self.skipped: int = saved.get("skipped", 0)
        #: Those behind the last batch, for who sees the end.
        self.last_skipped: list[Any] = []
        #: By their marks, the turns that failed and were not told of yet.
        self._faults: dict[int, Turn | None] = {}
        self.dry: set[int] = set()
        #: By lane, units that it must have had: lanes of other ranks, which are where the number of turns says.
        self._placed: dict[int, int] = {}
        #: By lane that has run out, its last cursor, pickled.
        self.ends: dict[int, bytes] = {}
        #: Turns that were planned and whose results were not seen, by their positions.
        self._planned: deque[tuple[int, Turn]] = deque()
        for row in range(shape.rows):
            for column in shape.mine:
                lane = row * shape.units + column
                units, since, cursor = 0, 0, None
                known = self._old.get(str(lane))
                if known is not None:
                    units, since, cursor = known["units"], known["since"], known["cursor"]
                if self.turns and (known is None or known.get("old")):
                    # Of another rank: where it must stand is known, and perhaps where it once was.
                    before = self.turns // shape.rows + (row < self.turns % shape.rows)
                    at = units - since
                    if at > before:
                        at, cursor = 0, None
                    units, since = before, before - at
                    self._placed[lane] = before
                if units:
                    self.stands[lane] = [units, since, None if cursor is None else pickle.dumps(cursor)]

    def __iter__(self) -> Iterator[Turn]:
        shape = self._shape
        planned = {lane: stand[0] for lane, stand in self.stands.items()}
        begun = set()
        turn = 0
        position = 0
        while len(self.dry) < shape.rows:
            row, number = turn % shape.rows, turn // shape.rows
            turn += 1
            if row in self.dry:
                continue
            units = []
            for column in shape.mine:
                lane = row * shape.units + column
                if planned.get(lane, 0) > number:
                    continue
                given, since, cursor = self.stands.get(lane, (0, 0, None))
                begin = None
                # A worker that replaces another goes on near where that one was. What is large is sent once: it reads from the start then.
                if lane not in begun or (cursor is not None and len(cursor) <= LIGHT):
                    begin = given - since, cursor, 0 if lane in begun else self._placed.get(lane, 0)
                begun.add(lane)
                planned[lane] = number + 1
                units.append((lane, number, begin))
            if units:
                made = Turn(row, tuple(units), self._epoch, self._seed)
                self._planned.append((position, made))
                position += 1
                yield made

    def position(self, ordinal: int) -> int:
        """Not known: a filter may have left any number of samples out."""
        raise NotImplementedError

    def turn_at(self, position: int) -> Turn | None:
        """The turn at a position, whose result was seen now."""
        for at, (there, turn) in enumerate(self._planned):
            if there == position:
                del self._planned[at]
                return turn
        return None

    def fault(self, mark: int, turn: Turn | None) -> None:
        """A turn failed: once that is told, its units count as given, and what was in them comes with the next ones. ``None``: a batch
        of what was left over."""
        self._faults[mark] = turn

    def told(self, mark: int) -> None:
        """An error was handed over."""
        if mark not in self._faults:
            return
        turn = self._faults.pop(mark)
        if turn is None:
            self.tail += 1
        else:
            self.handed_over({lane: (k + 1, None) for lane, k, _ in turn.units}, 0)

    def left_out(self, entries: list[Any]) -> None:
        """Of what was handed over now, these bad elements were left out."""
        self.skipped += len(entries)
        log = self._pipeline._options.get("log")
        for entry in entries if log is not None else ():
            append(log, entry)

    def handed_over(self, stands: dict[int, tuple[int, Any]], tail: int) -> None:
        """Units of these lanes, or a batch of what was left over, were handed over."""
        shape = self._shape
        for lane, (units, cursor) in stands.items():
            stand = self.stands.setdefault(lane, [0, 0, None])
            stand[1] = 0 if cursor is not None else stand[1] + units - stand[0]
            stand[0] = units
            if cursor is not None:
                stand[2] = cursor
            self.turns = max(self.turns, (units - 1) * shape.rows + lane // shape.units + 1)
        self.tail += tail

    def mixed(self) -> list[Mix]:
        """What each mix has drawn in the lanes of this rank."""
        cursors = {lane: cursor for lane, (_, _, cursor) in self.stands.items() if cursor is not None}
        return mixed({"lanes": [pickle.loads(cursor) for cursor in {**cursors, **self.ends}.values()]})

    def state(self, delivered: int) -> dict[str, Any]:
        """Where the lanes of this rank stand, and what is known of others."""
        if self._pipeline._native.timed and any(since for _, since, _ in self.stands.values()):
            raise ResumeError("a batch failed in a pipeline with join(): take the state behind the next batch that is delivered")
        # Lanes of other ranks are where they were when something was known of them.
        lanes = {lane: {**entry, "old": True} for lane, entry in self._old.items()}
        # Those that have given nothing are known all the same.
        lanes |= {str(lane): {"units": 0, "since": 0, "cursor": None} for lane in self._shape.own}
        for lane, (units, since, cursor) in sorted(self.stands.items()):
            lanes[str(lane)] = {"units": units, "since": since, "cursor": None if cursor is None else pickle.loads(cursor)}
        state: dict[str, Any] = {
            "kind": "lanes",
            "facts": facts(self._pipeline, self._shape),
            "turns": self.turns,
            "lanes": lanes,
        }
        if self.dry:
            # This rank passes their turns over, and no other one knows.
            state["dry"] = sorted(self.dry)
        if self.skipped:
            state["skipped"] = self.skipped
        if self.tail:
            state["tail"] = self.tail
            state["world"] = self._shape.world
        return state


def facts(pipeline: Pipeline, shape: Shape) -> dict[str, Any]:
    """What has to be the same where a state is taken up."""
    return {**_same.identity(pipeline), **shape.facts()}


def check_state(loader: Any, plan: dict[str, Any], *, over: bool) -> None:
    """Refuses a state of other lanes; at the end of an epoch the next one may have other data."""
    shape = shape_of(loader)
    saved = plan["facts"]
    _same.check_same(loader.dataset, saved, over=over)
    for name, fix in (
        ("rows", "build the pipeline with lanes(rows={})"),
        ("units", "build the pipeline with lanes(units={})"),
        ("samples", "use a batch_size of {} samples for each unit of a rank"),
    ):
        here = shape.facts()[name]
        if saved[name] != here:
            raise ResumeError(f"the state has {name}={saved[name]}, this loader has {here}: {fix.format(saved[name])}")
    foreign = [lane for lane in shape.own if plan["lanes"].get(str(lane), {"old": True}).get("old")]
    if plan.get("dry") and foreign and not over:
        raise ResumeError(
            f"the state was saved by another rank, after its lanes of the rows {plan['dry']} had run out: where the lanes of this rank "
            f"were then ({foreign[:4]}, …) is not known any more. {_OWN}"
        )
    if plan.get("tail") and plan.get("world") != shape.world:
        raise ResumeError(
            f"the state was saved behind the last full batch, among the samples left over, by {plan.get('world')} ranks, and there are "
            f"{shape.world} here: use the same number for the rest of this epoch"
        )


class _Batch(Carried):
    """A batch on its way to the user, with what its delivery changes."""

    __slots__ = ("skipped", "stands", "tail")

    def __init__(self, batch: Any, stands: dict[int, tuple[int, Any]], tail: int, skipped: list[Any]) -> None:
        self.batch = batch
        self.stands = stands
        self.tail = tail
        self.skipped = skipped


class LaneSource:
    """Between an engine and what counts its batches: keeps what is left over when lanes end, and makes the last batches of it, so that only
    the very last one is short. All methods are called from one thread."""

    def __init__(
        self, source: Any, plan: LanePlan, shape: Shape, collate: Callable[[Any], Any], finish: Callable[[Any], Any]
    ) -> None:
        self._source = source
        self._plan = plan
        self._shape = shape
        self._collate = collate
        self._finish = finish
        self._rest: dict[int, list[Any]] = {}
        self._skipped: list[Any] = []
        self._rest_skipped: list[Any] = []
        self._counted = plan.skipped
        self._tail: deque[Any] | None = None
        self._given = 0
        self._mark: tuple[int, int] | None = None
        options = plan._pipeline._options
        self._at_most: int | None = options.get("at_most")
        #: Handed over by the next call: an error came in front of it.
        self._late: _Batch | None = None

    def next(self, timeout: float | None) -> Any:
        """The next batch, or ``END``; with a timeout of 0 ``NOT_READY`` when it is not there yet."""
        if self._late is not None:
            late, self._late = self._late, None
            self._mark = self._given - 1, 0
            return late
        while self._tail is None:
            try:
                found = self._source.next(timeout)
            except Exception:
                self._failed()
                raise
            if found is NOT_READY:
                return NOT_READY
            if found is END:
                self._tail = deque(self._last_batches())
                if not self._plan.tail:
                    # Else they were counted with the first of these batches.
                    self._skipped += self._rest_skipped
                for _ in range(min(self._plan.tail, len(self._tail))):
                    self._tail.popleft()
                break
            seen = self._source.mark()
            turn = None if seen is None else self._plan.turn_at(seen[0])
            for lane, samples in found.rest.items():
                if (end := found.stands[lane][1]) is not None:
                    self._plan.ends[lane] = end
                # Not handed over yet: a state has to bring it again. Turns that were planned meanwhile find nothing.
                self._rest.setdefault(lane, samples)
            if turn is not None and found.rest and all(lane in self._rest for lane in self._lanes_of(turn.row)):
                self._plan.dry.add(turn.row)
            self._skipped += found.skipped
            self._rest_skipped += found.rest_skipped
            if found.batch is END:
                continue
            return self._hand_over(found.batch, {lane: s for lane, s in found.stands.items() if lane not in found.rest}, 0)
        if not self._tail:
            self._mark = None
            skipped, self._skipped = self._skipped, []
            self._plan.last_skipped += skipped
            self._check(skipped)
            return END
        samples = self._tail.popleft()
        try:
            batch = self._finish(self._collate(samples))
        except Exception:
            self._mark = self._given, 0
            self._plan.fault(self._given, None)
            self._given += 1
            raise
        except BaseException:
            self._tail.appendleft(samples)
            raise
        return self._hand_over(batch, {}, 1)

    def mark(self) -> tuple[int, int] | None:
        """A new one for each batch or error."""
        return self._mark

    def _hand_over(self, batch: Any, stands: dict[int, tuple[int, Any]], tail: int) -> _Batch:
        self._mark = self._given, 0
        self._given += 1
        skipped, self._skipped = self._skipped, []
        made = _Batch(batch, stands, tail, skipped)
        try:
            self._check(skipped)
        except PipelineError:
            self._late, self._mark = made, None
            raise
        return made

    def _check(self, skipped: list[Any]) -> None:
        """Raises when these are too many with those before."""
        self._counted += len(skipped)
        if skipped and self._at_most is not None and self._counted > self._at_most:
            raise PipelineError(
                f"{self._counted} bad elements were left out of this epoch, and on_error() allows at_most={self._at_most}. The last: "
                f"{skipped[-1]}"
            )

    def _failed(self) -> None:
        seen = self._source.mark()
        turn = None if seen is None else self._plan.turn_at(seen[0])
        if turn is None:
            return
        self._mark = self._given, 0
        self._plan.fault(self._given, turn)
        self._given += 1

    def _lanes_of(self, row: int) -> list[int]:
        return [row * self._shape.units + column for column in self._shape.mine]

    def _last_batches(self) -> Iterator[list[Any]]:
        """What is left over, by columns: the same on any number of ranks."""
        shape = self._shape
        columns = []
        for column in shape.mine:
            left = [s for row in range(shape.rows) for s in self._rest.get(row * shape.units + column, ())]
            columns.append([left[at : at + shape.samples] for at in range(0, len(left), shape.samples)])
        size = len(shape.mine) * shape.samples
        for step in range(max(map(len, columns), default=0)):
            batch = [s for column in columns if step < len(column) for s in column[step]]
            if len(batch) == size or not self._plan.drop_last:
                yield batch
