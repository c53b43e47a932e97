"""Children of ``os.fork()`` while threads of a loader or a pipeline work: an answer, never a wait for what is in another process."""

from __future__ import annotations

import errno
import hashlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
import feedrate.torch
from feedrate import DataLoader, from_items
from feedrate._hashing import mix

pytestmark = [pytest.mark.ours, pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")]


def in_child(run: Callable[[], Any], seconds: float = 20.0) -> int:
    """The exit code of a child that runs this: 0 where it returns, 7 where it is refused; the test fails where it hangs."""
    with warnings.catch_warnings():
        # Of Python 3.12 on: this process has threads, which is the point.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 9
        try:
            run()
            code = 0
        except (RuntimeError, feedrate.PipelineError):
            code = 7
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the child hangs")


@pytest.mark.parametrize("make", [DataLoader, feedrate.torch.DataLoader])
@pytest.mark.parametrize("persistent", [False, True])
def test_iterators_over_threads_are_refused_in_a_child(make: Any, persistent: bool) -> None:
    loader = make(np.arange(64), batch_size=4, num_workers=2, workers="thread", persistent_workers=persistent)
    batches = iter(loader)
    first = next(batches)
    assert in_child(lambda: next(batches)) == 7
    # Here it goes on, and a new loader works there.
    assert [x for batch in (first, *batches) for x in batch.tolist()] == list(range(64))
    assert in_child(lambda: list(make(np.arange(8), batch_size=4, num_workers=2, workers="thread"))) == 0


def test_items_in_flight_go_on_in_a_child() -> None:
    batches = iter(DataLoader(np.arange(64), batch_size=4, items_in_flight=2))
    next(batches)

    def rest() -> None:
        if [x for batch in batches for x in batch.tolist()] != list(range(4, 64)):
            os._exit(3)

    assert in_child(rest) == 0


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_cache_in_a_child_while_a_thread_fills_it(tmp_path: Path, place: str) -> None:
    arrays = from_items(range(400)).map(lambda i: np.full(20_000, i))
    pipeline = arrays.cache(tmp_path if place == "disk" else None, limit=1 << 28)
    ended = threading.Event()

    def fill() -> None:
        while not ended.is_set():
            for _ in pipeline:
                if ended.is_set():
                    return

    thread = threading.Thread(target=fill)
    thread.start()

    def read() -> None:
        if [x[0] for x, _ in zip(pipeline, range(5), strict=False)] != list(range(5)):
            os._exit(3)

    try:
        assert [in_child(read) for _ in range(25)] == [0] * 25
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("step", ["prefetch", "join"])
def test_what_runs_ahead_ends_and_is_refused_in_a_child(tmp_path: Path, step: str) -> None:
    """Native elements: a thread that comes for the GIL may hold a lock of CPython 3.11's own."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' * 5000)
    rows = feedrate.open(str(tmp_path / "a.jsonl")).repeat(1000)
    pipeline = rows.prefetch(100_000) if step == "prefetch" else rows.join(rows, ahead=100_000)
    for _ in range(15):
        elements: Any = iter(pipeline)
        next(elements)
        time.sleep(0.003)

        def drop() -> None:
            nonlocal elements
            elements = None

        assert in_child(drop) == 0
        assert in_child(lambda: next(elements)) == 7  # noqa: B023 (it runs at once)
        assert in_child(lambda: feedrate._native.stop_ahead()) == 0


def test_threads_that_run_ahead_keep_what_is_theirs() -> None:
    """Each call of a function was in a new state of the interpreter: connections and files of a thread were opened for each element."""
    local, made = threading.local(), []

    def work(x: int) -> int:
        if not hasattr(local, "made"):
            local.made = True
            made.append(threading.get_ident())
        return x

    assert list(from_items(range(100)).map(work).prefetch(8)) == list(range(100))
    assert len(made) == 1


def test_children_of_a_process_whose_pipeline_runs_ahead() -> None:
    """CPython 3.11's own lock was held in one child of some fifty: a training loop with prefetch, and workers for validation."""
    training = iter(from_items(range(10**7)).map(lambda i: {"x": i, "y": [i]}).prefetch(64))
    for _ in range(100):
        next(training)
        assert in_child(lambda: None) == 0


def test_a_replacement_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    flag = tmp_path / "died"

    class Dies:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            if index == 7 and not flag.exists():
                flag.touch()
                os._exit(3)
            return index

    context: Any = multiprocessing.get_context("fork")
    starts = itertools.count(1)

    class Process(context.Process):  # type: ignore[misc]
        def start(self) -> None:
            if next(starts) in (3, 4):
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            super().start()

    class Context(type(context)):  # type: ignore[misc]
        pass

    Context.Process = Process  # type: ignore[attr-defined]
    loader = DataLoader(
        Dies(), batch_size=2, num_workers=2, workers="process", multiprocessing_context=Context(), redo=True, timeout=20
    )
    batches = iter(loader)
    found: list[int] = []
    refused = 0
    while True:
        try:
            found += next(batches).tolist()
        except StopIteration:
            break
        except BlockingIOError:
            refused += 1
    assert refused == 2
    assert found == list(range(40))


class Hit(Exception):
    pass


class Slow:
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        time.sleep(0.01)
        return index


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_exceptions_of_signal_handlers_lose_no_batch(workers: Any) -> None:
    waiting = False

    def hit(*_: Any) -> None:
        if waiting:
            raise Hit

    # With threads the batch was lost and waited for.
    batches = iter(DataLoader(Slow(), batch_size=1, num_workers=2, workers=workers, prefetch_factor=2, timeout=20))
    found: list[int] = []
    hits = 0
    before = signal.signal(signal.SIGALRM, hit)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.013)
    try:
        while True:
            try:
                waiting = True
                batch = next(batches)
                waiting = False
                found.append(int(batch[0]))
            except Hit:
                hits += 1
            except StopIteration:
                break
    finally:
        waiting = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits > 5
    assert found == sorted(found)
    # A signal may come between the loader and the line above: not while a batch is waited for, where nearly all of the time passes.
    assert len(found) >= 58, (hits, found)


@pytest.mark.parametrize("make", [DataLoader, feedrate.torch.DataLoader])
def test_exceptions_of_signal_handlers_are_not_the_index_s(make: Any) -> None:
    """One that came while an index was pickled was taken for its own: the batch was given up as one that cannot be pickled."""

    def hit(*_: Any) -> None:
        raise Hit

    before = signal.signal(signal.SIGUSR1, hit)
    try:
        batches = iter(make(Same(), sampler=Signals(), batch_size=None, num_workers=2, prefetch_factor=2))
        found: list[int] = []
        hits = 0
        while True:
            try:
                found.append(next(batches))
            except Hit:
                hits += 1
            except StopIteration:
                break
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == list(range(12))
    assert hits == 3


def test_exceptions_of_signal_handlers_are_not_in_a_state() -> None:
    """One that came while an order was hashed gave the state of another order, which is refused later."""

    def hash_of(items: Any) -> bytes:
        digest = hashlib.blake2b()
        mix(digest, items)
        return digest.digest()

    assert hash_of([[1, 2], [Once(raises=True), 3]]) == hash_of([[1, 2], [Once(raises=False), 3]])
    assert hash_of([[1, 2], [Once(raises=True), 3]]) != hash_of([[1, 2], [object(), 3]])


class Once:
    def __init__(self, *, raises: bool) -> None:
        self.raises = raises

    def __repr__(self) -> str:
        if self.raises:
            self.raises = False
            raise Hit
        return "Once()"


class Signals:
    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[Any]:
        return map(Signalled, range(12))


class Signalled:
    """An index; a signal comes while every third one is pickled for the first time."""

    def __init__(self, x: int) -> None:
        self.x = x
        self.pickled = x < 4

    def __repr__(self) -> str:
        return f"Signalled({self.x})"

    def __reduce__(self) -> Any:
        first, self.pickled = not self.pickled, True
        if first and self.x % 3 == 2:
            signal.raise_signal(signal.SIGUSR1)
        return Signalled, (self.x,)


class Same:
    def __getitem__(self, index: Signalled) -> int:
        return index.x


def test_a_repeated_view_travels_as_what_it_repeats() -> None:
    """It was made whole in the worker: 1.6 TB here."""
    torch = pytest.importorskip("torch")
    loader = feedrate.torch.DataLoader(range(4), batch_size=2, num_workers=1, collate_fn=Repeats())
    shapes = [(tuple(batch.shape), batch.stride()[0], batch[7, :3].tolist()) for batch in loader]
    assert shapes == [((10**8, 4000), 0, [0.0, 1.0, 2.0])] * 2
    assert torch.equal(next(iter(loader))[0], torch.arange(4000.0))


class Repeats:
    def __call__(self, _: Any) -> Any:
        import torch

        column = torch.zeros(4000, 1000)
        column[:, 0] = torch.arange(4000.0)
        return column[:, 0].unsqueeze(0).expand(10**8, 4000)


@pytest.mark.parametrize("make", [DataLoader, feedrate.torch.DataLoader])
def test_a_window_of_any_size_takes_no_memory_of_its_own(make: Any) -> None:
    loader = make(np.arange(40), batch_size=4, num_workers=1, prefetch_factor=2**36)
    assert [x for batch in loader for x in batch.tolist()] == list(range(40))
