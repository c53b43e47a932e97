"""Closing an iterator, and ending a process, while a thread waits for a batch or works on one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import feedrate
import feedrate.torch

POOLS: list[dict[str, Any]] = [
    {"num_workers": 2, "workers": "thread"},
    {"num_workers": 2, "workers": "process"},
    {"num_workers": 0},
]
LOADERS = [feedrate.DataLoader, feedrate.torch.DataLoader]
#: Without workers, the drop-in's iterator is torch's own, which cannot be closed.
CASES = [(make, pool) for make in LOADERS for pool in POOLS if pool["num_workers"] or make is feedrate.DataLoader]


class Stuck:
    """Element 3 never comes, unless it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        if index == 3:
            self.go.wait()
        return index

    def __reduce__(self) -> Any:
        return Stuck, ()


def stuck(make: Any, pool: dict[str, Any]) -> tuple[Any, Stuck]:
    """An iterator whose next batch is the one that does not come."""
    data = Stuck()
    batches = iter(make(data, batch_size=1, **pool))
    for at in range(3):
        assert [int(x) for x in next(batches)] == [at]
    return batches, data


@pytest.mark.parametrize("make", LOADERS)
@pytest.mark.parametrize("pool", POOLS[:2], ids=str)
def test_who_waits_is_told_when_another_thread_closes(make: Any, pool: dict[str, Any]) -> None:
    batches, data = stuck(make, pool)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            next(batches)
        except RuntimeError as error:
            told.append(error)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    # It may not wait yet: closed is closed then, too.
    time.sleep(0.2)
    batches._shutdown_workers()
    waiter.join(60)
    data.go.set()
    assert not waiter.is_alive()
    assert "this iterator has been closed" in str(told[0])


def test_closing_does_not_wait_for_a_function_of_the_users() -> None:
    batches, data = stuck(feedrate.DataLoader, {"num_workers": 0})
    found: list[int] = []
    waiter = threading.Thread(target=lambda: found.extend(int(x) for x in next(batches)), daemon=True)
    waiter.start()
    time.sleep(0.2)
    batches._shutdown_workers()
    # What it works on is still its own.
    data.go.set()
    waiter.join(60)
    assert found == [3]


@pytest.mark.parametrize(("make", "pool"), CASES, ids=str)
def test_closing_from_a_handler_of_the_thread_that_waits(make: Any, pool: dict[str, Any]) -> None:
    batches, data = stuck(make, pool)

    def handler(*_: Any) -> None:
        batches._shutdown_workers()
        data.go.set()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        timer.start()
        if pool["num_workers"]:
            with pytest.raises(RuntimeError, match="this iterator has been closed"):
                next(batches)
        else:
            assert [int(x) for x in next(batches)] == [3]
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises((RuntimeError, StopIteration)):
        next(batches)


END = """
import sys, threading, time
import feedrate, feedrate.torch

class Stuck:
    def __len__(self):
        return 9
    def __getitem__(self, index):
        if index == 3:
            time.sleep(1e6)
        return index

make = feedrate.DataLoader if sys.argv[1] == "native" else feedrate.torch.DataLoader
pool = {"num_workers": 0} if sys.argv[2] == "inline" else {"num_workers": 2, "workers": sys.argv[2]}
batches = iter(make(Stuck(), batch_size=1, **pool))
for _ in range(3):
    next(batches)
threading.Thread(target=lambda: next(batches), daemon=True).start()
time.sleep(0.3)
"""


@pytest.mark.parametrize("make", ["native", "torch"])
@pytest.mark.parametrize("pool", ["thread", "process", "inline"])
def test_a_process_ends_though_a_daemon_thread_waits_for_a_batch(make: str, pool: str) -> None:
    ended = subprocess.run([sys.executable, "-c", END, make, pool], timeout=120, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


CLEARED = """
import atexit, sys, threading
import feedrate, feedrate.torch

make = feedrate.DataLoader if sys.argv[1] == "native" else feedrate.torch.DataLoader
pool = {"num_workers": 0} if sys.argv[2] == "inline" else {"num_workers": 2, "workers": sys.argv[2]}
kept = [iter(make(range(20), batch_size=2, **pool)), iter(make(feedrate.from_items(range(20)).batch(2), batch_size=None, **pool))]
for batches in kept:
    next(batches)
kept.append(feedrate.Queue(3))
del batches
# As the interpreter does at its end, with what is still held then.
atexit._run_exitfuncs()
# No other thread runs Python behind that; here they would, with names that are None, and say so.
for thread in threading.enumerate():
    if thread.name == "feedrate_worker":
        thread.join(60)
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] == "feedrate":
        for key in vars(module):
            if not key.startswith("__"):
                vars(module)[key] = None
while kept:
    kept.pop()
"""


@pytest.mark.parametrize("make", ["native", "torch"])
@pytest.mark.parametrize("pool", ["thread", "process", "inline"])
def test_what_outlives_its_module_ends_without_a_word(make: str, pool: str) -> None:
    ended = subprocess.run([sys.executable, "-c", CLEARED, make, pool], timeout=120, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("make", LOADERS)
@pytest.mark.parametrize("hands", [1, 2])
def test_closing_gives_up_what_threads_have_not_begun(make: Any, hands: int) -> None:
    begun, go_on = [], threading.Event()

    class Samples:
        def __len__(self) -> int:
            return 10_000

        def __getitem__(self, index: int) -> int:
            begun.append(index)
            if index > 2:
                go_on.wait(60)
            return index

    parallel = {"items_in_flight": hands} if hands > 1 else {}
    batches = iter(make(Samples(), batch_size=1, num_workers=2, workers="thread", prefetch_factor=50, **parallel))
    next(batches)
    mine = [t for t in threading.enumerate() if t.name.startswith("feedrate_")]
    del batches
    go_on.set()
    for thread in mine:
        thread.join(60)
        assert not thread.is_alive()
    # What each thread was at, and one that it began meanwhile.
    assert len(begun) < 20


IN_C = """
import sys, time
import torch, feedrate, feedrate.torch

held, seconds = sys.argv[1], float(sys.argv[2])


def sample(index):
    # Each of these gives the GIL up and asks for it again, inside of functions of C++.
    found, end = torch.ones(200), time.monotonic() + seconds * (index > 20)
    while True:
        found = found + 1
        if time.monotonic() >= end:
            return found


class Samples:
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return sample(index)


if held == "prefetch":
    streams = [feedrate.from_items(range(100_000)).map(sample).prefetch(100) for _ in range(4)]
    batches = iter(feedrate.mix(*streams, weights=[1.0] * 4))
else:
    batches = iter(feedrate.torch.DataLoader(Samples(), batch_size=4, num_workers=2, workers="thread", prefetch_factor=50))
for _ in range(4):
    next(batches)
if held == "dropped":
    del batches
else:
    sys.batches = batches
"""


@pytest.mark.parametrize("seconds", [0.0, 1.4])
@pytest.mark.parametrize("held", ["kept", "dropped", "prefetch"])
def test_a_process_ends_well_though_threads_are_in_functions_of_torch(held: str, seconds: float) -> None:
    def end() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", IN_C, held, str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    for process in [end() for _ in range(2)]:
        _, said = process.communicate(timeout=120)
        assert (process.returncode, said) == (0, "")
