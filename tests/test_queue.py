"""The public queue: bounded, in order, each item once, whoever dies."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import queue
import signal
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

import feedrate
from feedrate import Queue, QueueClosed


def produce(q: Queue, who: int, count: int) -> None:
    for number in range(count):
        q.put((who, number, np.full(20_000 if number % 10 == 0 else 3, number)))


def consume(q: Queue, out: Any) -> None:
    for who, number, array in q:
        assert (array == number).all()
        out.put((os.getpid(), who, number))


def hold(q: Queue, ready: Any) -> None:
    ready.set()
    for _ in q:
        pass


def test_in_order_bounded_and_closed() -> None:
    q = Queue(3)
    for number in range(3):
        q.put(number)
    with pytest.raises(queue.Full):
        q.put(3, timeout=0)
    with pytest.raises(queue.Full):
        q.put(3, timeout=0.01)
    assert [q.get(), q.get()] == [0, 1]
    q.put("last")
    q.close()
    assert q.closed
    with pytest.raises(QueueClosed, match="nothing can be put"):
        q.put(1)
    assert list(q) == [2, "last"]
    with pytest.raises(QueueClosed, match="has been taken"):
        q.get()
    fresh = Queue(1)
    with pytest.raises(queue.Empty):
        fresh.get(timeout=0)
    for wrong in (0, 1025):
        with pytest.raises(ValueError, match="should be 1 to 1024"):
            Queue(wrong)


def small_buffer(end: Any, room: int, least: int) -> int:
    """As by the kernel's default of net.core.wmem_max, for who may not insist."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, min(room // 2, 212_992))
    return int(end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))


@pytest.mark.parametrize("maxsize", [1, 7, 100, 500, 1024])
@pytest.mark.parametrize("small", [False, True])
def test_it_holds_maxsize_items_of_any_size(small: bool, maxsize: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        monkeypatch.setattr("feedrate._queue._enlarge", small_buffer)
        if maxsize > 554:
            with pytest.raises(ValueError, match=r"maxsize=1024 .* room for 554 items.*wmem_max=393216"):
                Queue(maxsize)
            return
    for length in (0, 90, 180, 450, 900, 2000, 4000, 7900, 16_000, 24_000, 31_000, 40_000):
        q = Queue(maxsize)
        for number in range(maxsize):
            q.put((number, b"x" * length), timeout=0)
        with pytest.raises(queue.Full):
            q.put(0, timeout=0)
        assert [q.get(timeout=0)[0] for _ in range(maxsize)] == list(range(maxsize))


@pytest.mark.parametrize("size", [1, 1000, 40_000, 3_000_000])
def test_arrays_arrive_whole_and_writable(size: int) -> None:
    q = Queue(2)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(40):
        q.put({"a": np.arange(size), "b": b"x" * size, "c": "text"})
        found = q.get()
        found["a"] += 1
        assert found["a"][-1] == size and len(found["b"]) == size and found["c"] == "text"
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        q.put(lambda: 0)
    q.put(1)
    q.put(2)
    assert (q.get(), q.get()) == (1, 2)


def test_whoever_waits_for_a_place_hears_that_it_is_closed() -> None:
    q = Queue(1)
    q.put(0)
    heard: list[Any] = []

    def wait() -> None:
        try:
            q.put(1)
        except QueueClosed as error:
            heard.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    q.close()
    thread.join(60)
    assert len(heard) == 1
    assert list(q) == [0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_item_once_between_processes(method: str) -> None:
    context = mp.get_context(method)
    q, out = Queue(4), Queue(64)
    makers = [context.Process(target=produce, args=(q, who, 60)) for who in range(2)]
    takers = [context.Process(target=consume, args=(q, out)) for _ in range(2)]
    for process in makers + takers:
        process.start()
    found = [out.get(timeout=120) for _ in range(120)]
    for process in makers:
        process.join()
    q.close()
    for process in takers:
        process.join()
    assert all(process.exitcode == 0 for process in makers + takers)
    assert sorted((who, number) for _, who, number in found) == [(who, n) for who in range(2) for n in range(60)]
    # What one consumer took of one producer, it took in order.
    for taker in {pid for pid, _, _ in found}:
        for who in range(2):
            mine = [number for pid, w, number in found if (pid, w) == (taker, who)]
            assert sorted(mine) == mine
    with pytest.raises(queue.Empty):
        out.get(timeout=0)


def test_the_killed_leave_nothing_locked() -> None:
    context = mp.get_context("fork")
    q = Queue(8)
    for round_ in range(6):
        ready = context.Event()
        victim = context.Process(target=hold if round_ % 2 else produce_for_ever, args=(q, ready))
        victim.start()
        assert ready.wait(60)
        if round_ % 2:
            for number in range(5):
                q.put(number, timeout=60)
        time.sleep(0.01 * round_)
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        while True:
            try:
                q.get(timeout=0)
            except queue.Empty:
                break
    # At most one place a kill is gone.
    kept = 0
    while True:
        try:
            q.put(kept, timeout=0)
        except queue.Full:
            break
        kept += 1
    assert 2 <= kept <= 8
    assert [q.get() for _ in range(kept)] == list(range(kept))


def produce_for_ever(q: Queue, ready: Any) -> None:
    ready.set()
    while True:
        q.put(np.zeros(10_000))


def test_it_is_public() -> None:
    assert "Queue" in feedrate.__all__ and repr(Queue(2)) == "<feedrate.Queue maxsize=2>"
