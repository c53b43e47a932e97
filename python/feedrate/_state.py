"""Where a loader stands: the epoch it is in, how far the user has come, and the states that say so."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from feedrate import _lanes, _options, _orders, _randoms
from feedrate._coordinator import AgreedSource
from feedrate._fetch import Stated
from feedrate._iterate import Unsaved, attribute, has_state
from feedrate._pipeline import Pipeline, holds_pipeline
from feedrate._plan import Cut, OrderPlan, Plan, SamplerPlan, StreamPlan, run_out
from feedrate._progress import options, progress
from feedrate._ranks import around
from feedrate._state_checks import FORMAT, ordering, whose
from feedrate._state_errors import ResumeError


def owned_generators(loader: Any) -> dict[str, Any]:
    """The generators of a loader and its samplers, also of those that a sampler without a state wraps under any name, by path."""
    parts = {"generator": loader.generator, **around(loader)}
    ahead = [(path, part) for path, part in parts.items() if path != "generator"]
    while ahead and len(parts) < 100:
        path, part = ahead.pop(0)
        if has_state(part):
            continue
        for name, value in sorted((attribute(part, "__dict__") or {}).items()):
            # Lightning and others hand a sampler on as a dataset of its indices.
            wrapped = name == "dataset" and value is not loader.dataset and "_sampler" in (attribute(value, "__dict__") or {})
            if (wrapped or _is_sampler(value)) and all(value is not other for other in parts.values()):
                parts[f"{path}.{name}"] = value
                ahead.append((f"{path}.{name}", value))
    return _randoms.owned_by(parts)


def _is_sampler(value: Any) -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and issubclass(type(value), data.Sampler) and not has_state(value)


def draw_base_seed(loader: Any) -> None:
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
        self.number: int = progress(loader).epochs
        self.turn: int = progress(loader).turn
        self._options = copy.copy(options(loader))
        self._pipeline_seed: int | None = None
        #: The loader's seed for its workers.
        self.base_seed = 0
        #: The last batch was handed over and the end was seen.
        self.over = False
        self._loader = weakref.ref(loader)
        self._saved = saved = saved or {}
        #: Of the batches to come, those that were handed over before the state was taken, out of order.
        self._left_out: list[int] = sorted(saved.get("ahead", ()))
        for ordinal in self._left_out:
            # What is passed over are batches that were not handed over yet.
            skip += ordinal < skip
        self._left_out = [ordinal - skip for ordinal in self._left_out if ordinal >= skip]
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
        self._batches: int = saved.get("batches", 0) + skip
        self._stands: dict[int, dict[str, Any]] = {}
        self._last_worker: int | None = None
        self.stream = is_stream(loader)
        #: How its pipeline is cut into lanes, if it is one.
        self.shape = _lanes.shape_of(loader) if _lanes.is_laned(loader.dataset) else None
        self.known = None if self.stream else known_order(loader, self.number)
        #: Whether samples come from map-style pipelines, which draw by the loader's seed and epoch.
        self.held = not self.stream and holds_pipeline(loader.dataset)
        #: Whether index objects come with where they stand in the epoch.
        self.addressed = self.shape is None and (self.held or self._options.seeding == "sample")
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
        mine = owned_generators(loader)
        for path, state in self._saved.get("generators", {}).items():
            if path in mine:
                _randoms.restore(mine[path], state)

    def note_generators(self, *, unseeded: bool = False) -> None:
        """Notes the random generators as they are before the order is drawn. In the middle of an epoch the state knows them."""
        loader = self._loader()
        if self._midway:
            self._unseeded = bool(self._saved.get("plan", {}).get("unseeded"))
            return
        self._before = {path: _randoms.pack(_randoms.read(g)) for path, g in owned_generators(loader).items()}
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
            ranks = progress(loader).ranks
            world = self.known.world if ranks is None else ranks.world
            saved["samples"] = saved.get("samples", 0) + self._skip * cut.step * world
            plan = OrderPlan(self.known, cut, saved, ranks)
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
                draw_seed=(lambda: draw_base_seed(loader)) if self._unseeded else None,
                ranks=progress(loader).ranks,
            )
        self._plan = plan
        objects = iter(plan)
        if self.addressed:
            objects = _keyed(objects, plan, self.number)
        if self._left_out:
            left_out = set(self._left_out)
            stay = [k not in left_out for k in range(max(left_out) + 1)]
            objects = itertools.compress(objects, itertools.chain(stay, itertools.repeat(True)))
        return objects

    def pipeline_seed(self) -> int | None:
        """By which pipelines draw: their own seed, else the loader's, that of the state, or one that is drawn now (0 with ranks, which
        have to agree). ``None`` where there is none."""
        if self.shape is None and not self.held:
            return None
        if self._pipeline_seed is not None and not self.over:
            return self._pipeline_seed
        loader: Any = self._loader()
        seed = said_seed(loader)
        if seed is None:
            seed = progress(loader).pipeline_seed
        if seed is None:
            seed = 0 if progress(loader).ranks is not None else _options.keyed_seed(loader, self.base_seed)
        self._pipeline_seed = int(seed) & _MASK
        return self._pipeline_seed

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
                progress(loader).skipped.extend(skipped)

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
        progress(loader).told(self)
        # Some trainers never ask for more than len() says.
        if self.done == 1 and not self.over and (self.stream or not self._is_only_batch(loader)):
            return
        progress(loader).count(self)

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
            state["ahead of"] = whose(loader)
        return {**state, **self._users(loader, self._stands)}

    def _users(self, loader: Any, stands: dict[int, dict[str, Any]]) -> dict[str, Any]:
        workers = loader.num_workers
        found: dict[str, Any] = {}
        # Options may be set in the middle of an epoch, for the next one.
        given = options(loader) if self.over else self._options
        if given.seeding == "sample" and self.shape is None:
            seed = given.seed
            found["key"] = seed if seed is not None else progress(loader).drawn_seed
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
    raw = pickle.dumps({"dataset": state, "iterator": None} if is_stream(loader) else state)
    return {worker: {"state": raw, "since": 0, "ended": over} for worker in range(loader.num_workers)}


def settle(loader: Any, state: dict[str, Any]) -> None:
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
    whole = stand["state"]["dataset"] if is_stream(loader) else stand["state"]
    if whole is not None:
        loader.dataset.load_state_dict(copy.deepcopy(whole))


def said_seed(loader: Any) -> int | None:
    """The seed that the user gave to a pipeline or its loader."""
    own = loader.dataset._options.get("seed") if isinstance(loader.dataset, Pipeline) else None
    seed = options(loader).seed if own is None else own
    return None if seed is None else int(seed) & _MASK


def known_order(loader: Any, epoch: int) -> _orders.Known | None:
    sampler, cut = ordering(loader)
    found = None if cut is None else _orders.known(sampler)
    if found is not None and progress(loader).ranks is not None:
        seed = options(loader).seed or 0
        found.fixed, found.common = seed + epoch, seed
    return found


def is_stream(loader: Any) -> bool:
    iterable = progress(loader).iterable
    return bool(loader._dataset_kind) if iterable is None else bool(iterable)


def _keyed(objects: Iterator[Any], plan: Plan, epoch: int) -> Iterator[Any]:
    """Each index object with its key: the epoch, the position in it of the first sample, and the step to the next one."""
    return _Keyed(objects, plan, epoch)


class _Keyed(Iterator[Any]):
    """No generator: it would be at its end behind an error. No ``map``: what a signal's handler raises in its function would take an
    index object along."""

    __slots__ = ("_epoch", "_next", "_number", "_objects", "_plan")

    def __init__(self, objects: Iterator[Any], plan: Plan, epoch: int) -> None:
        self._objects = objects
        self._plan = plan
        self._epoch = epoch
        self._number = 0
        #: Taken, and not given yet.
        self._next: tuple[Any] | None = None

    def __next__(self) -> Any:
        if self._next is None:
            self._next = (next(self._objects),)
        found = (self._epoch, self._plan.position(self._number), self._plan.stride), self._next[0]
        self._number, self._next = self._number + 1, None
        return found


def fresh(loader: Any, last: Epoch | None) -> dict[str, Any]:
    """The state at the start of the next epoch."""
    state: dict[str, Any] = {"feedrate": FORMAT, "epoch": progress(loader).epochs, "batches": 0}
    persistent = loader.num_workers > 0 and loader.persistent_workers and last is not None
    stream = is_stream(loader)
    known = None if stream else known_order(loader, progress(loader).epochs)
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
    generators = owned_generators(loader)
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
