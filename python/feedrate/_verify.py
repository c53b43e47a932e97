"""Cuts a loader at its steps, takes it up again elsewhere, and compares what comes with what should."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import random
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Literal

import numpy as np

from feedrate import _randoms
from feedrate._differences import (
    Batch,
    Cut,
    Topology,
    advice,
    declared_loss,
    first_difference,
    flat,
    ids_at,
    meaning,
    of_rank,
    plain_ids,
    union_difference,
)
from feedrate._errors import short
from feedrate._ids import sample_ids
from feedrate._progress import progress
from feedrate._ranks import Ranks
from feedrate._resumable import Resumable
from feedrate._state_errors import ResumeError

#: Seeds of the process-wide generators when a loader is made, and behind a restore, where they must not matter.
_SEED, _OTHER = 20_260_131, 77_031_977
_WORLD_NAMES = ("world", "world_size", "num_replicas")

Ids = Callable[[Any], Any]


@dataclass
class Difference:
    """The first thing that was not as it should be."""

    title: str
    saved: str
    loaded: str
    expected: Any
    got: Any
    meaning: str
    refused: bool = False

    def __str__(self) -> str:
        lines = [self.title]
        for name in ("saved", "loaded", "expected", "got", "meaning"):
            value = getattr(self, name)
            if value not in ("", None):
                lines.append(f"  {name + ':':<10}{value if isinstance(value, str) else short(value, 400)}")
        return "\n".join(lines)


@dataclass
class Report:
    """What :func:`verify` found. ``ok`` when every restore was exact, or refused where that is allowed."""

    cuts: int = 0
    restores: int = 0
    refusals: list[str] = field(default_factory=list)
    difference: Difference | None = None
    scope: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing was wrong."""
        return self.difference is None

    def __str__(self) -> str:
        notes = [f"Note: {note}" for note in self.notes]
        if self.difference is not None:
            word = "REFUSED" if self.difference.refused else "WRONG"
            done = f"{word}, after {self.restores} restore{'s' * (self.restores != 1)} that were exact ({self.scope})."
            return "\n".join([done, str(self.difference), *notes])
        words = (
            f"EXACT: {self.restores} restores at {self.cuts} cuts gave exactly the rest, each sample once ({self.scope}).",
            *(f"Refused, which is allowed: {reason}" for reason in self.refusals),
        )
        return "\n".join([*words, *notes])


class _Found(Exception):
    """Ends a run at its first difference."""

    def __init__(self, difference: Difference) -> None:
        self.difference = difference


class Maker:
    """Makes loaders in any topology: through arguments of ``make_loader``, or in a loader of ours by its attributes."""

    def __init__(self, make_loader: Callable[..., Any]) -> None:
        if not callable(make_loader):
            raise TypeError(
                f"make_loader must be a function that makes a fresh loader each time, but is a {type(make_loader).__name__}"
            )
        self._make = make_loader
        parameters = inspect.signature(make_loader).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self._workers = "num_workers" if "num_workers" in parameters or anything else None
        if self._workers is None and "workers" in parameters and not isinstance(parameters["workers"].default, str):
            self._workers = "workers"
        world = next((name for name in _WORLD_NAMES if name in parameters), None)
        self._ranks: tuple[str, ...] | None = None
        if "rank" in parameters and world is not None:
            self._ranks = "rank", world
        elif "distributed" in parameters or anything:
            self._ranks = ("distributed",)
        #: It says by name that it can make a loader for any rank.
        self.takes_ranks = self._ranks is not None and not anything

    def can_set_workers(self) -> bool:
        """Whether loaders with other numbers of workers can be had; makes one to see."""
        return self._workers is not None or isinstance(self(None, 0, 1 if self.takes_ranks else None), Resumable)

    def __call__(self, workers: int | None, rank: int, world: int | None) -> Any:
        given: dict[str, Any] = {}
        if workers is not None and self._workers is not None:
            given[self._workers] = workers
        if world is not None and self._ranks is not None:
            given.update(
                {"distributed": (rank, world)} if len(self._ranks) == 1 else dict(zip(self._ranks, (rank, world), strict=True))
            )
        loader = self._make(**given)
        for method in ("state_dict", "load_state_dict", "__iter__"):
            if not callable(getattr(loader, method, None)):
                raise TypeError(f"make_loader made a {type(loader).__name__}, which has no {method}()")
        if workers is not None and self._workers is None:
            _set_workers(loader, workers)
        if world is not None and self._ranks is None:
            _set_ranks(loader, rank, world)
        return loader


def _set_workers(loader: Any, workers: int) -> None:
    if getattr(loader, "num_workers", None) == workers:
        return
    if not isinstance(loader, Resumable):
        raise ValueError(
            f"num_workers={workers} was asked for, but make_loader has no parameter num_workers, and a {type(loader).__name__} cannot be "
            "changed: add the parameter, or leave the workers as they are with workers=None (--workers own)"
        )
    changed: dict[str, Any] = {"num_workers": workers}
    if workers == 0:
        changed |= {"prefetch_factor": None, "persistent_workers": False, "timeout": 0, "multiprocessing_context": None}
        if "_DataLoader__multiprocessing_context" in loader.__dict__:
            changed["_DataLoader__multiprocessing_context"] = changed.pop("multiprocessing_context")
    else:
        changed["prefetch_factor"] = getattr(loader, "prefetch_factor", None) or 2
    for name, value in changed.items():
        # torch's loader does not let some of them be set.
        object.__setattr__(loader, name, value)


def _set_ranks(loader: Any, rank: int, world: int) -> None:
    mine = progress(loader) if isinstance(loader, Resumable) else None
    if mine is None or mine.ranks is None:
        raise ValueError(
            f"{world} ranks were asked for, but make_loader has no parameters rank and world (or distributed), and its "
            f"{type(loader).__name__} has no distributed= to be changed: add the parameters"
        )
    mine.ranks = Ranks(rank, world, mine.ranks.remainder)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)


def _snapshot() -> dict[str, Any]:
    return {name: _randoms.pack(_randoms.read(g)) for name, g in _randoms.process_wide().items()}


def _put_back(snapshot: dict[str, Any]) -> None:
    for name, generator in _randoms.process_wide().items():
        if name in snapshot:
            _randoms.restore(generator, snapshot[name])


def _tell_epoch(loader: Any, epoch: int) -> None:
    """As a training loop does before each epoch, for samplers and datasets that want to know."""
    batches = getattr(loader, "batch_sampler", None)
    parts: list[Any] = [getattr(loader, name, None) for name in ("dataset", "sampler")] + [
        batches,
        getattr(batches, "sampler", None),
    ]
    told: list[Any] = [part for part in parts if callable(getattr(part, "set_epoch", None))]
    if told and isinstance(loader, Resumable):
        told = [loader]
    for part in told:
        part.set_epoch(epoch)


@dataclass
class _Rank:
    """An uninterrupted run of one rank: its batches, epoch by epoch, and the process-wide generators at the start and each end."""

    epochs: list[list[Batch]]
    generators: list[dict[str, Any]]
    declared_loss: int = 0


class Verifier:
    """One run of :func:`verify`."""

    def __init__(
        self,
        make_loader: Callable[..., Any],
        *,
        cuts: Literal["all"] | Sequence[int] = "all",
        workers: Sequence[int] | None = (0, 2),
        worlds: Sequence[int] | None = None,
        epochs: int = 2,
        ids: Ids | None = None,
        steps: int | None = None,
        allow_refused: bool = False,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        self._maker = Maker(make_loader)
        if epochs < 1 or (steps is not None and steps < 1):
            raise ValueError(f"epochs and steps should be positive, but got epochs={epochs}, steps={steps}")
        numbers: list[tuple[str, Any, int]] = [("cuts", cuts, 0), ("workers", workers, 0), ("worlds", worlds, 1)]
        for name, values, least in numbers:
            if values is None or values == "all":
                continue
            if isinstance(values, str) or not values or any(not isinstance(v, int) or v < least for v in values):
                raise ValueError(f"{name} should be a list of whole numbers from {least}, but got {name}={values!r}")
        if worlds is None and self._maker.takes_ranks:
            worlds = (1, 2)
        counts: list[int | None] = [None] if workers is None else list(dict.fromkeys(workers))
        sizes: list[int | None] = [None] if worlds is None else list(dict.fromkeys(worlds))
        self._topologies = [Topology(n, world) for world in sizes for n in counts]
        self._cuts = cuts
        self._epochs = epochs
        self._steps = steps
        self._ids = sample_ids if ids is None else ids
        self._allow_refused = allow_refused
        self._progress = progress
        self._report = Report(
            scope=", ".join(
                [f"{epochs} epoch{'s' * (epochs != 1)}"]
                + ([] if workers is None else [f"num_workers {', '.join(map(str, counts))}"])
                + ([] if worlds is None else [f"ranks {', '.join(map(str, sizes))}"])
            )
        )
        #: An epoch was left before its end, by ``steps``.
        self._truncated = False
        self._last: Any = None

    def run(self) -> Report:
        """Everything; stops at the first difference."""
        with _randoms.preserved():
            try:
                self._run()
            except _Found as found:
                self._report.difference = found.difference
        return self._report

    def _run(self) -> None:
        fresh = {topology: self._fresh(topology) for topology in self._topologies}
        if self._truncated:
            self._epochs = 1
        first = self._topologies[0]
        if all(not batches for rank in fresh[first] for batches in rank.epochs):
            raise ValueError("the loader gives no batch, so there is nothing to compare")
        self._compare_fresh(fresh)
        chosen = {topology: self._chosen(fresh[topology]) for topology in self._topologies}
        n = len(self._topologies)
        done, total = 0, sum(map(len, chosen.values())) * (n + 1)
        self._report.cuts = sum(map(len, chosen.values()))
        states = {source: self._record(source, chosen[source], fresh[source]) for source in self._topologies}
        # The simple way first: its first difference says most.
        for hops in (False, True):
            for k, source in enumerate(self._topologies):
                for cut in chosen[source]:
                    for target in [self._topologies[(k + 1) % n]] if hops else self._topologies:
                        self._tell(done, total, f"{cut}: {source} -> {target}")
                        self._restore(source, target, cut, states[source], fresh, hops=hops)
                        done += 1
        self._tell(total, total, "done")

    def _tell(self, done: int, total: int, text: str) -> None:
        if self._progress is not None:
            self._progress(done, total, text)

    # -- reading

    def _read(self, loader: Any, epoch: int, begun: Callable[[], None] | None = None) -> Generator[Batch, None, None]:
        """The batches of one epoch; its iterator is closed at the end. ``begun`` is called when it is made."""
        _tell_epoch(loader, epoch)
        self._last = loader
        iterator = iter(loader)
        try:
            if begun is not None:
                begun()
            for batch in islice(iterator, self._steps):
                ids = plain_ids(self._ids(batch))
                # A mask is of the batch that was delivered last; a loader of somebody else has none.
                mask = getattr(loader, "mask", None) if isinstance(loader, Resumable) else None
                own = ids if mask is None or len(mask) != len(ids) else [i for i, real in zip(ids, mask, strict=True) if real]
                yield Batch(ids, own)
        finally:
            _close(iterator)

    def _fresh(self, topology: Topology) -> list[_Rank]:
        """Each rank's run without a cut."""
        ranks = []
        for rank in range(topology.world or 1):
            _seed(_SEED)
            loader = self._maker(topology.workers, rank, topology.world)
            run = _Rank([], [_snapshot()], declared_loss(loader))
            for epoch in range(self._epochs):
                run.epochs.append(self._guarded(loader, epoch, f"with {topology}"))
                run.generators.append(_snapshot())
                if self._steps is not None and len(run.epochs[-1]) >= self._steps:
                    self._truncated = True
                    break
            ranks.append(run)
        return ranks

    def _guarded(self, loader: Any, epoch: int, where: str) -> list[Batch]:
        """An epoch of a loader that nothing was loaded into."""
        got: list[Batch] = []
        try:
            got.extend(self._read(loader, epoch))
        except ResumeError as error:
            raise _Found(
                Difference(f"the loader fails at step {len(got)} of epoch {epoch}", "", where, "a batch", repr(error), str(error))
            ) from error
        return got

    # -- runs without a cut

    def _compare_fresh(self, fresh: dict[Topology, list[_Rank]]) -> None:
        for topology, ranks in fresh.items():
            self._compare_steps(topology, ranks)
        for world in dict.fromkeys(t.world for t in self._topologies):
            same = [t for t in self._topologies if t.world == world]
            for other in same[1:]:
                for rank, (one, two) in enumerate(zip(fresh[same[0]], fresh[other], strict=True)):
                    for epoch, (want, got) in enumerate(zip(one.epochs, two.epochs, strict=True)):
                        step = first_difference(want, got)
                        if step is not None:
                            raise _Found(self._fresh_difference(same[0], other, rank, epoch, step, want, got))
        first = self._topologies[0]
        for topology in self._topologies[1:]:
            if topology.world != first.world:
                for epoch in range(self._epochs if not self._truncated else 0):
                    want = [b for rank in fresh[first] for b in rank.epochs[epoch]]
                    got = [b for rank in fresh[topology] for b in rank.epochs[epoch]]
                    loss = max(fresh[topology][0].declared_loss, fresh[first][0].declared_loss)
                    wrong = union_difference(want, got, loss)
                    if wrong is not None:
                        raise _Found(
                            Difference(
                                f"epoch {epoch} holds other samples with {topology} than with {first}, without any restore",
                                "",
                                "",
                                wrong[0],
                                wrong[1],
                                wrong[2],
                            )
                        )

    def _fresh_difference(
        self, one: Topology, two: Topology, rank: int, epoch: int, step: int, want: list[Batch], got: list[Batch]
    ) -> Difference:
        same_samples = Counter(flat(want)) == Counter(flat(got))
        meaning = (
            "the same samples come in another order: the order depends on the number of workers (an iterable dataset that each worker "
            "reads its share of does that), so a state cannot be taken up with another number. Keep it: workers=[n] (--workers n)"
            if same_samples
            else "samples have other values, or are others, with another number of workers: random numbers in the dataset that depend on "
            "the worker, or a share of the data that does. " + advice(self._last)
        )
        return Difference(
            f"epoch {epoch}{of_rank(rank, two)} differs at step {step} between {one} and {two}, without any restore",
            "",
            "",
            ids_at(want, step),
            ids_at(got, step),
            meaning,
        )

    def _compare_steps(self, topology: Topology, ranks: list[_Rank]) -> None:
        for epoch in range(len(ranks[0].epochs)):
            counts = [len(rank.epochs[epoch]) for rank in ranks]
            if len(set(counts)) > 1:
                raise _Found(
                    Difference(
                        f"ranks have different numbers of steps in epoch {epoch}, with {topology}, without any restore",
                        "",
                        "",
                        f"{counts[0]} on each rank",
                        counts,
                        "a training loop with a collective call in each step would hang",
                    )
                )

    # -- states

    def _chosen(self, ranks: list[_Rank]) -> list[Cut]:
        found = [Cut(0, 0, "before")]
        for epoch, batches in enumerate(ranks[0].epochs[: self._epochs]):
            n = len(batches)
            # Behind the last batch that was looked at nothing is known.
            last = n - 1 if self._truncated else n
            found += [Cut(epoch, k, "at") for k in range(last + 1) if self._cuts == "all" or k in self._cuts]
            if epoch + 1 < self._epochs:
                found.append(Cut(epoch, n, "over"))
        return found

    def _record(self, source: Topology, cuts: list[Cut], ranks: list[_Rank]) -> list[dict[Cut, Any]]:
        """For each rank, the state at each cut. Asking for it must change nothing."""
        wanted = set(cuts)
        found = []
        for rank, run in enumerate(ranks):
            states: dict[Cut, Any] = {}
            _seed(_SEED)
            loader = self._maker(source.workers, rank, source.world)
            keep: list[tuple[Cut, Any, bytes]] = []
            note = partial(self._note, wanted, loader, states, keep)
            note(Cut(0, 0, "before"))
            for epoch, want in enumerate(run.epochs[: self._epochs]):
                step = 0
                reading = self._read(loader, epoch, partial(note, Cut(epoch, 0, "at")))
                for batch in reading:
                    if step >= len(want) or batch.ids != want[step].ids:
                        raise _Found(self._not_repeatable(source, rank, epoch, step, want, batch, run))
                    step += 1
                    note(Cut(epoch, step, "at"))
                if step < len(want):
                    raise _Found(self._not_repeatable(source, rank, epoch, step, want, None, run))
                note(Cut(epoch, step, "over"))
            for cut, state, frozen in keep:
                if pickle.dumps(state) != frozen:
                    raise _Found(
                        Difference(
                            "a state changes after it was taken",
                            f"{cut}, with {source}",
                            "",
                            "a state that stays as it is",
                            "another one at the end of the run",
                            "state_dict() of the loader, its sampler or its dataset gives away an object that it goes on changing: return "
                            "a copy",
                        )
                    )
            found.append(states)
        return found

    def _note(self, wanted: set[Cut], loader: Any, states: dict[Cut, Any], keep: list[tuple[Cut, Any, bytes]], cut: Cut) -> None:
        """Takes the state at a cut, and keeps some of them as they were given, to see whether they stay so."""
        if cut in wanted:
            state = loader.state_dict()
            states[cut] = self._through(state)
            if len(keep) < 8:
                keep.append((cut, state, pickle.dumps(state)))

    def _not_repeatable(
        self, source: Topology, rank: int, epoch: int, step: int, want: list[Batch], batch: Batch | None, run: _Rank
    ) -> Difference:
        """A second run from the start differs: because it is so, or because states were asked for?"""
        _seed(_SEED)
        again = self._guarded(self._maker(source.workers, rank, source.world), 0, f"with {source}")
        blind = first_difference(run.epochs[0], again)
        if blind is not None:
            meaning = (
                "two fresh loaders give different batches, with the process-wide generators seeded alike: the order or the samples depend "
                "on something that is in no state (the clock, the operating system's randomness, a global counter)"
            )
        else:
            meaning = "asking for state_dict() changes what comes: it draws random numbers or moves the sampler or dataset"
        return Difference(
            f"the loader does not repeat itself at step {step} of epoch {epoch}{of_rank(rank, source)}, without any restore",
            "",
            f"with {source}",
            ids_at(want, step),
            "the end" if batch is None else batch.ids,
            meaning,
        )

    def _through(self, state: Any) -> Any:
        """A state as a checkpoint would keep it."""
        try:
            back = json.loads(json.dumps(state))
            if back == state:
                return back
        except (TypeError, ValueError, RuntimeError):
            # Also what cannot be compared: arrays and tensors.
            pass
        note = "the state holds objects that JSON cannot hold or changes, so it went through pickle instead"
        if note not in self._report.notes:
            self._report.notes.append(note)
        return pickle.loads(pickle.dumps(state))

    # -- restores

    def _restore(
        self,
        source: Topology,
        target: Topology,
        cut: Cut,
        states: list[dict[Cut, Any]],
        fresh: dict[Topology, list[_Rank]],
        *,
        hops: bool,
    ) -> None:
        """Loads a state into fresh loaders, reads what is left of its epoch and the following ones, and compares.

        With ``hops`` it is saved again at once, loaded, saved behind one batch in the source's topology, and loaded again.
        """
        rest: list[list[list[Batch]]] = []
        try:
            for rank in range(target.world or 1):
                saver = rank % (source.world or 1)
                rest.append(self._resume(source, target, cut, rank, states[saver][cut], fresh[source][saver], hops=hops))
        except ResumeError as error:
            self._refuse(source, target, cut, error)
            return
        loss = max(fresh[source][0].declared_loss, fresh[target][0].declared_loss)
        self._compare(source, target, cut, rest, fresh[source], loss, hops=hops)
        self._report.restores += 1

    def _refuse(self, source: Topology, target: Topology, cut: Cut, error: ResumeError) -> None:
        if source != target and self._allow_refused:
            reason = f"{source} -> {target}: {error}"
            if not any(known.startswith(f"{source} -> {target}:") for known in self._report.refusals):
                self._report.refusals.append(reason)
            return
        title = "a state was refused"
        if source == target:
            title += " by a loader like the one that it was saved by"
        raise _Found(
            Difference(
                title,
                f"{cut}, with {source}",
                f"with {target}",
                None,
                None,
                str(error)
                + ("" if source == target else ". If that is as it should be, allow it: allow_refused=True (--allow-refused)"),
                refused=True,
            )
        ) from error

    def _load(self, topology: Topology, rank: int, state: Any) -> Any:
        _seed(_SEED)
        loader = self._maker(topology.workers, rank, topology.world)
        loader.load_state_dict(copy.deepcopy(state))
        return loader

    def _resume(
        self, source: Topology, target: Topology, cut: Cut, rank: int, state: Any, run: _Rank, *, hops: bool
    ) -> list[list[Batch]]:
        """What comes after a restore: the rest of the epoch of the cut, and each following epoch."""
        epoch = cut.epoch + (cut.when == "over")
        if self._epochs <= epoch:
            return []
        parts: list[list[Batch]] = [[]]
        where = f"{cut}, with {source}"

        def begin() -> None:
            # In the middle of an epoch the process-wide generators must not matter; between epochs they are the user's to restore.
            if cut.when == "at":
                _seed(_OTHER)
            else:
                _put_back(run.generators[epoch])

        try:
            loader = self._load(target, rank, state)
            begin()
            if hops:
                loader = self._load(source if source.world == target.world else target, rank, self._through(loader.state_dict()))
                begin()
                reading = self._read(loader, epoch)
                parts[0] += islice(reading, 1)
                if not parts[0]:
                    # The end was seen: what is drawn for the next epoch is drawn from generators that the user restored.
                    _put_back(run.generators[epoch + 1])
                state = self._through(loader.state_dict())
                reading.close()
                loader = self._load(target, rank, state)
                _seed(_OTHER)
                if not parts[0]:
                    # The end was seen, and with it the epoch is over: what follows is the next one.
                    loader = self._load(target, rank, self._through(loader.state_dict()))
            over = hops and not parts[0]
            begun = cut.step if cut.when == "at" else 0
            left = None if self._steps is None else self._steps - begun - len(parts[0])
            if not over:
                parts[0] += islice(self._read(loader, epoch), left)
            for following in range(epoch + 1, self._epochs):
                _put_back(run.generators[following])
                parts.append([])
                parts[-1] += self._read(loader, following)
        except ResumeError:
            raise
        except Exception as error:
            raise _Found(
                Difference(
                    "an error came instead of a batch",
                    where,
                    f"with {target}{of_rank(rank, target)}",
                    "the rest of the epoch",
                    f"{type(error).__name__}: {error}" if str(error) else repr(error),
                    "the state cannot be taken up here, and the loader did not say so in words",
                )
            ) from error
        return parts

    def _compare(
        self,
        source: Topology,
        target: Topology,
        cut: Cut,
        rest: list[list[list[Batch]]],
        ranks: list[_Rank],
        loss: int,
        *,
        hops: bool,
    ) -> None:
        epoch = cut.epoch + (cut.when == "over")
        path = f"with {target}" + (", saved and loaded twice more on the way" if hops else "")
        for k in range(len(rest[0])):
            start = cut.step if cut.when == "at" and k == 0 else 0
            if source.world == target.world:
                for rank, run in enumerate(ranks):
                    whole, got = run.epochs[epoch + k], rest[rank][k]
                    step = first_difference(whole[start:], got)
                    if step is not None:
                        raise _Found(
                            Difference(
                                f"epoch {epoch + k}{of_rank(rank, source)} differs at step {start + step}",
                                f"{cut}, with {source}",
                                path,
                                ids_at(whole, start + step),
                                ids_at(got, step),
                                meaning(whole, start, got) or ("the samples have other values. " + advice(self._last)),
                            )
                        )
                continue
            counts = [len(parts[k]) for parts in rest]
            wrong: tuple[Any, Any, str] | None = None
            if len(set(counts)) > 1:
                wrong = (
                    "equal numbers of steps on all ranks",
                    counts,
                    "a training loop with a collective call in each step would hang",
                )
            elif not self._truncated:
                want = [b for run in ranks for b in run.epochs[epoch + k][start:]]
                wrong = union_difference(want, [b for parts in rest for b in parts[k]], loss)
            if wrong is not None:
                raise _Found(
                    Difference(
                        f"the ranks together do not give the rest of epoch {epoch + k}", f"{cut}, with {source}", path, *wrong
                    )
                )


def _close(iterator: Any) -> None:
    """Ends an iterator's workers at once, if it has a way to."""
    if getattr(iterator, "_persistent_workers", getattr(iterator, "_persistent", False)):
        return
    close = getattr(iterator, "_shutdown_workers", None)
    if callable(close):
        close()
