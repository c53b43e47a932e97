"""``feedrate.DataLoader``: the loader without torch."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np

from feedrate import _collate, _lanes, _options, _sampler
from feedrate._asking import Asked
from feedrate._compile import left_out, not_compiled
from feedrate._coordinator import Coordinator
from feedrate._engine import END, Engine, Settings
from feedrate._fetch import NOT_READY, Recipe
from feedrate._framework import Framework
from feedrate._pipeline import StreamPipeline
from feedrate._progress import Options, options, pickled, progress
from feedrate._resumable import Resumable, agreed, begin_epoch, beginning, rank_batches


class IterableDataset:
    """Base class of datasets that are read as a stream: they have ``__iter__`` and no index.

    Each worker iterates its own stream; ``feedrate.get_worker_info()`` tells it which share of the data is its own. Deriving
    from this class says that the dataset asks feedrate, and not torch, for that; thread workers need it.
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")


def _is_iterable(dataset: Any) -> bool:
    if isinstance(dataset, (IterableDataset, StreamPipeline)):
        return True
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(dataset, torch_data.IterableDataset):
        return True
    if isinstance(dataset, Iterator) and not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"a {type(dataset).__name__} can be iterated once, so that later epochs and other workers would find nothing, or the rest: "
            "give an object whose __iter__ begins anew, as a class or feedrate.from_iterable() has it"
        )
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


#: What torch's loader refuses to change, too.
_SETTLED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader(Resumable):
    """Batches of a dataset as NumPy arrays; needs no torch.

    Takes the arguments of ``torch.utils.data.DataLoader`` with the same meaning, except for pinned memory, and those of
    ``feedrate.torch.DataLoader``.

    Args:
        dataset: map-style (``__getitem__``, ``__len__``) or iterable (``__iter__`` only, or an :class:`IterableDataset`).
        batch_size: samples a batch; ``None`` switches batching off.
        shuffle: a new random order each epoch.
        sampler: an iterable of indices.
        batch_sampler: an iterable of lists of indices.
        num_workers: workers that run ahead; 0 loads in the calling thread when a batch is asked for.
        collate_fn: makes a batch from a list of samples, in the worker. The default one stacks arrays and numbers.
        drop_last: leave out a last short batch.
        timeout: seconds to wait for a batch before ``RuntimeError`` is raised; 0 waits for ever.
        worker_init_fn: called with the worker's number in each worker before it starts.
        multiprocessing_context: a start method or context for process workers.
        generator: where random numbers come from: a ``numpy.random.Generator``, an integer seed for one, or ``None`` for one of
            ``seed``, and without that a fresh one.
        prefetch_factor: batches in flight for each worker (default 2).
        persistent_workers: keep the workers between epochs.
        in_order: deliver in the order of the sampler; ``False`` delivers as completed.
        workers: ``"process"``, ``"thread"`` or ``"auto"`` (threads on free-threaded Python, else processes).
        seeding: ``"worker"`` seeds ``random`` and ``numpy.random`` once for each worker, as torch does; ``"sample"`` keys them by
            (seed, epoch, position of the sample).
        redo: replace a worker process that dies and do its tasks again.
        items_in_flight: samples of one batch that each worker fetches at the same time, on threads.
        seed: the key of ``seeding="sample"`` and of the steps of pipelines; and of the order, where there is no ``generator``.
        snapshot_every_n_steps: batches of a worker between two calls of an iterable dataset's ``state_dict()``.
        distributed: give this rank its share of every step, of an order that is the same on all ranks: ``(rank, world size)``, or
            ``"auto"`` for those of ``torch.distributed``, torchrun's environment or JAX. Each epoch has another order, of ``seed``
            (default 0) and its number, when the sampler has no generator of its own; a generator
            or a sampler of your own has to give the same on all ranks.
        remainder: what ranks get of a last step that is not full. ``"pad"``: samples from the front of the epoch fill it up
            (``mask`` tells which); ``"drop"``: as many as all can have; ``"exact"``: each sample once, short ranks a shorter or
            empty batch. All ranks have the same number of steps.
            An iterable dataset gives each rank its share itself; its ranks agree on the number of steps while they run: with
            ``"drop"`` the smallest, else the largest, and short ranks get their last batch again (``mask`` all ``False``) or an empty
            one.
        coordinator: where they agree; ``None`` takes the store of ``torch.distributed``. See :class:`feedrate.Coordinator`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: np.random.Generator | int | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        workers: Literal["process", "thread", "auto"] = "auto",
        seeding: Literal["worker", "sample"] = "worker",
        redo: bool = True,
        items_in_flight: int = 1,
        seed: int | None = None,
        snapshot_every_n_steps: int | None = 1,
        distributed: Literal["auto"] | tuple[int, int] | None = None,
        remainder: Literal["pad", "drop", "exact"] = "pad",
        coordinator: Coordinator | None = None,
    ) -> None:
        iterable = _is_iterable(dataset)
        _check(
            iterable=iterable,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            drop_last=drop_last,
            timeout=timeout,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
        )
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = 2 if num_workers > 0 and prefetch_factor is None else prefetch_factor
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = _context(multiprocessing_context, num_workers)
        own_generator = generator is not None
        if generator is None and seed is not None:
            generator = int(seed) & 0xFFFFFFFFFFFFFFFF
        self.generator = generator if isinstance(generator, np.random.Generator) else np.random.default_rng(generator)
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        if sampler is None:
            if iterable:
                sampler = _sampler.InfiniteSampler()
            elif shuffle:
                sampler = _sampler.RandomSampler(dataset, self.generator, given=own_generator)
            else:
                sampler = _sampler.SequentialSampler(dataset)
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        elif batch_size is not None:
            batch_sampler = _sampler.BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        if collate_fn is None:
            collate_fn = _collate.default_convert if batch_sampler is None else _collate.default_collate
        self.collate_fn = collate_fn
        self._iterator: _Iterator | None = None
        progress(self).iterable = iterable
        given = Options(
            workers, seeding, redo, items_in_flight, seed, snapshot_every_n_steps, distributed, remainder, coordinator
        )
        _options.give(self, given, iterable=iterable)

    def __setattr__(self, name: str, value: Any) -> None:
        _options.change(self, name, value, super().__setattr__, _SETTLED)

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @not_compiled
    def __iter__(self) -> Iterator[Any]:
        """A new epoch. With persistent workers there is one iterator, which starts again."""
        left_out()
        with beginning(self):
            if not (self.persistent_workers and self.num_workers > 0):
                return _Iterator(self)
            if self._iterator is None:
                self._iterator = _Iterator(self)
            else:
                self._iterator._begin(self)
            return self._iterator

    def __len__(self) -> int:
        """Batches in an epoch. ``TypeError`` when the dataset or sampler has no length."""
        steps = rank_batches(self)
        if steps is not None:
            return steps
        if not progress(self).iterable:
            return len(self._index_sampler)
        if _lanes.is_laned(self.dataset):
            _lanes.check_length(self)
        n = len(self.dataset)
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __getstate__(self) -> dict[str, Any]:
        return {**pickled(self), "_iterator": None}


class _Iterator(Asked):
    """One pass over a loader, or with persistent workers one after the other."""

    def __init__(self, loader: DataLoader) -> None:
        given = options(loader)
        self._epoch = epoch = begin_epoch(loader)
        with epoch.begun(unseeded=False):
            base_seed = int(loader.generator.integers(0, 1 << 63, dtype=np.int64))
        base_seed = epoch.seeded(base_seed)
        recipe = Recipe(
            dataset=loader.dataset,
            iterable=bool(progress(loader).iterable),
            auto_collation=loader._auto_collation,
            collate_fn=loader.collate_fn,
            drop_last=loader.drop_last,
            framework=Framework(),
            seeding=given.seeding,
            seed=_options.keyed_seed(loader, base_seed),
            items_in_flight=given.items_in_flight,
            resume=epoch.resume_workers(),
            snapshot_every=max(1, given.snapshot_every_n_steps or 1),
            lanes=epoch.shape,
            pipeline_seed=epoch.pipeline_seed(),
            addressed=epoch.addressed,
        )
        settings = Settings(
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor or 1,
            in_order=loader.in_order,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            context=loader.multiprocessing_context,
            base_seed=base_seed,
            shared_seed=None,
            threads=loader.num_workers > 0 and _options.use_threads(loader),
            redo=given.redo,
        )
        self._base_seed = base_seed
        self._loader_data = loader.dataset, loader.batch_size
        self._drop_last = loader.drop_last
        self._persistent = loader.persistent_workers
        self._timeout = loader.timeout or None
        self._engine: Engine | None = None
        self._engine = Engine(recipe, settings)
        epoch.opened(self._engine.initial)
        self._begin(loader, first=True)

    def _begin(self, loader: DataLoader, *, first: bool = False) -> None:
        assert self._engine is not None
        if not first:
            self._leave_coming()
            self._epoch = begin_epoch(loader)
            self._epoch.seeded(self._base_seed)
        self._epoch.note_generators()
        self._over = False
        self._num_yielded = 0
        self._index_sampler = loader._index_sampler
        self._sampler_iter = iter(self._index_sampler)
        epoch_body = pickle.dumps((None, _options.dataset_epoch(loader.dataset)))
        source = self._epoch.source(self._sampler_iter)
        self._engine.begin(source, epoch_body, self._epoch.first_worker())
        self._batches = agreed(loader, self._engine, self._epoch, lambda batch: batch)
        self._epoch.read_over(self)

    @property
    def _workers(self) -> list[Any]:
        return [] if self._engine is None else self._engine.workers

    def __iter__(self) -> _Iterator:
        return self

    def __len__(self) -> int:
        return len(self._index_sampler)

    @not_compiled
    def __next__(self) -> Any:
        return self._next(self._timeout)

    def _ask(self) -> Any:
        return self._next(0.0)

    def _next(self, timeout: float | None) -> Any:
        if self._over or self._engine is None:
            raise StopIteration
        epoch = self._epoch
        source = self._batches if self._coming is None else self._coming
        try:
            batch = source.next(timeout)
        except BaseException:
            epoch.failed(source.mark())
            raise
        if batch is NOT_READY:
            return batch
        if batch is END:
            self._over = True
            if self._num_yielded == 0 and not epoch.resumed:
                _options.warn_no_batches(self._engine, *self._loader_data, drop_last=self._drop_last, plan=epoch.lanes)
            epoch.ended()
            if not self._persistent:
                self._shutdown_workers()
            raise StopIteration
        self._num_yielded += 1
        if epoch.tracked:
            mark = source.mark()
            return epoch.arrived(mark[0], mark[1], batch) if mark is not None else epoch.filled(batch)
        epoch.done += 1
        if epoch.done <= 2:
            epoch.counts()
        return batch

    def _shutdown_workers(self) -> None:
        self._over = True
        if self._engine is not None:
            self._engine.close()

    def __del__(self) -> None:
        # No contextlib: this module may be cleared already, when the interpreter ends.
        try:
            self._shutdown_workers()
        except AttributeError:
            pass

    def __reduce__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")


def _context(context: Any, num_workers: int) -> Any:
    if context is None:
        return None
    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got num_workers=0"
        )
    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        if context not in methods:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {methods!r}, "
                f"but got multiprocessing_context={context!r}"
            )
        return multiprocessing.get_context(context)
    if not isinstance(context, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start method, "
            f"but got multiprocessing_context={context}"
        )
    return context


def _check(
    *,
    iterable: bool,
    batch_size: int | None,
    shuffle: bool | None,
    sampler: Any,
    batch_sampler: Any,
    num_workers: int,
    drop_last: bool,
    timeout: float,
    prefetch_factor: int | None,
    persistent_workers: bool,
) -> None:
    """The rules of torch's constructor, in its order."""
    if num_workers < 0:
        raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError("prefetch_factor option needs workers: set num_workers > 0, or leave prefetch_factor at None")
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(f"prefetch_factor option should be positive, but got prefetch_factor={prefetch_factor}")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")
    if num_workers == 0 and timeout > 0:
        raise ValueError(f"timeout={timeout} needs num_workers > 0: without workers nobody could wait")
    if iterable:
        for name, value in (("shuffle", shuffle), ("sampler", sampler), ("batch_sampler", batch_sampler)):
            if value not in (None, False):
                raise ValueError(
                    f"DataLoader with an iterable dataset: expected unspecified {name} option, but got {name}={value}"
                )
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise ValueError("batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last")
    if batch_size is None and drop_last:
        raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
    cpus = len(os.sched_getaffinity(0))
    if num_workers > cpus:
        warnings.warn(
            f"This DataLoader will create {num_workers} workers; this process may use {cpus} CPUs. More workers than CPUs help only "
            "when samples are waited for and not computed",
            stacklevel=3,
        )
