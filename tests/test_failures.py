"""Dead, stuck and stopped workers: redo, its limits, and what the errors say."""

from __future__ import annotations

import errno
import functools
import operator
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from helpers import START_METHODS, procs
from helpers import datasets as d
from helpers.canon import canon

pytestmark = pytest.mark.ours
METHODS = pytest.mark.parametrize("method", START_METHODS)


def full_text(e: BaseException) -> str:
    """An exception's text with its notes and its cause."""
    parts = [str(e), *getattr(e, "__notes__", [])]
    return "\n".join(parts + ([full_text(e.__cause__)] if e.__cause__ else []))


@METHODS
@pytest.mark.parametrize("persistent", [True, False])
def test_a_worker_killed_from_outside_is_replaced(method: str, persistent: bool, Loader: Any) -> None:
    loader = Loader(
        d.Image(120, sleep=0.001),
        batch_size=4,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=persistent,
    )
    for victim in (0, 1):
        seen = []
        it = iter(loader)
        for k, (x, i) in enumerate(it):
            assert bool((x[:, 0, 0, 0] == i).all())
            seen += i.tolist()
            if k == 5:
                os.kill(it._workers[victim].pid, signal.SIGKILL)
        assert seen == list(range(120))


def test_all_workers_killed_at_once(Loader: Any) -> None:
    it = iter(Loader(d.Image(200), batch_size=4, num_workers=3))
    seen = []
    for k, (_, i) in enumerate(it):
        seen += i.tolist()
        if k in (3, 20):
            for w in it._workers:
                os.kill(w.pid, signal.SIGKILL)
    assert seen == list(range(200))


def test_a_worker_killed_while_idle_between_epochs(Loader: Any) -> None:
    loader = Loader(d.Image(40), batch_size=4, num_workers=2, persistent_workers=True)
    for _ in range(4):
        it = iter(loader)
        assert [v for _, i in it for v in i.tolist()] == list(range(40))
        os.kill(it._workers[0].pid, signal.SIGKILL)
        time.sleep(0.05)


def test_the_workers_list_shows_the_replacement(Loader: Any) -> None:
    it = iter(Loader(d.Slow(100, 0.002), batch_size=2, num_workers=2))
    next(it)
    old = [w.pid for w in it._workers]
    os.kill(old[0], signal.SIGKILL)
    list_of_rest = [b.tolist() for b in it]
    assert list_of_rest == [[k, k + 1] for k in range(2, 100, 2)]
    assert not procs.alive(old[0])


@pytest.mark.parametrize(("how", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV"), (-7, "7")])
def test_a_task_that_kills_twice_is_named(how: int, name: str, Loader: Any) -> None:
    import feedrate

    it = iter(Loader(d.KillAlways(40, (22,), how), batch_size=4, num_workers=2))
    seen = []
    with pytest.raises(feedrate.WorkerDied) as e:
        for b in it:
            seen += b.tolist()
    assert seen == list(range(20))
    assert isinstance(e.value, feedrate.Error)
    assert isinstance(e.value, RuntimeError)
    text = full_text(e.value)
    assert "[20, 21, 22, 23]" in text, text
    assert name in text, text
    assert re.search(r"pid[^0-9]{0,4}\d+", text), text
    assert re.search(r"worker (process )?1\b", text), text


def test_a_named_task_shows_its_indices_and_not_its_keys(Loader: Any) -> None:
    """With seeding="sample" the first position of a task travels with its indices; it is no business of the user."""
    import feedrate

    with pytest.raises(feedrate.WorkerDied) as e:
        list(Loader(d.KillAlways(12, (5,)), batch_size=4, num_workers=1, seeding="sample", seed=1))
    assert e.value.indices == [[4, 5, 6, 7]]
    assert "indices [4, 5, 6, 7]" in str(e.value)


def test_after_a_named_task_the_iterator_goes_on(Loader: Any) -> None:
    """The task is consumed like any failed batch; the others are delivered, once, in order."""
    import feedrate

    it = iter(Loader(d.KillAlways(24, (9,)), batch_size=2, num_workers=2))
    seen, died = [], 0
    while True:
        try:
            seen += next(it).tolist()
        except feedrate.WorkerDied:
            died += 1
        except StopIteration:
            break
    assert died == 1
    assert seen == [i for i in range(24) if i not in (8, 9)]


def test_redo_with_random_draws_takes_up_the_streams(Loader: Any, tmp_path: Any) -> None:
    """Under seeding="worker" a replacement goes on from the states after the last completion: same values as unbroken."""
    torch.manual_seed(11)
    expected = [canon(b) for b in Loader(DrawThenDie(40, None, ""), batch_size=4, num_workers=2)]
    torch.manual_seed(11)
    flag = str(tmp_path / "flag")
    got = [canon(b) for b in Loader(DrawThenDie(40, 18, flag), batch_size=4, num_workers=2)]
    assert os.path.exists(flag)
    assert got == expected


class DrawThenDie(d.RandomDS):
    """Random samples; the process is killed once, in the middle of a batch, after some draws of it."""

    def __init__(self, n: int, at: int | None, flag: str) -> None:
        super().__init__(n)
        self.at, self.flag = at, flag

    def __getitem__(self, i: int) -> Any:
        if i == self.at and not os.path.exists(self.flag):
            open(self.flag, "w").close()
            d.die(signal.SIGKILL)
        return super().__getitem__(i)


@pytest.mark.parametrize("how", [signal.SIGKILL, -3, 0])
def test_redo_off_gives_stocks_error_and_ends(how: int, Loader: Any) -> None:
    it = iter(Loader(d.KillAlways(40, (10,), how), batch_size=2, num_workers=2, redo=False))
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid") as e:
        list(it)
    text = full_text(e.value)
    if how > 0:
        assert "is killed by signal: Killed" in text, text
    assert "exited unexpectedly" in text, text
    for _ in range(3):  # never a quiet end after lost data
        try:
            next(it)
        except StopIteration:
            pytest.fail("a dead worker was followed by a quiet end of the epoch")
        except RuntimeError:
            pass


def test_redo_off_never_delivers_out_of_order(Loader: Any) -> None:
    it = iter(Loader(d.KillAlways(40, (10,)), batch_size=2, num_workers=2, redo=False))
    seen = []
    with pytest.raises(RuntimeError):
        for b in it:
            seen += b.tolist()
    assert seen == list(range(len(seen)))
    assert len(seen) <= 10


class Stream(IterableDataset[int]):
    """Numbers of this worker's share; kills itself once at a position."""

    def __init__(self, n: int, at: int = -1) -> None:
        self.n, self.at = n, at

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, self.n, step):
            if i == self.at:
                d.die(signal.SIGKILL)
            yield i


@pytest.mark.parametrize("redo", [True, False])
def test_a_dead_worker_of_an_opaque_iterable_is_an_error_with_the_count(redo: bool, Loader: Any) -> None:
    import feedrate

    it = iter(Loader(Stream(40, 12), batch_size=2, num_workers=2, redo=redo))
    seen = []
    with pytest.raises(feedrate.WorkerDied if redo else RuntimeError) as e:
        for b in it:
            seen.append(b.tolist())
    assert sorted(functools.reduce(operator.iadd, seen, [])) == sorted(set(functools.reduce(operator.iadd, seen, [])))
    if redo:
        assert str(len(seen)) in re.findall(r"\d+", full_text(e.value)), (len(seen), full_text(e.value))
    with pytest.raises((RuntimeError, feedrate.WorkerDied)):
        next(it)


@METHODS
def test_timeout_carries_the_stack_of_the_stuck_worker(method: str, Loader: Any) -> None:
    it = iter(Loader(Sleeper(6), batch_size=1, num_workers=1, timeout=3, multiprocessing_context=method))
    assert int(patient(it)) == 0
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="DataLoader timed out after 3 seconds") as e:
        next(it)
    assert time.monotonic() - start >= 2.5
    text = full_text(e.value)
    assert "marker_function_that_sleeps" in text, text
    assert "test_failures.py" in text, text


def patient(it: Any) -> Any:
    """The next batch, however often the timeout passes: a spawned worker may take its time to import torch."""
    while True:
        try:
            return next(it)
        except RuntimeError as e:
            assert "timed out" in str(e)


class Sleeper(d.Slow):
    def __getitem__(self, i: int) -> int:
        if i == 1:
            marker_function_that_sleeps()
        return i


def marker_function_that_sleeps() -> None:
    time.sleep(30)


def test_timeout_with_native_code_that_holds_on(Loader: Any) -> None:
    """A stack is there even when the worker is inside a call that never looks at signals handlers."""
    it = iter(Loader(Blocked(4), batch_size=1, num_workers=1, timeout=1))
    next(it)
    with pytest.raises(RuntimeError, match="timed out after 1 seconds") as e:
        next(it)
    assert "acquire_for_ever" in full_text(e.value), full_text(e.value)


class Blocked(d.Slow):
    def __getitem__(self, i: int) -> int:
        if i == 1:
            acquire_for_ever()
        return i


def acquire_for_ever() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def test_the_iterator_is_usable_after_a_timeout(Loader: Any) -> None:
    it = iter(Loader(d.Slow(6, 1.5, every=100), batch_size=1, num_workers=2, timeout=0.5))
    timeouts, seen = 0, []
    while True:
        try:
            seen.append(int(next(it)))
        except StopIteration:
            break
        except RuntimeError as e:
            assert "DataLoader timed out after 0.5 seconds" in str(e)
            timeouts += 1
            assert timeouts < 20
    assert timeouts >= 1
    assert seen == list(range(6))


def test_timeout_says_that_a_worker_is_stopped(Loader: Any) -> None:
    it = iter(Loader(d.Slow(40), batch_size=1, num_workers=1, timeout=1, prefetch_factor=1))
    next(it)
    pid = it._workers[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        seen = [1]
        with pytest.raises(RuntimeError, match="timed out after 1 seconds") as e:
            while True:
                seen.append(int(next(it)))
        assert "stop" in full_text(e.value).lower(), full_text(e.value)
        assert procs.state(pid) in ("T", "t")  # reported, not killed
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [int(b) for b in it][-1] == 39


def test_without_timeout_a_stopped_worker_is_waited_for(Loader: Any) -> None:
    it = iter(Loader(d.Slow(40), batch_size=1, num_workers=1, prefetch_factor=1))
    seen = [int(next(it))]
    pid = it._workers[0].pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(2.0, os.kill, (pid, signal.SIGCONT)).start()
    seen += [int(b) for b in it]
    assert seen == list(range(40))


def test_error_while_starting_gives_the_workers_own_traceback(Loader: Any) -> None:
    for method in START_METHODS:
        it = iter(Loader(d.MapDS(("int",), 8), num_workers=2, worker_init_fn=d.init_raise, multiprocessing_context=method))
        with pytest.raises(ValueError, match="init of 0") as e:
            next(it)
        assert "init_raise" in full_text(e.value)


class RefusesToUnpickle(d.Slow):
    def __reduce__(self) -> Any:
        return (refuse, (self.n,))


def refuse(n: int) -> Any:
    raise OSError("cannot open the archive in this process")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_dataset_that_cannot_be_unpickled_in_the_worker(method: str, Loader: Any) -> None:
    with pytest.raises(Exception, match="cannot open the archive in this process") as e:
        next(iter(Loader(RefusesToUnpickle(4), num_workers=2, multiprocessing_context=method)))
    assert "refuse" in full_text(e.value)


def test_system_exit_in_a_worker(Loader: Any) -> None:
    """Not an Exception: the worker ends with that code; a task that does it again is named."""
    import feedrate

    with pytest.raises(feedrate.WorkerDied) as e:
        list(Loader(Exits(6), num_workers=1))
    assert "5" in full_text(e.value)


class Exits(d.Slow):
    def __getitem__(self, i: int) -> int:
        if i == 3:
            raise SystemExit(5)
        return i


def test_kill_at_random_moments_with_streams_compared(Loader: Any) -> None:
    """Draws from all generators, random kills: equal to the run without kills, value by value."""
    rng = random.Random(99)
    torch.manual_seed(21)
    expected = [canon(b) for b in Loader(d.RandomDS(120), batch_size=4, num_workers=2)]
    for _ in range(3):
        torch.manual_seed(21)
        it = iter(Loader(d.RandomDS(120), batch_size=4, num_workers=2))
        got = []
        for b in it:
            got.append(canon(b))
            if rng.random() < 0.15:
                os.kill(rng.choice(it._workers).pid, signal.SIGKILL)
        assert got == expected


def test_user_numpy_errors_keep_their_type(Loader: Any) -> None:
    it = iter(Loader(Linalg(3), num_workers=1))
    next(it)
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        next(it)


class Linalg(d.Slow):
    def __getitem__(self, i: int) -> Any:
        return np.linalg.inv(np.zeros((2, 2))) if i == 1 else i


class Odd:
    """Index 9 of ten cannot be pickled."""

    def __iter__(self) -> Any:
        return iter([*range(9), threading.Lock(), *range(10, 16)])

    def __len__(self) -> int:
        return 16


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_index_that_cannot_be_pickled_is_an_error_of_its_batch(method: str, Loader: Any) -> None:
    loader = Loader(d.Image(16), batch_size=2, sampler=Odd(), num_workers=2, multiprocessing_context=method)
    batches, found = iter(loader), []
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            break
        except TypeError as error:
            assert "cannot pickle '_thread.lock' object: the index [8, <unlocked _thread.lock" in str(error)
            assert 'use workers="thread"' in str(error)
            assert "batch 4, its index" in "".join(error.__notes__)
            found.append(None)
    assert [at for at, batch in enumerate(found) if batch is None] == [4]
    assert len(found) == 8


@pytest.mark.parametrize("stream", [True, False])
def test_persistent_workers_have_another_epoch_behind_a_loss(stream: bool, Loader: Any) -> None:
    """The worker is replaced when the next epoch begins (torch: `exited unexpectedly` in each of them)."""
    loader = Loader(Stream(20) if stream else range(20), num_workers=2, persistent_workers=True, redo=stream)
    whole = [int(batch) for batch in loader]
    it = iter(loader)
    next(it)
    loader._iterator._workers[0].kill()
    loader._iterator._workers[0].join()
    with pytest.raises(RuntimeError):
        for _ in it:
            pass
    assert [int(batch) for batch in loader] == whole
    assert [int(batch) for batch in loader] == whole


SHORT_OF_FILES = """
import resource, threading
from feedrate.torch import DataLoader
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    list(DataLoader(range(400), num_workers=40))
except OSError as error:
    print(error.errno, *error.__notes__)
print(threading.active_count())
print(sum(len(batch) for batch in DataLoader(range(40), num_workers=2, batch_size=4)))
"""


def test_workers_beyond_the_limit_of_files() -> None:
    """An error with the limit and what to do; nothing of the attempt is left, so that fewer workers can be had at once."""
    found = subprocess.run([sys.executable, "-c", SHORT_OF_FILES], capture_output=True, text=True, timeout=120, check=True)
    error, threads, samples = found.stdout.splitlines()
    assert error.startswith(
        f"{errno.EMFILE} feedrate: this process may have 64 files open, which is not enough for 40 workers"
    ), found
    assert (threads, samples) == ("1", "40")


SHORT_BETWEEN = """
import multiprocessing, os, resource, sys
import numpy, feedrate, feedrate.torch
go_on = multiprocessing.Event()
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


class Large:
    def __len__(self):
        return 12

    def __getitem__(self, index):
        go_on.wait()
        # Each needs more memory than the ones before: a descriptor of its own.
        return numpy.full(20_000 << index, index, dtype=numpy.int8)


def fill():
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return taken


make = feedrate.DataLoader if sys.argv[1] == "native" else feedrate.torch.DataLoader
batches = iter(make(Large(), num_workers=2, batch_size=None))
taken = fill()
go_on.set()
found, said = [], set()
while len(found) < 12:
    try:
        found.append(int(next(batches)[-1]))
    except RuntimeError as error:
        said.add(str(error)[:19])
        for fd in taken:
            os.close(fd)
        taken = []
    else:
        taken += fill()
print(found, said)
"""


@pytest.mark.parametrize("make", ["native", "torch"])
def test_batches_come_once_there_are_files_again(make: str) -> None:
    """Memory whose descriptor could not be taken is taken later: no batch is lost with it."""
    found = subprocess.run([sys.executable, "-c", SHORT_BETWEEN, make], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout == f"{list(range(12))} {{'Too many open files'}}\n", found
