"""Where a loader stands: the epoch it is in, how far the user has come, and the states that say so."""

from __future__ import annotations

import contextlib
import copy
import itertools
import operator
import pickle
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from feedrate import _lanes, _options, _orders, _randoms
from feedrate._coordinator import AgreedSource, Coordinator
from feedrate._fetch import END, Stated
from feedrate._iterate import Unsaved, has_state
from feedrate._pipeline import Mix, Pipeline, holds_pipeline
from feedrate._plan import Cut, OrderPlan, Plan, SamplerPlan, StreamPlan, run_out
from feedrate._ranks import Ranks, around
from feedrate._state_checks import FORMAT, check_state, ordering
from feedrate._state_errors import ResumeError


def _generators(loader: Any) -> dict[str, Any]:
    return _randoms.owned_by({"generator": loader.generator, **around(loader)})


def _draw_as(loader: Any) -> None:
    """Draws what the making of an iterator draws for its base seed."""
    if isinstance(loader.generator, np.random.Generator):
        loader.generator.integers(0, 1 << 63, dtype=np.int64)
    else:
        _orders.torch_seed(loader.generator)


class Epoch:
    """One pass over a loader's data. Made when the pass begins, on the thread that iterates; kept by the loader for its states."""

    def __init__(self, loader: Any, saved: dict[str, Any] | None, skip: int) -> None:
        # An epoch that was taken up counts at once.
        self.resumed = saved is not None and (saved["batches"] > 0 or skip > 0)
        self.number: int = loader._epochs
        self.turn: int = loader._turn
        #: The loader's seed for its workers.
        self.base_seed = 0
        #: The last batch was handed over and the end was seen.
        self.over = False
        self._loader = weakref.ref(loader)
        self._saved = saved = saved or {}
        self._skip = skip
        self._plan: Plan | None = None
        #: Between the engine and this, for a stream whose ranks agree on its steps.
        self.agreed: AgreedSource | None = None
        # Generators before the order is drawn: of the loader and its samplers, and for samplers that are replayed process-wide.
        self._before: dict[str, Any] = saved.get("generators", {})
        self._globals: dict[str, Any] | None = None
        self._unseeded = False
        #: The state is of an epoch whose seeds were drawn.
        self._drawn = "seed" in saved
        self._midway = self._drawn and not saved.get("over")
        #: The iterator that was made over the sampler has drawn from generators that were put back after it.
        self._stale = False
        # Index objects handed over: all of the first ``done``, and those of ``ahead`` (out of order).
        self.done = 0
        self._ahead: set[int] = set()
        self._mark: tuple[int, int] | None = None
        self._left_out: list[int] = sorted(saved.get("ahead", ()))
        self._batches: int = saved.get("batches", 0) + skip
        self._stands: dict[int, dict[str, Any]] = {}
        self._last_worker: int | None = None
        self.stream = _is_stream(loader)
        #: How its pipeline is cut into lanes, if it is one.
        self.shape = _lanes.shape_of(loader) if _lanes.is_laned(loader.dataset) else None
        self.known = None if self.stream else _known(loader, self.number)
        #: Whether samples come from map-style pipelines, which draw by the loader's seed and epoch.
        self.held = not self.stream and holds_pipeline(loader.dataset)
        #: Whether index objects come with where they stand in the epoch.
        self.addressed = self.shape is None and (self.held or loader.seeding == "sample")
        self._last: int | None = None
        #: Whether each batch has to be reported by :meth:`arrived`.
        self.tracked = self.stream or not loader.in_order or has_state(loader.dataset) or bool(self._left_out)
        if self.tracked:
            self._take_over(saved)

    def _take_over(self, saved: dict[str, Any]) -> None:
        """A state at once after loading is that which was loaded."""
        workers = saved.get("workers")
        if workers is None:
            return
        loader: Any = self._loader()
        over, shared = bool(saved.get("over")), _shares_dataset(loader)
        for worker, stand in enumerate(workers["each"]):
            if stand is None or (over and (stand["state"] is None or (shared and (stand["ended"] or not self.stream)))):
                continue
            state = None if stand["state"] is None else pickle.dumps(stand["state"])
            self._stands[worker] = {**stand, "state": state, **(_NEXT_PASS if over else {})}
        if workers["next"] is not None and loader.num_workers > 0 and not over:
            self._last_worker = (workers["next"] - 1) % loader.num_workers

    def follow(self, last: Epoch) -> None:
        """Workers that are kept begin where they stood when ``last`` ended, until a batch says more."""
        loader: Any = self._loader()
        if not self.tracked or self.shape is not None or (last.over and _live(loader, over=False)):
            return
        for worker in range(loader.num_workers):
            stand = last._stands.get(worker)
            if not last.over and has_state(loader.dataset):
                # It may have made batches that nobody received.
                self._stands[worker] = {"state": None, "since": 0, "ended": False, "lost": True}
            elif last.over and stand is not None and stand["state"] is not None:
                self._stands[worker] = {**stand, **_NEXT_PASS}

    # -- how an epoch begins

    @contextlib.contextmanager
    def begun(self, *, unseeded: bool) -> Iterator[None]:
        """Around what draws the base seed, and with ``unseeded`` also makes the sampler's iterator."""
        if self._saved and not self._drawn:
            self._restore_generators()
        iterated = self.known is None and not self.stream
        self._stale = unseeded and self._drawn
        if unseeded and iterated and not self._drawn:
            self.note_generators(unseeded=True)
        # What is drawn for an epoch that was begun before was drawn then.
        with _randoms.preserved() if self._drawn else contextlib.nullcontext():
            yield
        if self._drawn:
            self._restore_generators()
        if unseeded and (not iterated or self._drawn):
            self.note_generators()

    def seeded(self, drawn: int) -> int:
        """The base seed: the one of the state, or the one drawn now."""
        saved = self._saved
        self.base_seed = saved.get("seed", saved.get("draws", {}).get("seed", drawn))
        return self.base_seed

    def _restore_generators(self) -> None:
        loader = self._loader()
        mine = _generators(loader)
        for path, state in self._saved.get("generators", {}).items():
            if path in mine:
                _randoms.restore(mine[path], state)

    def note_generators(self, *, unseeded: bool = False) -> None:
        """Notes the random generators as they are before the order is drawn. In the middle of an epoch the state knows them."""
        loader = self._loader()
        if self._midway:
            self._unseeded = bool(self._saved.get("plan", {}).get("unseeded"))
            return
        self._before = {path: _randoms.pack(_randoms.read(g)) for path, g in _generators(loader).items()}
        if self.known is None and not self.stream:
            sampler, _ = ordering(loader)
            self._unseeded = unseeded
            if not has_state(sampler):
                self._globals = {name: _randoms.pack(_randoms.read(g)) for name, g in _randoms.process_wide().items()}

    def source(self, made: Iterator[Any]) -> Iterator[Any]:
        """What the feed is begun with. ``made`` is the iterator over the loader's index sampler that was made for this epoch."""
        loader: Any = self._loader()
        if self.tracked and not self._midway and not self._stands:
            # Threads begin with the dataset as it is here.
            self._stands = _live(loader, over=False)
        sampler, cut = ordering(loader)
        saved = dict(self._saved.get("plan", {}))
        draws = self._saved.get("draws", {})
        plan: Plan
        if self.shape is not None:
            plan = _lanes.LanePlan(
                loader, self.shape, {} if self._saved.get("over") else saved, self.number, self.pipeline_seed() or 0
            )
        elif self.stream:
            plan = StreamPlan(cut or Cut(None, False), made)
        elif self.known is not None:
            assert cut is not None
            if "order" in draws:
                saved["seed"], saved["peeked"] = draws["order"], True
            world = self.known.world if loader._ranks is None else loader._ranks.world
            saved["samples"] = saved.get("samples", 0) + self._skip * cut.step * world
            plan = OrderPlan(self.known, cut, saved, loader._ranks)
            if self._midway and plan.start:
                # Drawn at once: also an iterator that is left unused leaves the generators where they belong.
                plan.order()
        else:
            given = made if (cut is None or cut.batch_size is None) and not self._stale else None
            plan = SamplerPlan(
                sampler,
                cut,
                made=given,
                # Between epochs the sampler was told when the state was loaded.
                saved=None if _between_epochs(self._saved) else saved,
                skip=self._skip,
                delivered=lambda: self.done,
                globals_before=self._globals,
                draw_seed=(lambda: _draw_as(loader)) if self._unseeded else None,
                ranks=loader._ranks,
            )
        self._plan = plan
        objects = iter(plan)
        if self.addressed:
            objects = _keyed(objects, plan, self.number)
        if self._left_out:
            left_out = set(self._left_out)
            objects = (index for k, index in enumerate(objects) if k not in left_out)
        return objects

    def pipeline_seed(self) -> int | None:
        """By which pipelines draw: their own seed, else the loader's, that of the state, or one that is drawn now (0 with ranks, which
        have to agree). ``None`` where there is none."""
        if self.shape is None and not self.held:
            return None
        loader: Any = self._loader()
        seed = _said_seed(loader)
        if seed is None:
            seed = loader._pipeline_seed
        if seed is None:
            seed = 0 if loader._ranks is not None else _options.keyed_seed(loader, self.base_seed)
        return int(seed) & _MASK

    # -- workers

    def resume_workers(self) -> dict[int, dict[str, Any]]:
        """For each worker, from where it goes on: the state of its dataset, and batches of its stream to pass over."""
        saved = self._saved
        workers = saved.get("workers")
        loader: Any = self._loader()
        shared = bool(saved.get("over")) and _shares_dataset(loader)
        if workers is None or (shared and not self.stream):
            return {}
        epoch = None if _shares_dataset(loader) else _options.dataset_epoch(loader.dataset)
        found = {}
        for worker, stand in enumerate(workers["each"]):
            if stand is None:
                continue
            over = bool(saved.get("over") or stand.get("over"))
            if stand["state"] is not None or not over:
                skip = stand["since"] if self.stream and not saved.get("over") and (over or not stand["ended"]) else 0
                # A dataset of this process was told when the state was loaded.
                state = {**stand["state"], "dataset": None} if shared else stand["state"]
                found[worker] = {"state": state, "skip": skip, "over": over, "ended": stand["ended"], "epoch": epoch}
        return found

    def first_worker(self) -> int:
        """The worker of the first index object."""
        workers = self._saved.get("workers")
        if workers is not None and not self._saved.get("over"):
            return int(workers["next"] or 0)
        return 0

    # -- how far the user is

    def failed(self, mark: tuple[int, int] | None) -> None:
        """Something was raised: in the place of a batch, or (``mark`` as before) not."""
        if mark is None or mark == self._mark:
            return
        if self.tracked:
            self.arrived(*mark, None)
        else:
            self.done = mark[0] + 1

    def arrived(self, position: int, worker: int, batch: Any) -> Any:
        """A batch, or an error in its place, was handed over; returns the batch without the state that came with it."""
        if self.shape is not None:
            return self._lanes_arrived(position, batch)
        stand = self._stands.setdefault(worker, {"state": None, "since": 0, "ended": False})
        stand["since"] += 1
        if type(batch) is Stated:
            stand["ended"] = batch.ended
            if batch.state is not None:
                self._stands[worker] = {"state": batch.state, "since": 0, "ended": batch.ended}
            batch = batch.batch
        self._last_worker = worker
        self._mark = position, worker
        if self.stream:
            self.done += 1
            if self.done <= 2:
                self.counts()
            return batch
        ordinal = position
        for left_out in self._left_out:
            ordinal += left_out <= ordinal
        self._ahead.add(ordinal)
        self._last = ordinal
        self._close_up()
        return batch

    def _lanes_arrived(self, position: int, batch: Any) -> Any:
        self._mark = position, 0
        self.done += 1
        if self.done <= 2:
            self.counts()
        assert isinstance(self._plan, _lanes.LanePlan)
        if batch is None:
            self._plan.told(position)
            return None
        self._plan.handed_over(batch.stands, batch.tail)
        self._left_out_of(batch.skipped)
        return batch.batch

    def _left_out_of(self, skipped: list[Any]) -> None:
        loader = self._loader()
        if skipped:
            assert isinstance(self._plan, _lanes.LanePlan)
            self._plan.left_out(skipped)
            if loader is not None:
                loader._left_out.extend(skipped)

    def filled(self, batch: Any) -> Any:
        """A batch of a step that takes place on other ranks only was handed over."""
        self.done += 1
        if self.done <= 2:
            self.counts()
        return batch

    def counts(self) -> None:
        """A second batch was handed over, or the only one: from now on this epoch is one, and the next ``iter()`` the next one."""
        loader = self._loader()
        if loader is None:
            return
        # Some trainers never ask for more than len() says.
        if self.done == 1 and not self.over and (self.stream or not self._is_only_batch(loader)):
            return
        loader._count(self)

    def _is_only_batch(self, loader: Any) -> bool:
        try:
            if not type(loader).__len__.__module__.startswith(("feedrate.", "torch.utils.data.")):
                # It may even iterate the loader.
                return False
            if self.known is not None:
                return len(loader) == 1
            # Users' code: it may draw, and it may fail, as those of samplers without an end do.
            with _randoms.preserved():
                return len(loader) == 1
        except Exception:
            return False

    def ended(self) -> None:
        """The end was seen."""
        self.over = True
        if isinstance(self._plan, _lanes.LanePlan):
            skipped, self._plan.last_skipped = self._plan.last_skipped, []
            self._left_out_of(skipped)
        self.counts()

    def read_over(self, iterator: Iterator[Any]) -> None:
        """Reads the batches of a stream that are to be skipped; other plans have passed over them already."""
        if self.stream:
            for _ in range(self._skip):
                next(iterator, None)

    def opened(self, initial: bytes | None) -> None:
        """The fetcher without workers has been made: ``initial`` is the state of its dataset or stream."""
        if initial is not None and (0 not in self._stands or self._stands[0].get("over")):
            self._stands[0] = {"state": initial, "since": 0, "ended": False}

    def _close_up(self) -> None:
        ahead = self._ahead
        while self.done in ahead or self.done in self._left_out:
            ahead.discard(self.done)
            self.done += 1
            if self.done <= 2:
                self.counts()

    def mask(self) -> Any:
        """Of the batch that was handed over last."""
        if self.agreed is not None:
            return self.agreed.mask()
        ordinal = self.done - 1 if self._last is None else self._last
        if self._plan is None or ordinal < 0:
            return None
        return self._plan.mask(ordinal)

    def order(self) -> Any:
        """The order of the whole epoch if it is known and drawn."""
        return self._plan._order if isinstance(self._plan, OrderPlan) else None

    @property
    def lanes(self) -> _lanes.LanePlan | None:
        """The plan over lanes, where there is one."""
        return self._plan if isinstance(self._plan, _lanes.LanePlan) else None

    def state(self) -> dict[str, Any]:
        """Behind the last batch that was handed over."""
        loader: Any = self._loader()
        if self.over:
            return fresh(loader, self)
        state: dict[str, Any] = {"feedrate": FORMAT, "epoch": self.number, "batches": self._batches + self.done}
        plan = self._plan
        plan_state = plan.state(self.done) if plan is not None else self._saved.get("plan", {})
        state["plan"] = plan_state
        state["seed"] = self.base_seed
        if self._before:
            state["generators"] = self._before
        ahead = sorted(k - self.done for k in {*self._ahead, *self._left_out} if k >= self.done)
        if ahead:
            state["ahead"] = ahead
        return {**state, **self._users(loader, self._stands)}

    def _users(self, loader: Any, stands: dict[int, dict[str, Any]]) -> dict[str, Any]:
        workers = loader.num_workers
        found: dict[str, Any] = {}
        if loader.seeding == "sample" and self.shape is None:
            found["key"] = loader.seed if loader.seed is not None else loader._drawn_seed
        seed = self.pipeline_seed()
        if seed is not None:
            found["pipeline seed"] = seed
        if stands and (self.stream or has_state(loader.dataset)):
            each = []
            for worker in range(max(1, workers)):
                stand = stands.get(worker)
                if stand is not None:
                    found_there = None if stand["state"] is None else pickle.loads(stand["state"])
                    if isinstance(found_there, Unsaved):
                        raise ResumeError(f"state_dict() of the dataset or its iterator cannot be used: {found_there.why}")
                    stand = {**stand, "state": found_there}
                each.append(stand)
            following = None if self._last_worker is None else (self._last_worker + 1) % max(1, workers)
            found["workers"] = {"count": workers, "next": following, "each": each}
        return found


_MASK = 0xFFFFFFFFFFFFFFFF


def _between_epochs(state: dict[str, Any]) -> bool:
    """Whether the state was taken where no epoch was under way: behind the end of one, or before the first one."""
    return bool(state.get("over")) or "seed" not in state


def _shares_dataset(loader: Any) -> bool:
    """Whether samples are made with the loader's dataset itself, and not with copies of it."""
    return loader.num_workers == 0 or _options.use_threads(loader)


#: Of a worker that has yet to begin its next pass: batches are counted from there.
_NEXT_PASS = {"over": True, "since": 0}


def _live(loader: Any, *, over: bool) -> dict[int, dict[str, Any]]:
    """Where worker threads stand before they begin (``over``: when all have ended): they share the loader's dataset."""
    if loader.num_workers == 0 or not _shares_dataset(loader) or not has_state(loader.dataset) or _lanes.is_laned(loader.dataset):
        return {}
    state = loader.dataset.state_dict()
    raw = pickle.dumps({"dataset": state, "iterator": None} if _is_stream(loader) else state)
    return {worker: {"state": raw, "since": 0, "ended": over} for worker in range(loader.num_workers)}


def _settle(loader: Any, state: dict[str, Any]) -> None:
    """Between epochs, what has a state of its own in this process gets it when the loader is loaded, and not at ``iter()``: a user who
    then calls ``set_epoch()`` has the last word."""
    if not _between_epochs(state):
        return
    sampler, _ = ordering(loader)
    saved = state["plan"].get("sampler")
    if saved is not None and saved["sampler"] is not None:
        if state.get("over"):
            run_out(sampler, saved["sampler"])
        else:
            with _randoms.preserved():
                sampler.load_state_dict(copy.deepcopy(saved["sampler"]))
    workers = state.get("workers")
    stand = workers["each"][0] if workers is not None and _shares_dataset(loader) else None
    if stand is None or stand["state"] is None:
        return
    # It may hold that of a random generator, so that it comes before the order is drawn.
    whole = stand["state"]["dataset"] if _is_stream(loader) else stand["state"]
    if whole is not None:
        loader.dataset.load_state_dict(copy.deepcopy(whole))


def _said_seed(loader: Any) -> int | None:
    """The seed that the user gave to a pipeline or its loader."""
    own = loader.dataset._options.get("seed") if isinstance(loader.dataset, Pipeline) else None
    seed = loader.seed if own is None else own
    return None if seed is None else int(seed) & _MASK


def _known(loader: Any, epoch: int) -> _orders.Known | None:
    sampler, cut = ordering(loader)
    found = None if cut is None else _orders.known(sampler)
    if found is not None and loader._ranks is not None:
        found.fixed, found.common = (loader.seed or 0) + epoch, loader.seed or 0
    return found


def _is_stream(loader: Any) -> bool:
    iterable = getattr(loader, "_iterable", None)
    return bool(loader._dataset_kind) if iterable is None else bool(iterable)


def _keyed(objects: Iterator[Any], plan: Plan, epoch: int) -> Iterator[Any]:
    """Each index object with its key: the epoch, the position in it of the first sample, and the step to the next one."""
    numbers = itertools.count()

    def keyed(index: Any) -> Any:
        return (epoch, plan.position(next(numbers)), plan.stride), index

    # No generator: it would be at its end behind an error.
    return map(keyed, objects)


def fresh(loader: Any, last: Epoch | None) -> dict[str, Any]:
    """The state at the start of the next epoch."""
    state: dict[str, Any] = {"feedrate": FORMAT, "epoch": loader._epochs, "batches": 0}
    persistent = loader.num_workers > 0 and loader.persistent_workers and last is not None
    stream = _is_stream(loader)
    known = None if stream else _known(loader, loader._epochs)
    if _lanes.is_laned(loader.dataset):
        facts = _lanes.facts(loader.dataset, _lanes.shape_of(loader))
        state["plan"] = {"kind": "lanes", "facts": facts, "turns": 0, "lanes": {}}
    elif stream:
        _, cut = ordering(loader)
        state["plan"] = {"kind": "stream", "facts": {"batch_size": cut.batch_size if cut else None}}
    elif known is not None:
        _, cut = ordering(loader)
        assert cut is not None
        state["plan"] = {"kind": known.kind, "facts": known.all_facts(), "samples": 0, "seed": None, "batch_size": cut.batch_size}
    else:
        sampler, cut = ordering(loader)
        plan = SamplerPlan(sampler, cut)
        state["plan"] = plan.state(0)
    generators = _generators(loader)
    if generators:
        state["generators"] = {path: _randoms.pack(_randoms.read(g)) for path, g in generators.items()}
    if persistent and last is not None:
        state["seed"] = last.base_seed
    if known is not None and "seed" in state["plan"] and state["plan"]["seed"] is None and not known.global_draws():
        upcoming = known.upcoming()
        if upcoming is not None:
            state["plan"]["seed"] = upcoming
    draws = _peek(loader, known, seed=not persistent)
    if draws:
        state["draws"] = draws
    if last is not None:
        # Other workers of the next epoch are new, with the dataset as it is then.
        kept = last._stands if persistent or loader.num_workers == 0 else {}
        state.update(last._users(loader, _live(loader, over=True) or kept))
        state["over"] = True
    return state


def _peek(loader: Any, known: _orders.Known | None, *, seed: bool) -> dict[str, int]:
    """What the next epoch would draw from torch's process-wide generator, which is left as it is."""
    torch = sys.modules.get("torch")
    if torch is None or loader.generator is not None:
        seed = False
    orders = known.global_draws() if known is not None else 0
    draws: dict[str, int] = {}
    if torch is None or not (seed or orders):
        return draws
    clone = _orders.torch_clone()
    if seed:
        draws["seed"] = _orders.torch_seed(clone)
    if orders:
        draws["order"] = _orders.torch_seed(clone)
    return draws


class Resumable:
    """What both loaders can tell and take up again."""

    # Set on the loader, and seen by none of the framework's own checks.
    _epochs: int = 0
    #: Of a state that was loaded.
    _pipeline_seed: int | None = None
    _epoch: Epoch | None = None
    _loaded: dict[str, Any] | None = None
    _skip: int = 0
    _ranks: Ranks | None = None
    _meeting: Coordinator | None = None
    #: With persistent workers, the one iterator.
    _iterator: Any = None
    #: The iterator that :meth:`try_next` asks.
    _asked: Any = None
    #: Moved by what makes older epochs none of the loader's business.
    _turn: int = 0

    def _agreed(self, source: Any, epoch: Epoch) -> Any:
        """Where batches come from: for a stream with ranks, from behind their agreement on its steps. Called once an epoch."""
        ranks = self._ranks
        me: Any = self
        if isinstance(epoch._plan, _lanes.LanePlan):
            assert epoch.shape is not None
            source = _lanes.LaneSource(source, epoch._plan, epoch.shape, me.collate_fn, self._finished)
        if ranks is None or not epoch.stream:
            return source
        if self._meeting is None:
            object.__setattr__(self, "_meeting", me.coordinator or Coordinator())
        assert self._meeting is not None
        epoch.agreed = AgreedSource(source, self._meeting.begin(ranks), batched=me.batch_sampler is not None)
        return epoch.agreed

    def __aiter__(self) -> Any:
        """``async for batch in loader``: a new epoch."""
        iterator: Any = iter(self)  # type: ignore[call-overload]
        return iterator.__aiter__()

    def try_next(self) -> Any:
        """The next batch if it is there, else ``feedrate.NOT_READY`` at once; ``feedrate.END`` at the end of the epoch, and behind that the
        next one begins. The first call begins an epoch, and so does the first one behind :meth:`load_state_dict` or :meth:`set_epoch`.
        Without workers the batch is made in the call."""
        if self._asked is None:
            object.__setattr__(self, "_asked", iter(self))  # type: ignore[call-overload]
        try:
            return self._asked.try_next()
        except StopIteration:
            object.__setattr__(self, "_asked", None)
            return END

    def _finished(self, batch: Any) -> Any:
        """What is still done in this process to a batch that was made in it: pinning."""
        return batch

    @_options.Told
    def skipped(self) -> list[dict[str, Any]]:
        """The bad elements that a pipeline left out by its ``on_error()``, since the loader was made: shard, key, step and reason."""
        return self._left_out

    @property
    def _left_out(self) -> list[dict[str, Any]]:
        if "_skipped" not in self.__dict__:
            object.__setattr__(self, "_skipped", [])
        found: list[dict[str, Any]] = self.__dict__["_skipped"]
        return found

    @_options.Told
    def mixed(self) -> list[Mix]:
        """What each :func:`feedrate.mix` of the pipeline has drawn in this epoch, on this rank, the outermost one first: elements of
        each stream, and how many were to be expected by the weights. Large cursors come with every few batches only, so that behind
        large shuffle windows it lags a little until the epoch's end. ``[]`` without a mix, and before the first batch."""
        plan = None if self._epoch is None else self._epoch.lanes
        return [] if plan is None else plan.mixed()

    def state_dict(self) -> dict[str, Any]:
        """Where the user stands: what a loader of the same data needs to go on with the next batch.

        Counts the batches that were received, not those on their way. Plain data that JSON can hold, but for what users' own
        ``state_dict()`` methods gave, which is kept as it is. After the end of an epoch it is the start of the next one. Draws
        nothing from any random generator.
        """
        if self._epoch is not None and not self._epoch.over and self._loaded is None:
            return self._epoch.state()
        state = fresh(self, self._epoch) if self._loaded is None else copy.deepcopy(self._loaded)
        if self._skip:
            state["skip"] = state.get("skip", 0) + self._skip
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next ``iter()`` go on where ``state`` was taken, also with another number or kind of workers, another prefetch
        and, for orders that are known without iterating, another batch size.

        Raises :class:`feedrate.ResumeError` for what cannot go on exactly, and then changes nothing. An empty state is the start.
        """
        if state or state is None:
            state = copy.deepcopy(state)
            check_state(self, state, fresh(self, None)["plan"], _said_seed(self))
            mine = _generators(self)
            for path, packed in state.get("generators", {}).items():
                if path in mine:
                    _randoms.check(mine[path], packed, "loader")
            _settle(self, state)
        self._leave_epochs()
        object.__setattr__(self, "_iterator", None)
        object.__setattr__(self, "_loaded", state or None)
        object.__setattr__(self, "_epoch", None)
        object.__setattr__(self, "_epochs", state["epoch"] if state else 0)
        if state and "key" in state:
            object.__setattr__(self, "_drawn_seed", state["key"])
        object.__setattr__(self, "_pipeline_seed", state.get("pipeline seed") if state else None)

    def _leave_epochs(self) -> None:
        """Iterators that were made before do not move the loader any more."""
        object.__setattr__(self, "_turn", self._turn + 1)
        object.__setattr__(self, "_asked", None)

    def skip(self, steps: int) -> None:
        """Makes the next ``iter()`` pass over ``steps`` batches. Those of map-style data are not loaded; a stream has to be read to
        know what is in them."""
        if steps < 0:
            raise ValueError(f"skip() takes a number of batches that is not negative, but got {steps}")
        object.__setattr__(self, "_skip", self._skip + steps)

    @_options.Told
    def mask(self) -> Any:
        """Which samples of the batch that was delivered last are this rank's own, as an array of bool: with ``distributed`` and
        ``remainder="pad"`` it is ``False`` for those that fill up the last step, with ``"exact"`` it is empty for an empty batch.
        ``None`` before the first batch, and for iterable datasets without ``distributed``; with it, all or none."""
        return None if self._epoch is None else self._epoch.mask()

    def plan(self, epoch: int, step: int, rank: int | None = None) -> list[Any]:
        """The indices of the samples in the batch at ``step`` of ``epoch``, both from 0, for this rank or another one; ``[]`` for an
        empty batch. Nothing is loaded, and no random generator moves.

        Raises ``IndexError`` behind the last batch, and ``ValueError`` where it cannot be known: for iterable datasets, for samplers
        that have to be iterated, for epochs whose order was drawn and is gone, and for those that will be drawn from torch's
        process-wide generator.
        """
        sampler, cut = ordering(self)
        known = None if _is_stream(self) else _known(self, epoch)
        if known is None or cut is None:
            what = type(self.dataset if _is_stream(self) else sampler).__name__  # type: ignore[attr-defined]
            raise ValueError(
                f"what a batch of {what} holds is not known before it is read: plan() needs a map-style dataset and an order that "
                "feedrate knows"
            )
        ranks = self._ranks
        if ranks is not None and rank is not None:
            ranks = Ranks(rank, ranks.world, ranks.remainder)
        plan = OrderPlan(known, cut, None, ranks)
        if ranks is None and rank is not None:
            plan.rank = rank
        if not 0 <= plan.rank < plan.world:
            raise ValueError(f"plan() was asked for rank {rank} of {plan.world}")
        plan.use(self._order_of(epoch, known))
        try:
            return plan.indices(step)
        except IndexError:
            raise IndexError(f"epoch {epoch} of rank {plan.rank} has no batch at step {step}") from None

    def _order_of(self, epoch: int, known: _orders.Known) -> Any:
        me: Any = self
        current = self._epoch
        if current is not None and current.number == epoch and current.order() is not None:
            return current.order()
        if known.fixed is not None or known.kind == "sequential":
            return known.draw(None)[0]
        if known.kind == "distributed":
            known.sampler = copy.copy(known.sampler)
            return known.draw(epoch)[0]
        following = self._epochs if current is None or current.over else current.number + 1
        if epoch < following or known.global_draws() or getattr(known.sampler, "generator", 0) is None:
            raise ValueError(
                f"the order of epoch {epoch} is not known now: it is drawn from a random generator when the epoch begins, and the loader "
                f"is at epoch {self._epochs}. With a generator of the loader's own later epochs are known, with distributed= all are"
            )
        generators = _generators(self)
        before = {path: _randoms.pack(_randoms.read(g)) for path, g in generators.items()}
        order = None
        try:
            with _randoms.preserved():
                for _ in range(following, epoch + 1):
                    if not (me.num_workers > 0 and me.persistent_workers and current is not None):
                        _draw_as(self)
                    order, _ = known.draw(None)
                    known.finish()
        finally:
            for path, state in before.items():
                _randoms.restore(generators[path], state)
        return order

    def _rank_batches(self) -> int:
        """``len()`` of a loader with ranks."""
        sampler, cut = ordering(self)
        assert self._ranks is not None
        return self._ranks.steps(len(sampler), 1 if cut is None else cut.step, cut is not None and cut.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` the epoch of this number, from 0, and tells samplers and dataset that have ``set_epoch``.

        After :meth:`load_state_dict` the epoch of the state goes on where it stopped, and another one starts at its beginning. Without
        it each ``iter()`` is the next epoch; one that was left before its second batch does not count.
        """
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ValueError(f"set_epoch() takes the number of an epoch, from 0, but got {epoch}")
        self._leave_epochs()
        if self._loaded is None or self._loaded["epoch"] != epoch:
            object.__setattr__(self, "_loaded", None)
            object.__setattr__(self, "_epochs", epoch)
        me: Any = self
        for part in (me.dataset, *around(me).values()):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)

    def _begin_epoch(self) -> Epoch:
        last, epoch = self._epoch, Epoch(self, self._loaded, self._skip + (self._loaded or {}).get("skip", 0))
        if last is not None and self._iterator is not None:
            epoch.follow(last)
        object.__setattr__(self, "_loaded", None)
        object.__setattr__(self, "_skip", 0)
        object.__setattr__(self, "_epoch", epoch)
        if epoch.resumed:
            self._count(epoch)
        return epoch

    def _count(self, epoch: Epoch) -> None:
        """This epoch counts: the next ``iter()`` is the next one."""
        if epoch.turn != self._turn:
            return
        object.__setattr__(self, "_epochs", max(self._epochs, epoch.number + 1))
