"""One iterator's engine: the feed, its workers, and their end."""

from __future__ import annotations

import atexit
import contextlib
import copy
import errno
import multiprocessing
import operator
import os
import resource
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pickle import PicklingError
from typing import Any, NoReturn

from feedrate import _diagnose, _native, _threads, _worker
from feedrate._errors import annotate, describe_tasks, died, exiting, pickled_index, reraise
from feedrate._fetch import END, NOT_READY, Recipe, make_fetcher

#: Workers that are still busy this many seconds after their loader was closed get SIGTERM. (torch waits 5 s for each in turn.)
GRACE = 1.0

_PICKLE_WARNING = (
    "Got pickle error when attempting to start a worker Process. "
    "This might be because the worker Process arguments are not picklable. "
    "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
    "to 'forkserver', which requires the worker Process arguments to be picklable. "
    "You can also try multiprocessing.set_start_method('fork')."
)

_open: weakref.WeakSet[Engine] = weakref.WeakSet()


@dataclass
class Settings:
    """What an engine needs to know beside the recipe."""

    num_workers: int
    prefetch_factor: int
    in_order: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    context: Any
    base_seed: int
    shared_seed: int | None
    threads: bool
    redo: bool


def _weak(method: Any) -> Callable[..., Any]:
    """``method`` without a reference to its object: the native feed is not seen by the garbage collector, and must not keep the
    engine that owns it."""
    ref = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        found = ref()
        if found is None:
            raise RuntimeError("this iterator has been closed")
        return found(*args)

    return call


def _as_it_is(index: Any) -> Any:
    """An index object of its own for a thread: a sampler may fill the same list, or array, again for the next one. Other workers get a
    pickle of it."""
    kind = type(index)
    if kind is int or kind is str:
        return index
    if kind is list:
        return index.copy()
    if kind is tuple:
        return tuple(map(_as_it_is, index))
    if hasattr(index, "__array__"):
        # A shallow copy of a tensor is the same memory.
        return copy.deepcopy(index)
    return copy.copy(index) if isinstance(index, MutableSequence | MutableMapping) else index


class Engine:
    """Feed and workers of one iterator.

    Made and used on the user's thread. Starts its workers when made; they begin with :meth:`begin`.
    """

    def __init__(self, recipe: Recipe, settings: Settings) -> None:
        self._recipe = recipe
        self._settings = settings
        self._owner = os.getpid()
        self._closed = False
        self._oom_before = _native.oom_kills()
        self._warned_stopped: set[int] = set()
        self._payload: Any = None
        self._executor: ThreadPoolExecutor | None = None
        #: For workers that replace others: what those were told of the epoch, from the second one on.
        self._epoch: bytes | None = None
        self._begun = False
        #: Process handles (``pid``, ``join``, ``is_alive``, ``exitcode``, ``terminate``) or threads, by worker number.
        self.workers: list[Any] = [None] * operator.index(settings.num_workers)
        self._arena: Any = None
        #: Without workers, the state of the dataset or stream before the first batch, pickled; ``None`` without one.
        self.initial: bytes | None = None
        pool: Any
        if settings.num_workers == 0:
            self._arena = _native.Arena()
            pool = self._inline()
        elif settings.threads:
            self._arena = _native.Arena()
            pool = self._start_threads()
        else:
            pool = self._start_processes()
        self.feed = _native.Feed(
            pool,
            window=max(1, settings.num_workers * settings.prefetch_factor),
            in_order=settings.in_order,
            redo=settings.redo and not settings.threads,
            pinned=recipe.iterable and recipe.lanes is None,
            routed=recipe.lanes is not None,
            reraise=_weak(self._reraise),
            timed_out=_weak(self._timed_out),
            end=END,
        )
        _open.add(self)

    def begin(self, source: Iterator[Any], epoch_body: bytes | None = None, first_worker: int = 0) -> None:
        """Starts an epoch over index objects, with their keys when randomness is keyed: the window is filled before this returns.
        ``first_worker`` gets the first one."""
        self._epoch, self._begun = epoch_body if self._begun else None, True
        if self._settings.threads:
            source = map(_as_it_is, source)
        try:
            self.feed.begin(source, epoch_body, first_worker)
        except _native.WorkerDied as error:
            self._raise_died(error)

    def next(self, timeout: float | None) -> Any:
        """The next batch, or ``END``. With a timeout of 0 nothing is waited for: ``NOT_READY`` when it is not there yet."""
        try:
            if timeout != 0:
                return self.feed.next(timeout)
            found = self.feed.try_next()
        except _native.WorkerDied as error:
            self._raise_died(error)
        return NOT_READY if found is None else found[0]

    def take(self, timeout: float | None) -> tuple[Any] | None:
        """As :meth:`next`, but the batch, in a tuple, keeps its place in the window until ``feed.refill()``; ``None`` when ``timeout``
        is 0 and it is not there yet."""
        try:
            return self.feed.take(timeout)
        except _native.WorkerDied as error:
            self._raise_died(error)

    def mark(self) -> tuple[int, int] | None:
        """Position and worker of what :meth:`next` or :meth:`take` gave or raised last for a task, in this epoch."""
        found: tuple[int, int] | None = self.feed.last()
        return found

    # -- the three pools

    def _inline(self) -> Callable[[Any, int, int], Any]:
        recipe = self._recipe
        collate = recipe.framework.arena_collate(recipe.collate_fn, self._arena.reserve)
        recipe = replace(recipe, own_globals=recipe.items_in_flight == 1, borrow_globals=True)
        fetcher = make_fetcher(recipe, collate, recipe.resume.get(0), self._arena.reserve)
        self.initial = fetcher.snapshot()
        if recipe.iterable and recipe.lanes is None:
            found: Callable[[Any, int, int], Any] = fetcher
            return found

        def fetch(index: Any, epoch: int, position: int) -> Any:
            try:
                return fetcher(index, epoch, position)
            except Exception as error:
                annotate(error, f"feedrate: batch {position}, {fetcher.where()}")
                raise

        return fetch

    def _start_threads(self) -> Any:
        settings = self._settings
        pool, ends = _native.Threads.pair(settings.num_workers)
        recipe = replace(self._recipe, own_globals=False)
        if recipe.items_in_flight > 1:
            # All workers' hands work on the batch that is needed first.
            hands = recipe.items_in_flight * settings.num_workers
            self._executor = ThreadPoolExecutor(hands, thread_name_prefix="feedrate_item")
            recipe = replace(recipe, executor=self._executor)
        for worker, end in enumerate(ends):
            self.workers[worker] = _threads.start(
                _worker.thread_main,
                end,
                recipe,
                worker,
                settings.num_workers,
                settings.base_seed,
                settings.worker_init_fn,
                self._arena.reserve,
                name="feedrate_worker",
            )
        return pool

    def _start_processes(self) -> Any:
        settings = self._settings
        _worker.assert_startable()
        self._context = settings.context or multiprocessing
        self._method = self._context.get_start_method()
        goods = (self._recipe, settings.worker_init_fn)
        if self._method != "fork":
            # Something in it may be made for one receiver only, or not be picklable at all: starting a worker will tell.
            with contextlib.suppress(Exception):
                return self._start_with(_worker.SharedPayload(), goods)
        return self._start_with(_worker.OwnPayload(), goods)

    def _start_with(self, payload: _worker.SharedPayload | _worker.OwnPayload, goods: Any) -> Any:
        settings = self._settings
        processes = None

        def start() -> None:
            nonlocal processes
            processes = _native.Processes(
                settings.num_workers,
                _weak(self._launch),
                _weak(self._bury),
                _weak(self._stalled),
                pickled_index,
            )

        self._payload = payload
        try:
            payload.fill(goods, start)
        except BaseException as error:
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                error.add_note(
                    f"feedrate: this process may have {limit} files open, which is not enough for {settings.num_workers} workers beside "
                    "what it has open: raise it (ulimit -n, resource.setrlimit), or use fewer workers"
                )
            processes = None
            self._end_processes(0.0)
            self.workers = [None] * settings.num_workers
            raise
        return processes

    def _launch(self, worker: int, fd: int, resume: bytes | None) -> int:
        settings = self._settings
        boot = _worker.Boot(
            worker=worker,
            workers=settings.num_workers,
            base_seed=settings.base_seed,
            parent=self._owner,
            channel=_worker.Descriptor(fd),
            payload=self._payload,
            framework=self._recipe.framework,
            resume=resume,
            keep_states=settings.redo and not self._recipe.iterable and not self._recipe.keyed,
            shared_seed=settings.shared_seed,
            epoch=self._epoch,
            held=_worker.HeldInterrupts(self._method),
        )
        try:
            return self._launch_with(boot, worker)
        finally:
            boot.held.release()

    def _launch_with(self, boot: _worker.Boot, worker: int) -> int:
        process = self._context.Process(target=_worker.process_main, args=(boot,))
        process.daemon = True
        try:
            process.start()
        except (TypeError, AttributeError, PicklingError) as error:
            parts = {
                "dataset": self._recipe.dataset,
                "collate_fn": self._recipe.collate_fn,
                "worker_init_fn": self._settings.worker_init_fn,
            }
            if (culprit := _diagnose.pickling(parts)) is not None:
                error.add_note(
                    f"feedrate: with the start method {self._method!r} the dataset and the functions go to the workers as pickles, and "
                    f"this cannot be pickled: {culprit}. Define it at the top level of a module, open it in the worker, "
                    'or use workers="thread"'
                )
            warnings.warn(_PICKLE_WARNING, stacklevel=2)
            raise
        former, self.workers[worker] = self.workers[worker], process
        if former is not None:
            # It is dead and its exit code was read; now its descriptors go.
            with contextlib.suppress(ValueError):
                former.close()
        pid: int = process.pid
        return pid

    def _bury(self, worker: int) -> int | None:
        process = self.workers[worker]
        process.join(1.0)
        code: int | None = process.exitcode
        return code

    # -- what the feed reports

    def _reraise(self, worker: int, payload: dict[str, Any]) -> NoReturn:
        reraise(payload)

    def _raise_died(self, error: Any) -> NoReturn:
        settings = self._settings
        found = died(
            error.args,
            indices=self._indices(error.args[5]),
            redo=settings.redo,
            iterable=self._recipe.iterable and self._recipe.lanes is None,
            oom_before=self._oom_before,
        )
        raise found from found.__cause__

    def _indices(self, indices: list[Any]) -> list[Any]:
        return [index[1] for index in indices] if self._recipe.addressed else indices

    def _timed_out(self, worker: int, indices: list[Any]) -> NoReturn:
        message = f"DataLoader timed out after {self._settings.timeout} seconds"
        indices = self._indices(indices)
        if self._settings.threads:
            frame = sys._current_frames().get(self.workers[worker].ident)
            stack = "".join(traceback.format_stack(frame)) if frame is not None else "The thread has ended."
            raise RuntimeError(f"{message}\nWorker thread {worker}: {describe_tasks(indices)}.\nIts Python stack:\n{stack}")
        process = self.workers[worker]
        state = _native.process_state(process.pid)
        lines = [message, f"Worker {worker} (pid {process.pid}): {describe_tasks(indices)}."]
        if state in ("T", "t"):
            lines.append(
                "It is stopped (SIGSTOP or a debugger); `kill -CONT` lets it go on. Its batch is waited for again by the next call."
            )
        else:
            dumped = _stack_of(process.pid)
            lines.append(
                f"Its Python stack:\n{dumped}" if dumped else "Its Python stack could not be had: it may still be starting."
            )
        raise RuntimeError("\n".join(lines))

    def _stalled(self, seconds: float) -> None:
        """Nothing has come for a while: says so if a worker is stopped, once for each."""
        for worker, process in enumerate(self.workers):
            pid = process.pid
            if pid not in self._warned_stopped and _native.process_state(pid) in ("T", "t"):
                self._warned_stopped.add(pid)
                warnings.warn(
                    f"DataLoader worker {worker} (pid {pid}) is stopped (SIGSTOP or a debugger), and nothing has arrived for "
                    f"{seconds:.0f} s. It is waited for; `kill -CONT {pid}` lets it go on, timeout= would end the wait",
                    RuntimeWarning,
                    stacklevel=2,
                )

    # -- the end

    @property
    def closed(self) -> bool:
        """Whether there is nothing (left) for :meth:`close` to do here."""
        return self._closed or self._owner != os.getpid()

    def close(self, ending: bool = False) -> None:
        """Ends the workers. Blocks for at most about three seconds; does nothing in a forked child or the second time.

        A thread that waits for a batch meanwhile gets a ``RuntimeError``, or, with ``ending``, waits for the end of the process.
        """
        if self.closed:
            return
        self._closed = True
        _open.discard(self)
        feed = getattr(self, "feed", None)
        if feed is not None:
            feed.close(ending)
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        if exiting() or self._settings.threads:
            return
        self._end_processes(GRACE)

    def _end_processes(self, grace: float) -> None:
        processes = [p for p in self.workers if p is not None]
        deadline = time.monotonic() + grace
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for step in ("terminate", "kill"):
            alive = [p for p in processes if p.is_alive()]
            if not alive:
                break
            for process in alive:
                with contextlib.suppress(OSError):
                    getattr(process, step)()
            deadline = time.monotonic() + 1.0
            for process in alive:
                process.join(max(0.0, deadline - time.monotonic()))
        if self._payload is not None:
            self._payload.close()
            self._payload = None


def _stack_of(pid: int) -> str | None:
    """The stacks of all threads of a worker, as its faulthandler writes them; ``None`` when it does not answer within a second."""
    folder = f"/proc/{pid}/fd"
    try:
        links = {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
        name = next(n for n, link in links.items() if _worker.STACK_FILE in link)
        with open(f"{folder}/{name}", "rb") as file:
            before = os.fstat(file.fileno()).st_size
            os.kill(pid, _worker.stack_signal())
            size, deadline = before, time.monotonic() + 1.0
            while time.monotonic() < deadline:
                time.sleep(0.02)
                now = os.fstat(file.fileno()).st_size
                if now > before and now == size:
                    break
                size = now
            return os.pread(file.fileno(), size - before, before).decode(errors="replace").strip() or None
    except (OSError, StopIteration):
        return None


@atexit.register
def _close_all() -> None:
    for engine in list(_open):
        engine.close(ending=True)


def _after_fork_in_child() -> None:
    _native.forget_inherited()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["END", "GRACE", "Engine", "Settings"]
