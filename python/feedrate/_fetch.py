"""Work: one task in, one batch out. The same code runs inline, in threads and in processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from feedrate import _diagnose
from feedrate._context import BATCH, SAMPLE, Rng, sample_seeds, set_pipeline_key, set_rng
from feedrate._errors import annotate, short
from feedrate._framework import Allocate, Framework
from feedrate._iterate import NextOnly, has_state, pickled
from feedrate._ranks import Empty, emptied
from feedrate._state_errors import ResumeError


class _End:
    """The type of ``END``."""

    def __repr__(self) -> str:
        return "END"

    def __reduce__(self) -> str:
        return "END"


#: What a fetcher gives, and a feed, when there is nothing more.
END = _End()


class _NotReady:
    """The type of ``NOT_READY``."""

    def __repr__(self) -> str:
        return "NOT_READY"

    def __reduce__(self) -> str:
        return "NOT_READY"


#: What ``try_next()`` gives when the next batch is not there yet.
NOT_READY = _NotReady()


class Carried:
    """Something that carries a ``batch`` on its way to the user."""

    __slots__ = ("batch",)
    batch: Any


class Stated(Carried):
    """A batch with the state, pickled, that the worker's dataset or stream had behind it."""

    __slots__ = ("ended", "state")

    def __init__(self, batch: Any, state: bytes | None, ended: bool = False) -> None:
        self.batch = batch
        self.state = state
        #: The stream has seen its end: the state is of its next pass.
        self.ended = ended

    def __reduce__(self) -> Any:
        return Stated, (self.batch, self.state, self.ended)


@dataclass
class Recipe:
    """Everything that a worker needs to make batches. Pickled for workers that are not forked."""

    dataset: Any
    iterable: bool
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    framework: Framework
    seeding: str = "worker"
    seed: int = 0
    items_in_flight: int = 1
    #: By worker, from where it goes on: ``state`` of its dataset or stream, batches to ``skip`` behind that, whether an epoch was ``over``
    #: there, and then the ``epoch`` that the dataset is told for the next one, as further epochs of a worker tell it.
    resume: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: Batches of a worker between two states of its stream.
    snapshot_every: int = 1
    #: Where keyed seeds go: into the process-wide generators, or only into ``feedrate.rng()``.
    own_globals: bool = True
    #: Restore the process-wide generators after each task (inline: they belong to the user).
    borrow_globals: bool = False
    executor: Executor | None = field(default=None, repr=False)
    #: How a pipeline is cut into lanes; ``None`` for other datasets.
    lanes: Any = None
    #: By which map-style pipelines draw, with the epoch; ``None`` for other datasets.
    pipeline_seed: int | None = None
    #: Whether an index comes as ``((epoch, position of its first sample, step to the next one), index)``.
    addressed: bool = False

    @property
    def keyed(self) -> bool:
        """Whether the generators of a sample are keyed."""
        return self.seeding == "sample" and self.lanes is None


def explain(error: Exception, data: Any, index: Any) -> None:
    """Adds to a collation error where in the samples its cause is, if that can be seen."""
    if (found := _diagnose.collation(data, index)) is not None:
        annotate(error, found)


class MapFetcher:
    """Batches of a map-style dataset."""

    def __init__(
        self,
        recipe: Recipe,
        collate: Callable[[Any], Any],
        resume: dict[str, Any] | None = None,
        allocate: Allocate | None = None,
    ) -> None:
        self._dataset = recipe.dataset
        self._auto = recipe.auto_collation
        self._collate = collate
        #: The dtype and shape of an image, if the dataset makes batches of them itself and nobody else collates.
        self._filled = batch_shape(recipe) if allocate is not None else None
        self._allocate = allocate
        self._recipe = recipe
        # Without samples side by side, the dataset's state behind a batch is well defined.
        self._stated = has_state(recipe.dataset)
        if self._stated and resume is not None and resume["state"] is not None:
            recipe.dataset.load_state_dict(resume["state"])
            _tell(recipe.dataset, resume)
        self._executor = recipe.executor
        self._pid = os.getpid()
        if self._executor is None and recipe.items_in_flight > 1:
            self._executor = ThreadPoolExecutor(recipe.items_in_flight, thread_name_prefix="feedrate_item")
        self._keyed = recipe.keyed
        self._addressed = recipe.addressed
        self._started: Any = None
        #: Called while the samples of a batch are waited for: a chance to :meth:`start` the next task.
        self.meanwhile: Callable[[], None] | None = None
        #: What the fetcher is at, for the note on an exception.
        self.at: Any = None
        # An index of None is a sample like any other: say which by this.
        self.stage = "sample"

    def snapshot(self) -> bytes | None:
        """The state of the dataset, pickled; ``None`` for one without."""
        return pickled(self._dataset.state_dict) if self._stated else None

    def start(self, index: Any) -> Any:
        """Puts the samples of a later task behind those that are being fetched. Pass the result to the call for that task;
        ``None`` when samples are not fetched side by side."""
        dataset = self._dataset
        if self._executor is None or not self._auto or self._filled or getattr(dataset, "__getitems__", None):
            return None
        try:
            if not self._addressed:
                return self._submit(index, None)
            (epoch, first, step), index = index
            return self._submit(index, self._seeds(index, epoch, first, step), epoch)
        except Exception:
            # An index that is no list of samples: the call will say so.
            return None

    def __call__(self, index: Any, epoch: int, position: int, started: Any = None) -> Any:
        """The batch of one task."""
        self._started = started
        try:
            batch = self._fetch_addressed(*index) if self._addressed else self._fetch(index)
            return Stated(batch, self.snapshot()) if self._stated else batch
        except StopIteration as error:
            raise RuntimeError(
                f"the dataset or collate_fn raised StopIteration at {self.where()}. It would end the epoch without a word; raise "
                "IndexError or another exception for a bad sample"
            ) from error

    def where(self) -> str:
        """Which sample (or collation of which samples) the fetcher is at."""
        return f"{self.stage} index {short(self.at)}" if self.stage == "sample" else f"{self.stage} of indices {short(self.at)}"

    def _fetch(self, index: Any, epoch: int | None = None) -> Any:
        if type(index) is Empty:
            return emptied(self._fetch(list(index), epoch))
        dataset = self._dataset
        self.stage = "sample"
        data: Any
        if not self._auto:
            self.at = index
            data = dataset[index]
        elif self._filled is not None:
            return self._fill(index, None)
        elif hasattr(dataset, "__getitems__") and dataset.__getitems__:
            self.stage, self.at = "__getitems__", index
            data = dataset.__getitems__(index)
        elif self._executor is not None:
            data = self._parallel(index, None, epoch)
        else:
            data = []
            append = data.append
            i: Any = index
            try:
                for i in index:
                    append(dataset[i])
            except BaseException:
                self.at = i
                raise
        self.stage, self.at = "collation", index
        try:
            return self._collate(data)
        except Exception as error:
            explain(error, data, index)
            raise

    def _fill(self, index: Any, seeds: list[tuple[int, int, int]] | None) -> list[Any]:
        """A batch of images that the dataset writes where it belongs."""
        assert self._filled is not None
        assert self._allocate is not None
        self.stage, self.at = "batch", index
        dtype, shape = self._filled
        images, memory = self._recipe.framework.batch_memory(self._allocate, dtype, (len(index), *shape))
        targets = self._dataset.fill_batch(index, memory, seeds)
        return [images, self._collate(targets)]

    def _seeds(self, index: Any, epoch: int, first: int, step: int) -> list[tuple[int, int, int]] | None:
        if not self._keyed:
            return None
        return [sample_seeds(self._recipe.seed, epoch, first + k * step, SAMPLE) for k in range(len(index))]

    def _submit(
        self, index: Any, keys: list[tuple[int, int, int]] | None, epoch: int | None = None
    ) -> tuple[list[Any], list[Any]]:
        assert self._executor is not None
        if self._pid != os.getpid():
            # A fork's child has none of the threads.
            self._pid = os.getpid()
            self._executor = ThreadPoolExecutor(self._recipe.items_in_flight, thread_name_prefix="feedrate_item")
        dataset = self._dataset
        seed = self._recipe.pipeline_seed
        pipelines = None if seed is None or epoch is None else (seed, epoch)

        def one(i: Any, seeds: tuple[int, int, int] | None) -> Any:
            if seeds is not None:
                set_rng(Rng(seeds))
            set_pipeline_key(pipelines)
            return dataset[i]

        indices = list(index)
        return indices, [self._executor.submit(one, i, keys[k] if keys else None) for k, i in enumerate(indices)]

    def _parallel(self, index: Any, keys: list[tuple[int, int, int]] | None, epoch: int | None = None) -> list[Any]:
        indices, futures = self._started or self._submit(index, keys, epoch)
        self._started = None
        data = []
        for i, future in zip(indices, futures, strict=True):
            if self.meanwhile is not None:
                self.meanwhile()
            try:
                data.append(future.result())
            except BaseException:
                self.at = i
                for other in futures:
                    other.cancel()
                raise
        return data

    def _fetch_addressed(self, key: tuple[int, int, int], index: Any) -> Any:
        recipe = self._recipe
        if recipe.pipeline_seed is None:
            return self._fetch_keyed(key, index)
        set_pipeline_key((recipe.pipeline_seed, key[0]))
        try:
            return self._fetch_keyed(key, index) if self._keyed else self._fetch(index, key[0])
        finally:
            set_pipeline_key(None)

    def _fetch_keyed(self, key: tuple[int, int, int], index: Any) -> Any:
        recipe = self._recipe
        if not recipe.borrow_globals:
            return self._fetch_at(index, *key)
        states = recipe.framework.save_states()
        try:
            return self._fetch_at(index, *key)
        finally:
            recipe.framework.restore_states(states)
            set_rng(None)

    def _key(self, epoch: int, position: int, kind: bytes) -> None:
        recipe = self._recipe
        set_rng(Rng(sample_seeds(recipe.seed, epoch, position, kind)))
        if recipe.own_globals:
            recipe.framework.seed_sample(recipe.seed, epoch, position, kind)

    def _fetch_at(self, index: Any, epoch: int, start: int, step: int) -> Any:
        if type(index) is Empty:
            return emptied(self._fetch_at(list(index), epoch, start, step))
        dataset = self._dataset
        self.stage = "sample"
        data: Any
        if not self._auto:
            self.at = index
            self._key(epoch, start, SAMPLE)
            return self._collate(dataset[index])
        if self._filled is not None:
            return self._fill(index, self._seeds(index, epoch, start, step))
        if hasattr(dataset, "__getitems__") and dataset.__getitems__:
            self.stage, self.at = "__getitems__", index
            self._key(epoch, start, BATCH)
            data = dataset.__getitems__(index)
        elif self._executor is not None:
            data = self._parallel(index, self._seeds(index, epoch, start, step), epoch)
        else:
            data = []
            for k, i in enumerate(index):
                self.at = i
                self._key(epoch, start + k * step, SAMPLE)
                data.append(dataset[i])
        self.stage, self.at = "collation", index
        self._key(epoch, start, BATCH)
        try:
            return self._collate(data)
        except Exception as error:
            explain(error, data, index)
            raise


class IterableFetcher:
    """Batches of an iterable dataset: one private stream."""

    def __init__(self, recipe: Recipe, collate: Callable[[Any], Any], resume: dict[str, Any] | None = None) -> None:
        self._dataset = recipe.dataset
        self._every = recipe.snapshot_every
        self._batches = 0
        #: It begins a pass, and does not go on in the middle of one, of which a state is known.
        self._begins = resume is None or bool(resume["over"])
        self._ended = False
        self._iterator = self._open(resume)
        self._auto = recipe.auto_collation
        self._drop_last = recipe.drop_last
        self._collate = collate
        self._taken = 0
        self._stage = "sample"
        #: Batches to read and drop before the next one.
        self._skip: int = 0 if resume is None else resume["skip"]
        #: An error among those, which was told before, unless the stream is at its end behind it.
        self._told: Exception | None = None

    def _open(self, resume: dict[str, Any] | None) -> Any:
        """The iterator over the dataset, where ``resume`` says, in the order of torchdata's loader: the dataset's state, then its
        iterator, then that one's state."""
        dataset = self._dataset
        state = None if resume is None else resume["state"]
        if state is not None and state["dataset"] is not None:
            dataset.load_state_dict(state["dataset"])
        ended, over = (False, False) if resume is None else (resume["ended"], resume["over"])
        if ended and not over:
            self._ended = True
        iterator: Any = None
        if not ended or (state is not None and state["iterator"] is not None):
            iterator = iter(dataset)
            if state is not None and state["iterator"] is not None:
                # It may hold more than a place, such as a random generator's state.
                if not has_state(iterator):
                    raise ResumeError(
                        f"the state has one of the dataset's iterator, and a {type(iterator).__name__} has no state_dict() and "
                        "load_state_dict(): use the dataset class with which it was saved"
                    )
                iterator.load_state_dict(state["iterator"])
        if ended and not over:
            return iter(())
        if over:
            if not ended:
                # It stands behind its last batch: let it run out, then start it again.
                for _ in NextOnly(iterator):
                    pass
            _tell(dataset, resume)
            iterator = iter(dataset)
        return iterator

    def snapshot(self) -> bytes | None:
        """The state of the stream; ``None`` for one without."""
        dataset, iterator = self._dataset, self._iterator
        mine, whole = has_state(iterator), dataset is not iterator and has_state(dataset)
        if not mine and not whole:
            return None
        return pickled(
            lambda: {"iterator": iterator.state_dict() if mine else None, "dataset": dataset.state_dict() if whole else None}
        )

    def where(self) -> str:
        """Which sample of the stream, or which collation, the fetcher is at."""
        return (
            f"sample {self._taken} of its stream" if self._stage == "sample" else f"collation of samples up to {self._taken - 1}"
        )

    def __call__(self, index: Any, epoch: int, position: int) -> Any:
        """The next batch of the stream, or ``END``."""
        while self._skip > 0 and not self._ended:
            self._skip -= 1
            try:
                if self._next(index, collate=False) is not END:
                    self._told = None
            except Exception as error:
                # Its frames would hold what they hold.
                self._told = error.with_traceback(None)
        told, self._told = self._told, None
        batch = self._next(index, collate=True)
        if batch is END and told is not None:
            raise told
        if batch is not END:
            self._batches += 1
            # That of the first one is of this pass, whatever came before.
            first = self._begins and self._batches == 1
            state = self.snapshot() if self._ended or first or self._batches % self._every == 0 else None
            if state is not None or self._ended:
                return Stated(batch, state, self._ended)
        return batch

    def _next(self, index: Any, *, collate: bool) -> Any:
        if self._ended:
            return END
        self._stage = "sample"
        data: Any
        try:
            if self._auto:
                data = []
                for _ in index:
                    data.append(next(self._iterator))
                    self._taken += 1
            else:
                data = next(self._iterator)
                self._taken += 1
        except StopIteration:
            self._ended = True
            if not self._auto:
                return END
        if self._auto and (not data or (self._drop_last and len(data) < len(index))):
            self._ended = True
            return END
        if not collate:
            return None
        self._stage = "collation"
        try:
            return self._collate(data)
        except Exception as error:
            if not isinstance(error, StopIteration):
                explain(error, data, None)
                raise
            raise RuntimeError(f"collate_fn raised StopIteration at {self.where()}") from error


def _tell(dataset: Any, resume: Any) -> None:
    if resume["over"] and resume["epoch"] is not None:
        dataset.set_epoch(resume["epoch"])


def _owner(kind: type, name: str) -> int:
    """Which of its bases gives a class this attribute, the class itself first."""
    return next((at for at, base in enumerate(kind.__mro__) if name in base.__dict__), len(kind.__mro__))


def batch_shape(recipe: Recipe) -> tuple[str, tuple[int, ...]] | None:
    """The dtype and shape of the images of a dataset that writes them into batches itself, if the batches are the default ones."""
    if not recipe.auto_collation or recipe.iterable or not recipe.framework.is_default_collate(recipe.collate_fn):
        return None
    kind = type(recipe.dataset)
    if not callable(getattr(kind, "fill_batch", None)) or not hasattr(kind, "batch_shape"):
        return None
    # A subclass that makes samples in another way knows nothing of batches.
    owners = [_owner(kind, name) for name in ("fill_batch", "__getitem__", "__getitems__")]
    if any(owner < owners[0] for owner in owners[1:]) or "__getitem__" in getattr(recipe.dataset, "__dict__", {}):
        return None
    found: Any = recipe.dataset.batch_shape
    # Others have methods of that name, too.
    known = isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], str) and isinstance(found[1], tuple)
    return found if known and recipe.framework.has_dtype(found[0]) else None


def make_fetcher(
    recipe: Recipe, collate: Callable[[Any], Any], resume: dict[str, Any] | None = None, allocate: Allocate | None = None
) -> Any:
    """The fetcher of one epoch; for an iterable dataset this is where ``iter(dataset)`` runs. ``resume``: this worker's entry of
    ``recipe.resume``, in the first epoch. ``allocate``: where memory for batches comes from."""
    if recipe.lanes is not None:
        from feedrate._lanes import LaneFetcher

        return LaneFetcher(recipe, collate, recipe.lanes)
    return IterableFetcher(recipe, collate, resume) if recipe.iterable else MapFetcher(recipe, collate, resume, allocate)
