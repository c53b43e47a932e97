"""What runs in a worker: the loop of a process and the loop of a thread."""

from __future__ import annotations

import faulthandler
import functools
import gc
import io
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction, resource_tracker
from typing import Any

from feedrate import _native
from feedrate._context import CurrentRng, Rng, WorkerInfo, set_rng, set_thread_info
from feedrate._errors import annotate, capture, short
from feedrate._fetch import END, Recipe, make_fetcher
from feedrate._framework import Framework
from feedrate._transport import Encoder

#: Name of the memory file into which a worker's stack is dumped on request; the parent finds it by this name in /proc.
STACK_FILE = "feedrate-stack"


def stack_signal() -> int:
    """The signal that asks a worker for its stack: a real-time one, which programs hardly use."""
    return signal.SIGRTMIN + 11


class Descriptor:
    """A file descriptor on its way into a child process. Inherited when forked, duplicated for the child when pickled."""

    def __init__(self, fd: int) -> None:
        self._fd: Any = fd

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self._fd),)

    def detach(self) -> int:
        """The descriptor, now the caller's."""
        fd: int = self._fd
        return fd


def _received(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


class HeldInterrupts:
    """From its making to :meth:`release`, in the parent and in the child, a Ctrl-C waits.

    For ``fork``: on its way Python runs the functions that libraries registered with ``os.register_at_fork``, and what a signal
    raises in one of those is printed and lost. For ``spawn``: a new interpreter that is still importing can only print a traceback
    of its imports, beside the one of the parent; so SIGINT is blocked, which it inherits and lifts itself. A fork server's children
    end without a word, so nothing is held for them.
    """

    def __init__(self, method: str) -> None:
        self._held = False
        self._former: Any = None
        self._blocked = False
        if method == "fork" and threading.current_thread() is threading.main_thread():
            # None: a handler that is not Python's, which raises nothing.
            former = signal.getsignal(signal.SIGINT)
            if former is not None:
                signal.signal(signal.SIGINT, self._hold)
                self._former = former
        elif method == "spawn":
            # Starting this one unblocks SIGINT, so it has to be there before.
            resource_tracker.ensure_running()
            self._blocked = signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def _hold(self, _number: int, _frame: Any) -> None:
        self._held = True

    def release(self) -> None:
        """Puts things back as they were and gives what came meanwhile its way. Does nothing the second time."""
        former, self._former = self._former, None
        blocked, self._blocked = self._blocked, False
        if former is not None:
            signal.signal(signal.SIGINT, former)
            if self._held:
                signal.raise_signal(signal.SIGINT)
        if blocked:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


class NeedsOwnPickle(Exception):
    """Something can only be pickled while the process that it goes to is being started."""


class _SharedPickler(reduction.ForkingPickler):
    """Pickles once for all workers, and refuses what is made for one receiver: everything that multiprocessing, or torch through
    it, has a reducer of its own for (connections, sockets, tensors and storages in shared memory)."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in reduction.ForkingPickler._extra_reducers and kind not in _HARMLESS:  # type: ignore[attr-defined]
            raise NeedsOwnPickle(kind.__qualname__)
        return NotImplemented


# Reducers for plain Python objects, which give the same for every receiver.
_HARMLESS = frozenset({type(_received), type(Descriptor(0).detach), type(list.append), type(int.__add__), functools.partial})


class _Tapped:
    """A file that calls ``tap`` once, when it has taken more than a mebibyte."""

    def __init__(self, file: Any, tap: Callable[[], None]) -> None:
        self._file = file
        self._tap: Callable[[], None] | None = tap
        self._left = 1 << 20

    def write(self, data: Any) -> int:
        self._left -= memoryview(data).nbytes
        if self._left < 0:
            self.now()
        written: int = self._file.write(data)
        return written

    def now(self) -> None:
        """Calls ``tap`` if that was not done."""
        tap, self._tap = self._tap, None
        if tap is not None:
            tap()


class _FromStart(io.RawIOBase):
    """Reads a file from its start with a position of its own: the descriptor's is shared with all who got a copy of it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = os.preadv(self._fd, [buffer], self._at)
        self._at += n
        return n


class SharedPayload:
    """An object that all workers unpickle from one memory file."""

    def __init__(self) -> None:
        self._fd = Descriptor(os.memfd_create("feedrate-payload", os.MFD_CLOEXEC))

    def fill(self, obj: Any, start: Callable[[], None]) -> None:
        """In the parent: pickles ``obj``, once, and calls ``start``. Most of what cannot be pickled shows in the first mebibyte,
        before ``start`` is called; the workers of a larger dataset import what they need while the rest is pickled."""
        with os.fdopen(os.dup(self._fd.detach()), "wb", buffering=1 << 20) as file:
            tapped = _Tapped(file, start)
            _SharedPickler(tapped, 5).dump(obj)
        tapped.now()

    def load(self, end: Any) -> Any:
        """In the worker: the object. Waits for the first order, which is sent behind :meth:`fill`."""
        end.wait()
        fd = self._fd.detach()
        # Millions of new objects are no reason to look for garbage.
        gc.disable()
        try:
            # Read, not mapped: a mapped file would count for the memory of each worker.
            return pickle.load(io.BufferedReader(_FromStart(fd), 1 << 18))
        finally:
            gc.enable()
            os.close(fd)

    def close(self) -> None:
        """In the parent: lets go of the file."""
        os.close(self._fd.detach())


class OwnPayload:
    """An object that goes to one worker with its start: inherited when forked, else pickled for this worker alone."""

    def __init__(self) -> None:
        self._obj: Any = None

    def fill(self, obj: Any, start: Callable[[], None]) -> None:
        """In the parent: takes ``obj`` and calls ``start``."""
        self._obj = obj
        start()

    def load(self, end: Any) -> Any:
        """In the worker: the object."""
        return self._obj

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass
class Boot:
    """What a worker process starts from."""

    worker: int
    workers: int
    base_seed: int
    parent: int
    channel: Descriptor
    payload: SharedPayload | OwnPayload
    #: Known before the payload, so that what it needs is imported meanwhile.
    framework: Framework
    #: Generator states of the worker that this one replaces, as of its last completion.
    resume: bytes | None
    #: Leave the generators' states with each completion.
    keep_states: bool
    shared_seed: int | None
    #: What the workers were told of the epoch under way, if it is none that they begin with.
    epoch: bytes | None
    #: Released by parent and child.
    held: HeldInterrupts


def process_main(boot: Boot) -> None:
    """The main function of a worker process."""
    where = f"in DataLoader worker process {boot.worker}"
    try:
        boot.held.release()
        end = _native.WorkerEnd(boot.channel.detach(), boot.parent)
        _serve(end, boot, where)
    except KeyboardInterrupt:
        # The parent has got it too and raises it where the user can see it.
        pass


def _serve(end: Any, boot: Boot, where: str) -> None:
    failed: dict[str, Any] | None = None
    fetcher: Any = None
    recipe: Recipe | None = None
    init_fn: Callable[[int], None] | None
    collate: Any = None
    try:
        framework = boot.framework
        recipe, init_fn = boot.payload.load(end)
        recipe.framework = framework
        # What is there at the start stays: collections need not look at it, nor write to pages that are shared with the parent.
        gc.freeze()
        _native.set_thread_name(framework.process_name)
        _dump_stack_on_request()
        recipe.dataset = framework.enter_worker(
            boot.worker, boot.workers, boot.base_seed, recipe.dataset, sample_keyed=recipe.keyed, shared_seed=boot.shared_seed
        )
        if boot.epoch is not None:
            _told(recipe, boot.epoch)
        framework.install_arena(end.reserve)
        collate = framework.arena_collate(recipe.collate_fn, end.reserve)
        recipe.own_globals = recipe.items_in_flight == 1
        if init_fn is not None:
            init_fn(boot.worker)
        # A state that was loaded is of the first epoch.
        resume = recipe.resume.get(boot.worker) if boot.epoch is None else None
        fetcher = make_fetcher(recipe, collate, resume, end.reserve)
        if boot.resume is not None:
            framework.restore_states(boot.resume)
    except Exception as error:
        failed = capture(error, where, f"feedrate: raised while worker {boot.worker} started")
    encoder = Encoder(end, recipe.framework.reducer() if recipe is not None else None)
    end.hello()
    turn = 0
    while (order := end.recv()) is not None:
        epoch, position, raw = order
        if position is None:
            failed, fetcher = _next_epoch(recipe, boot, raw, where, (collate, end.reserve), failed, fetcher)
            continue
        note = None
        try:
            if failed is not None:
                if not encoder.send(epoch, position, failed, error=True):
                    return
                continue
            index, unread = None, True
            try:
                index, unread = pickle.loads(raw), False
                batch = fetcher(index, epoch, position)
            except Exception as error:
                at = "its index" if unread else fetcher.where()
                note = f"feedrate: worker {boot.worker}, batch {position}, {at}"
                batch = capture(error, where, note)
                del error
            if boot.keep_states and recipe is not None:
                end.leave_state(turn, epoch, position, recipe.framework.changed_states())
                turn += 1
            if batch is END:
                alive = end.exhausted(epoch, position)
            elif note is not None:
                alive = encoder.send(epoch, position, batch, error=True)
            else:
                try:
                    alive = encoder.send(epoch, position, batch)
                except Exception as error:
                    note = (
                        f"feedrate: worker {boot.worker}, batch {position}: its batch (indices {short(index)}) could not be "
                        'pickled, so it cannot leave the worker process. Return picklable objects, or use workers="thread"'
                    )
                    alive = encoder.send(epoch, position, capture(error, where, note), error=True)
                    del error
            if not alive:
                return
        finally:
            batch = index = raw = order = None


def _told(recipe: Recipe, raw: bytes | None) -> None:
    """The dataset hears of a further epoch."""
    shared_seed, dataset_epoch = pickle.loads(raw) if raw else (None, None)
    recipe.dataset = recipe.framework.begin_epoch(recipe.dataset, shared_seed)
    if dataset_epoch is not None:
        recipe.dataset.set_epoch(dataset_epoch)


def _next_epoch(
    recipe: Recipe | None, boot: Boot, raw: Any, where: str, batches: tuple[Any, Any], failed: Any, fetcher: Any
) -> tuple[dict[str, Any] | None, Any]:
    """A further epoch in the same worker: a new fetcher, and for iterables a new stream."""
    if recipe is None or fetcher is None:
        # Its start had failed: that is said again for each task.
        return failed, fetcher
    try:
        _told(recipe, raw)
        collate, allocate = batches
        return None, make_fetcher(recipe, collate, None, allocate)
    except Exception as error:
        return capture(error, where, f"feedrate: raised while worker {boot.worker} began an epoch"), fetcher


def _dump_stack_on_request() -> None:
    """Lets the parent ask for this process's stacks, also when it is stuck in C code without the GIL."""
    fd = os.memfd_create(STACK_FILE, os.MFD_CLOEXEC)
    faulthandler.register(stack_signal(), file=fd, all_threads=True, chain=False)
    _keep.append(fd)


_keep: list[Any] = []


def assert_startable() -> None:
    """Refuses to start workers from a daemonic process, with the way out."""
    if multiprocessing.current_process()._config.get("daemon"):  # type: ignore[attr-defined]
        raise AssertionError(
            "daemonic processes are not allowed to have children: this loader runs in a daemonic process, so it cannot start worker "
            'processes. Use workers="thread" or num_workers=0, or start this process with daemon=False'
        )


def thread_main(
    end: Any, recipe: Recipe, worker: int, workers: int, base_seed: int, init_fn: Callable[[int], None] | None, allocate: Any
) -> None:
    """The main function of a worker thread. Process-wide state (generators, torch's worker info) is never touched."""
    where = f"in DataLoader worker thread {worker}"
    info = WorkerInfo(worker, workers, base_seed + worker, recipe.dataset, CurrentRng(), "thread")
    set_thread_info(info)
    seed = (base_seed + worker) & 0xFFFFFFFFFFFFFFFF
    if not recipe.keyed:
        set_rng(Rng((seed, seed, seed)))
    _native.set_thread_name("feedrate_worker")
    collate = recipe.framework.arena_collate(recipe.collate_fn, allocate)
    fetcher: Any = None
    overlap = recipe.executor is not None
    failed: BaseException | None = None
    try:
        if init_fn is not None:
            init_fn(worker)
    except BaseException as error:
        failed = error
    first = True
    ahead: Any = None

    def look_ahead() -> None:
        """The hands that have no sample of this batch left take those of the next one, whenever it comes."""
        nonlocal ahead
        if ahead is None and (later := end.peek()) is not None:
            ahead = later, None if later[1] is None else fetcher.start(later[2])

    while (order := end.recv() if ahead is None else ahead[0]) is not None:
        epoch, position, index = order
        started = None if ahead is None else ahead[1]
        ahead = None
        if position is None:
            if failed is None or fetcher is not None:
                failed = None
                try:
                    resume = recipe.resume.get(worker) if first else None
                    first = False
                    fetcher = make_fetcher(recipe, collate, resume, allocate)
                    if overlap and not recipe.iterable:
                        fetcher.meanwhile = look_ahead
                except BaseException as error:
                    failed = error
            continue
        if failed is not None:
            end.raised(epoch, position, failed)
            continue
        try:
            if overlap:
                started = started or fetcher.start(index)
                look_ahead()
            batch = fetcher(index, epoch, position, started) if overlap else fetcher(index, epoch, position)
        except BaseException as error:
            annotate(error, f"feedrate: {where.removeprefix('in DataLoader ')}, batch {position}, {fetcher.where()}")
            end.raised(epoch, position, error)
            del error
        else:
            if batch is END:
                end.exhausted(epoch, position)
            else:
                end.done(epoch, position, batch)
        batch = index = order = started = None
