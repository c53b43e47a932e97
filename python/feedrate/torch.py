"""PyTorch's ``DataLoader`` on feedrate's engine.

Replace ``from torch.utils.data import DataLoader`` by ``from feedrate.torch import DataLoader``.
"""

from __future__ import annotations

import functools
import math
import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.utils.data
from torch.autograd import forward_ad
from torch.utils.data import DataLoader as _StockLoader
from torch.utils.data import Dataset, IterableDataset, IterDataPipe, MapDataPipe, Sampler, graph_settings
from torch.utils.data._utils import collate as _stock_collate
from torch.utils.data._utils import pin_memory as _stock_pin
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as _stock_worker
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _sharding_worker_init_fn
from torch.utils.data.distributed import DistributedSampler

from feedrate import _lanes, _loader, _native, _options
from feedrate._after import AfterThread
from feedrate._asking import Asked
from feedrate._compile import left_out, not_compiled
from feedrate._context import CurrentRng, set_process_info
from feedrate._coordinator import Coordinator
from feedrate._engine import END, Engine, Settings
from feedrate._errors import capture, reraise
from feedrate._fetch import NOT_READY, Carried, Recipe
from feedrate._framework import Allocate, Framework, revive
from feedrate._pipeline import StreamPipeline
from feedrate._progress import Options, options, pickled, progress
from feedrate._resumable import Resumable, agreed, begin_epoch, beginning, rank_batches

_T_co = TypeVar("_T_co", covariant=True)

__all__ = ["DataLoader"]

# DLPack type code and bits. Tensors of other types (float8, quantised) travel as torch pickles them, around their memory.
_DTYPES = {
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.uint16: (1, 16),
    torch.uint32: (1, 32),
    torch.uint64: (1, 64),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.complex64: (5, 64),
    torch.complex128: (5, 128),
    torch.bool: (6, 8),
}
# The same for NumPy's types, in the machine's byte order; what is not here goes torch's way.
_ARRAY_DTYPES = {
    np.dtype(name): _DTYPES[getattr(torch, name)]
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128", "bool"),
    )
}
_profiler_enabled = torch._C._autograd._profiler_enabled
_from_dlpack = torch.utils.dlpack.from_dlpack
_strided = torch.strided
# torch's own function: not one that was put in its place before this was imported.
_stock_default: Any = _stock_collate.default_collate
if getattr(getattr(_stock_default, "__code__", None), "co_filename", None) != _stock_collate.__file__:
    _stock_default = None
_stock_collate_tensor = _stock_collate.collate_tensor_fn
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_stock_collate_array = _stock_collate.collate_numpy_array_fn

# Inline, smaller batches stay in fresh memory: glibc reuses blocks below its largest mmap threshold (32 MiB) itself, and they can
# be resized.
_INLINE_MIN = 16 << 20


def _plain(tensor: torch.Tensor) -> bool:
    """Whether the transport takes a tensor as it is; torch must reduce the others itself."""
    return not (
        tensor.dtype not in _DTYPES
        or tensor.layout is not _strided
        or tensor.device.type != "cpu"
        or tensor.is_nested
        or tensor.requires_grad
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.__dict__
    )


def _describe(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a plain tensor is: address, storage and its bytes, type, shape, strides."""
    storage = tensor.untyped_storage()
    return (tensor.data_ptr(), storage.data_ptr(), storage.nbytes(), *_DTYPES[tensor.dtype], tuple(tensor.shape), tensor.stride())


# A tensor that torch pickles itself goes with all of its storage. Where that is so many bytes, and so many times what the tensor has, it
# is not copied for each: torch moves it into a file of shared memory once.
_LARGE, _SPREAD = 1 << 20, 4


def _spread(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Address and bytes of such a storage."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            storage, own = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
            nbytes = storage.nbytes()
            return (storage.data_ptr(), nbytes) if nbytes > max(_LARGE, _SPREAD * own) and tensor.device.type == "cpu" else None
    except (NotImplementedError, RuntimeError):
        # It has none of its own.
        return None


def _whole(storage: torch.UntypedStorage) -> torch.Tensor | None:
    """The bytes of a storage in the memory of the host."""
    if storage.device.type != "cpu":
        return None
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def _storage(index: int) -> torch.UntypedStorage:
    """The storage that lies in tensor ``index`` of the batch that is being unpickled."""
    memory: torch.Tensor = _native.tensor(index)
    return memory.untyped_storage()


def _modes() -> bool:
    """Whether torch's functions do something else than usual, on this thread: a default device, fake tensors, forward derivatives."""
    return bool(_function_modes() or _dispatch_modes() or forward_ad._current_level >= 0)


class _ArenaCollate:
    """``collate_tensor_fn`` that stacks into memory from an arena. A class, to be told from a user's function."""

    def __init__(self, allocate: Allocate, smallest: int) -> None:
        self.allocate = allocate
        self.smallest = smallest
        self._owner = os.getpid()

    def away(self) -> bool:
        """Whether the memory of this one cannot be used here: in a fork of its process, or, outside of workers, where torch's functions
        are not to be what they are."""
        return os.getpid() != self._owner or (self.smallest > 1 and _modes())

    def __call__(self, batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        dtype = _DTYPES.get(first.dtype)
        nbytes = first.numel() * first.element_size() * len(batch)
        if (
            dtype is None
            or nbytes < self.smallest
            or nbytes == 0
            or first.layout is not _strided
            or first.device.type != "cpu"
            or first.is_nested
            or self.away()
        ):
            return _stock_collate_tensor(batch, collate_fn_map=collate_fn_map)
        if self.smallest > 1 and not self._plain(batch):
            return _stock_collate_tensor(batch, collate_fn_map=collate_fn_map)
        out = _from_dlpack(self.allocate(nbytes).capsule(*dtype, (len(batch), *first.shape)))
        try:
            return torch.stack(batch, 0, out=out)
        except Exception:
            # What torch says to it.
            return _stock_collate_tensor(batch, collate_fn_map=collate_fn_map)

    @staticmethod
    def _plain(batch: Any) -> bool:
        """Outside of workers torch promotes types, keeps subclasses and gradients: only what needs none of that goes here."""
        dtype = batch[0].dtype
        shape = batch[0].shape
        kind = torch.Tensor
        return all(type(t) is kind and t.dtype is dtype and t.shape == shape and not t.requires_grad for t in batch)


class _ArenaCollateArrays:
    """``collate_numpy_array_fn`` that copies arrays of one type and shape straight into memory from an arena, with no tensor made
    for each."""

    # Whether torch had the occasion to say, once in each process, that it was given an array that cannot be written to.
    _said_read_only = False

    def __init__(self, tensors: _ArenaCollate) -> None:
        self._tensors = tensors

    def __call__(self, batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        dtype = _ARRAY_DTYPES.get(first.dtype)
        shape = first.shape
        if (
            dtype is None
            or not shape
            or first.nbytes * len(batch) < max(self._tensors.smallest, 1)
            # Somebody else collates tensors, which is what torch makes of arrays.
            or (collate_fn_map or {}).get(torch.Tensor) is not self._tensors
            or not all(type(a) is np.ndarray and a.dtype == first.dtype and a.shape == shape and self._plain(a) for a in batch)
            or self._tensors.away()
        ):
            return _stock_collate_array(batch, collate_fn_map=collate_fn_map)
        out = _from_dlpack(self._tensors.allocate(first.nbytes * len(batch)).capsule(*dtype, (len(batch), *shape)))
        np.concatenate(batch, out=out.numpy().reshape(-1, *shape[1:]))
        return out

    @classmethod
    def _plain(cls, array: np.ndarray[Any, Any]) -> bool:
        """Torch refuses some strides, and warns of the first array that cannot be written to (those of Pillow cannot)."""
        flags = array.flags
        if not flags.forc:
            return False
        if flags.writeable:
            return True
        if not cls._said_read_only:
            # This batch is torch's, with its words from where it says them.
            cls._said_read_only = True
            return False
        return not torch.is_warn_always_enabled()


class TorchFramework(Framework):
    """Tensors, torch's generator and torch's idea of a worker."""

    process_name = "pt_data_worker"

    def __reduce__(self) -> Any:
        return revive, ("torch", __name__, type(self).__name__)

    def enter_worker(
        self, worker: int, workers: int, base_seed: int, dataset: Any, *, sample_keyed: bool, shared_seed: int | None
    ) -> Any:
        """As torch's own worker loop begins."""
        signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
        torch.set_num_threads(1)
        self.seed_worker(base_seed, worker)
        dataset = self.begin_epoch(dataset, shared_seed)
        info = _stock_worker.WorkerInfo(
            id=worker,
            num_workers=workers,
            seed=base_seed + worker,
            dataset=dataset,
            rng=CurrentRng() if sample_keyed else None,  # type: ignore[arg-type]
        )
        _stock_worker._worker_info = info
        set_process_info(info)
        return dataset

    def begin_epoch(self, dataset: Any, shared_seed: int | None) -> Any:
        """A datapipe gets its shuffling seed."""
        if isinstance(dataset, IterDataPipe) and shared_seed is not None:
            rng = torch.Generator().manual_seed(shared_seed)
            return graph_settings.apply_random_seed(dataset, rng)
        return dataset

    def reducer(self) -> Any:
        """Plain tensors as they are, and the memory of all others."""
        return torch.Tensor, _plain, _describe, torch.UntypedStorage, _spread, _whole, _storage

    def arena_collate(self, collate_fn: Callable[[Any], Any], allocate: Allocate) -> Callable[[Any], Any]:
        """torch's default collation with our memory, unless the user has changed how tensors are collated."""
        if collate_fn is not _stock_default or _stock_worker._worker_info is not None:
            # In a worker process the map itself has been changed, for collate functions that call the default one.
            return collate_fn
        return _Collate(allocate)

    def install_arena(self, allocate: Allocate) -> None:
        """The map of this process, which belongs to the loader."""
        table = _stock_collate.default_collate_fn_map
        if table.get(torch.Tensor) is _stock_collate_tensor:
            table.update(_with_arena(table, _ArenaCollate(allocate, 1)))

    def is_default_collate(self, collate_fn: Callable[[Any], Any]) -> bool:
        """torch's own, with its own tensors."""
        if collate_fn is not _stock_default:
            return False
        tensors = _stock_collate.default_collate_fn_map.get(torch.Tensor)
        # In a worker process the map is ours.
        return tensors is _stock_collate_tensor or type(tensors) is _ArenaCollate

    def has_dtype(self, dtype: str) -> bool:
        """torch has all of them."""
        return True

    def batch_memory(self, allocate: Allocate, dtype: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """A tensor and its bytes."""
        kind: torch.dtype = getattr(torch, dtype)
        nbytes = math.prod(shape) * kind.itemsize
        smallest = 1 if _stock_worker._worker_info is not None else _INLINE_MIN
        if nbytes < smallest or nbytes == 0:
            tensor = torch.empty(shape, dtype=kind)
        else:
            tensor = _from_dlpack(allocate(nbytes).capsule(*_DTYPES[kind], shape))
        return tensor, tensor.reshape(-1).view(torch.uint8).numpy()


class _Collate:
    """torch's default collation, with memory from ``allocate`` unless the user has changed how tensors are collated."""

    def __init__(self, allocate: Allocate) -> None:
        self._tensors = _ArenaCollate(allocate, _INLINE_MIN)

    def __call__(self, batch: Any) -> Any:
        # Looked up each time: who collates a type of his own may say so when it is first imported.
        table = _stock_collate.default_collate_fn_map
        if table.get(torch.Tensor) is _stock_collate_tensor:
            table = _with_arena(table, self._tensors)
        return _stock_collate.collate(batch, collate_fn_map=table)


def _with_arena(table: dict[Any, Any], tensors: _ArenaCollate) -> dict[Any, Any]:
    """A copy of a collation map whose tensors, and arrays if the user has not changed them, go to memory from an arena."""
    changed = {**table, torch.Tensor: tensors}
    if table.get(np.ndarray) is _stock_collate_array:
        changed[np.ndarray] = _ArenaCollateArrays(tensors)
    return changed


_FRAMEWORK = TorchFramework()

# A pipeline without an index is a stream, for torch's rules too.
IterableDataset.register(StreamPipeline)


def _settings(loader: DataLoader[Any], it: Any) -> Settings:
    return Settings(
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor or 1,
        in_order=bool(loader.in_order),
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        context=loader.multiprocessing_context,
        base_seed=it._base_seed,
        shared_seed=it._shared_seed,
        threads=loader.num_workers > 0 and _options.use_threads(loader),
        redo=options(loader).redo,
    )


def _recipe(loader: DataLoader[Any], it: Any) -> Recipe:
    given = options(loader)
    return Recipe(
        dataset=it._dataset,
        iterable=it._dataset_kind == _DatasetKind.Iterable,
        auto_collation=it._auto_collation,
        collate_fn=it._collate_fn,
        drop_last=it._drop_last,
        framework=_FRAMEWORK,
        seeding=given.seeding,
        seed=_options.keyed_seed(loader, it._base_seed),
        items_in_flight=given.items_in_flight,
        resume=it._epoch.resume_workers(),
        snapshot_every=max(1, given.snapshot_every_n_steps or 1),
        lanes=it._epoch.shape,
        pipeline_seed=it._epoch.pipeline_seed(),
        addressed=it._epoch.addressed,
    )


def _begin_pinning(device: int) -> None:
    torch.set_num_threads(1)
    torch.accelerator.set_device_index(device)
    _native.set_thread_name("pt_data_pin")


def _pin(batch: Any, *, device_id: int, device: str | None) -> Any:
    """Copies a batch into pinned memory; the slot that it came in is free again when ``batch`` goes."""
    try:
        if isinstance(batch, Carried):
            batch.batch = _stock_pin.pin_memory(batch.batch, device)  # type: ignore[no-untyped-call]
            return batch
        return _stock_pin.pin_memory(batch, device)  # type: ignore[no-untyped-call]
    except Exception as error:
        reraise(capture(error, f"in pin memory thread for device {device_id}", None))


def _finished(loader: DataLoader[Any], batch: Any) -> Any:
    """What is still done in this process to a batch that was made in it: pinning."""
    if loader.pin_memory and loader.num_workers > 0 and torch.accelerator.is_available():
        return _stock_pin.pin_memory(batch, loader.pin_memory_device or None)  # type: ignore[no-untyped-call]
    return batch


class _FeedIter(_BaseDataLoaderIter, Asked):
    """What both iterators share: batches from the engine."""

    _engine: Engine | None = None
    _after: AfterThread | None = None
    _over = False
    _asking = False
    _batches: Any = None

    def _next_data(self) -> Any:
        engine, epoch = self._engine, self._epoch
        if self._over or engine is None:
            raise StopIteration
        source = self._batches if self._coming is None else self._coming
        try:
            batch = source.next(0.0 if self._asking else self._timeout or None)
        except BaseException:
            epoch.failed(source.mark())
            raise
        if batch is NOT_READY:
            return batch
        if batch is END:
            if self._num_yielded == 0 and not epoch.resumed:
                _options.warn_no_batches(engine, self._dataset, self._batch_size, drop_last=self._drop_last, plan=epoch.lanes)
            self._end()
            epoch.ended()
            raise StopIteration
        if epoch.tracked:
            mark = source.mark()
            return epoch.arrived(mark[0], mark[1], batch) if mark is not None else epoch.filled(batch)
        epoch.done += 1
        if epoch.done <= 2:
            epoch.counts()
        return batch

    def __init__(self, loader: DataLoader[Any], *, unseeded: bool) -> None:
        self._epoch = epoch = begin_epoch(loader)
        with epoch.begun(unseeded=unseeded):
            super().__init__(loader)
        self._base_seed = epoch.seeded(int(self._base_seed))
        self._batch_size = loader.batch_size

    def _source(self) -> Iterator[Any]:
        return self._epoch.source(self._sampler_iter)

    def _end(self) -> None:
        self._over = True

    @not_compiled
    def __next__(self) -> Any:
        # torch's __next__ enters a profiler scope for each batch, which costs more than a small batch; it is entered when somebody
        # is looking.
        if _profiler_enabled() or self._dataset_kind == _DatasetKind.Iterable or self._sampler_iter is None:
            return super().__next__()
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _ask(self) -> Any:
        if self._sampler_iter is None:
            self._reset()  # type: ignore[call-arg]
        self._asking = True
        try:
            batch = self._next_data()
        finally:
            self._asking = False
        self._num_yielded += batch is not NOT_READY
        return batch


class _SingleProcessDataLoaderIter(_FeedIter):
    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader, unseeded=True)
        if self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if self._num_workers != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires num_workers == 0")
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
        self._engine = Engine(_recipe(loader, self), _settings(loader, self))
        self._epoch.opened(self._engine.initial)
        self._engine.begin(self._source(), None, self._epoch.first_worker())
        self._batches = agreed(loader, self._engine, self._epoch, functools.partial(_finished, loader))
        self._epoch.read_over(self)

    def _next_data(self) -> Any:
        batch = super()._next_data()
        if self._pin_memory and batch is not NOT_READY:
            batch = _stock_pin.pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return batch


class _MultiProcessingDataLoaderIter(_FeedIter):
    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader, unseeded=False)
        self._prefetch_factor = loader.prefetch_factor
        if self._num_workers <= 0:
            raise AssertionError("num_workers must be greater than 0 for MultiProcessingDataLoaderIter")
        if self._prefetch_factor is None or self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        settings = _settings(loader, self)
        if settings.context is None:
            settings.context = torch.multiprocessing
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            settings.worker_init_fn = functools.partial(
                _sharding_worker_init_fn, settings.worker_init_fn, self._world_size, self._rank
            )
        self._engine = Engine(_recipe(loader, self), settings)
        if self._pin_memory:
            device = torch.accelerator.current_device_index()
            self._after = AfterThread(
                self._engine,
                functools.partial(_pin, device_id=device, device=self._pin_memory_device),
                functools.partial(_begin_pinning, device),
                "pt_data_pin",
            )
            self._pin_memory_thread = self._after.thread
        self._reset(loader, first_iter=True)

    @property
    def _workers(self) -> list[Any]:
        return [] if self._engine is None else self._engine.workers

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            self._leave_coming()
            self._epoch = begin_epoch(loader)
            self._epoch.seeded(int(self._base_seed))
        self._epoch.note_generators()
        super()._reset(loader, first_iter)
        self._over = False
        assert self._engine is not None
        if self._after is not None:
            self._after.begin()
        body = pickle.dumps((self._shared_seed, _options.dataset_epoch(self._dataset)))
        self._engine.begin(self._source(), body, self._epoch.first_worker())
        self._batches = agreed(
            loader, self._engine if self._after is None else self._after, self._epoch, functools.partial(_finished, loader)
        )
        self._epoch.read_over(self)

    def _end(self) -> None:
        super()._end()
        if not self._persistent_workers:
            self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        self._over = True
        if self._engine is not None:
            if self._after is not None and not self._engine.closed:
                self._after.close()
            self._engine.close()

    def __del__(self) -> None:
        self._shutdown_workers()


class DataLoader(Resumable, _StockLoader[_T_co]):
    """``torch.utils.data.DataLoader`` on feedrate's engine: the same arguments, batches, types, errors and random streams.

    ``docs/differences.md`` lists what differs on purpose. Arguments beyond torch's, each also an attribute:

    Args:
        workers: where tasks run when ``num_workers > 0``: ``"process"``, ``"thread"``, or ``"auto"`` (threads on free-threaded
            Python, else processes).
        seeding: ``"worker"`` gives torch's random streams, which depend on the number of workers; ``"sample"`` keys them by
            (seed, epoch, position of the sample), so that augmentation does not.
        redo: replace a worker process that dies and do its tasks again; ``False`` raises torch's error.
        items_in_flight: samples of one batch that each worker fetches at the same time, on threads; for datasets that wait.
        seed: the key of ``seeding="sample"`` and of the steps of pipelines, where ``None`` takes one from ``generator`` (or torch's
            global generator) at the first ``iter()``; and of the order with ``distributed``, where there is no ``generator``.
        snapshot_every_n_steps: batches of a worker between two calls of an iterable dataset's ``state_dict()``; what lies between
            is read again when a state is loaded. Map-style data needs none.
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
        dataset: Dataset[_T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        workers: Literal["process", "thread", "auto"] = "process",
        seeding: Literal["worker", "sample"] = "worker",
        redo: bool = True,
        items_in_flight: int = 1,
        seed: int | None = None,
        snapshot_every_n_steps: int | None = 1,
        distributed: Literal["auto"] | tuple[int, int] | None = None,
        remainder: Literal["pad", "drop", "exact"] = "pad",
        coordinator: Coordinator | None = None,
    ) -> None:
        data: Any = dataset
        if isinstance(data, _loader.IterableDataset) and not isinstance(data, IterableDataset):
            raise TypeError(
                f"{type(dataset).__name__} is a feedrate.IterableDataset, which torch's rules take for a map-style dataset: derive it "
                "from torch.utils.data.IterableDataset as well, or use feedrate.DataLoader"
            )
        stock_arguments = (
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
        )
        try:
            super().__init__(
                *stock_arguments,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                pin_memory_device=pin_memory_device,
                in_order=in_order,
            )
        except ValueError as error:
            if str(error).endswith("num_samples=0"):
                error.add_note("feedrate: the dataset has no samples; the cause is often a path or pattern that matched nothing")
            raise
        given = Options(
            workers, seeding, redo, items_in_flight, seed, snapshot_every_n_steps, distributed, remainder, coordinator
        )
        _options.give(self, given, iterable=isinstance(dataset, IterableDataset))

    def __setattr__(self, name: str, value: Any) -> None:
        _options.change(self, name, value, super().__setattr__)

    @not_compiled
    def __len__(self) -> int:
        """Batches in an epoch, of this rank."""
        if _lanes.is_laned(self.dataset):
            _lanes.check_length(self)
        steps = rank_batches(self)
        return super().__len__() if steps is None else steps

    def __getstate__(self) -> dict[str, Any]:
        return pickled(self)

    @not_compiled
    def __iter__(self) -> Any:
        """A new epoch; with persistent workers there is one iterator, which starts again."""
        left_out()
        sampler = self.sampler
        if isinstance(sampler, DistributedSampler) and sampler.shuffle:
            last = progress(self).sampler_epoch
            if last == sampler.epoch:
                warnings.warn(
                    f"DistributedSampler.epoch is {last} for the second epoch in a row, so its order is the same again: call "
                    "sampler.set_epoch(epoch) before each epoch",
                    stacklevel=2,
                )
                last = object()
            elif last is None or isinstance(last, int):
                last = sampler.epoch
            progress(self).sampler_epoch = last
        with beginning(self):
            return super().__iter__()

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return _SingleProcessDataLoaderIter(self)
        self.check_worker_number_rationality()
        return _MultiProcessingDataLoaderIter(self)
