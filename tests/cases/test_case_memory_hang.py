"""Acceptance cases MEM-01 to MEM-03 and HANG-01 to HANG-08, as far as the drop-in is concerned."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from helpers import START_METHODS, loader_import, procs

MIB = 1 << 20


class ObjectMeta(Dataset[int]):
    """A big list of Python objects, the pattern that un-shares pages by reference counts."""

    def __init__(self, n: int) -> None:
        self.meta = [{"path": f"img/{i:08d}.jpg", "label": i % 10} for i in range(n)]

    def __len__(self) -> int:
        return len(self.meta)

    def __getitem__(self, i: int) -> int:
        return int(self.meta[i]["label"])


class PackedMeta(Dataset[int]):
    """The documented way out: the same facts in two flat arrays."""

    def __init__(self, n: int) -> None:
        self.label = (np.arange(n) % 10).astype(np.int64)
        self.path = np.array([f"img/{i:08d}.jpg" for i in range(n)], dtype="S16")

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, i: int) -> int:
        assert self.path[i]
        return int(self.label[i])


@pytest.mark.watchdog(120)
def test_mem_01_object_metadata_is_right_and_packed_metadata_stays_shared(Loader: Any) -> None:
    n = 200_000
    growth = {}
    for kind in (ObjectMeta, PackedMeta):
        total = 0
        first = last = 0
        it = iter(Loader(kind(n), batch_size=256, shuffle=True, num_workers=2))
        for k, b in enumerate(it):
            total += int(b.sum())
            if k == 20:
                first = procs.tree_pss()
            if k % 200 == 0:
                last = procs.tree_pss()
        assert total == n // 10 * 45
        growth[kind.__name__] = (last - first) / first
        del it
    assert growth["PackedMeta"] < 0.10, growth


class Blocks(Dataset[Any]):
    def __init__(self, n: int, shape: tuple[int, ...]) -> None:
        self.n, self.shape = n, shape

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        return np.full(self.shape, i, dtype="float32")


@pytest.mark.watchdog(180)
def test_mem_02_persistent_workers_do_not_grow_at_a_later_epoch(Loader: Any) -> None:
    loader = Loader(Blocks(1024, (64, 64, 3)), batch_size=128, num_workers=2, persistent_workers=True)
    batch = 128 * 64 * 64 * 3 * 4
    totals = []
    for _ in range(8):
        for b in loader:
            del b
        totals.append(procs.tree_pss())
    reference = max(totals[1:3])
    assert max(totals[3:]) <= reference + batch + 4 * MIB, [t // MIB for t in totals]


@pytest.mark.watchdog(120)
def test_mem_03_in_flight_batches_are_bounded(Loader: Any) -> None:
    shape = (6, 500, 1000)
    sample = 6 * 500 * 1000 * 4
    base = procs.tree_pss()
    loader = Loader(Blocks(40, shape), batch_size=2, num_workers=2, prefetch_factor=1)
    peak = 0
    it = iter(loader)
    for k, b in enumerate(it):
        time.sleep(0.1)
        peak = max(peak, procs.tree_pss() - base)
        assert float(b[1, 0, 0, 0]) == 2 * k + 1
        del b
    batches = 2 * 1 + 2
    # Beside the batches: two samples being collated in each worker, and what two forked interpreters cost.
    assert peak <= batches * 2 * sample + 2 * 2 * sample + 100 * MIB, peak // MIB


@pytest.mark.ours
def test_mem_03_iterator_runs_ahead_by_the_window_and_no_more(Loader: Any, tmp_path: Any) -> None:
    from helpers.datasets import Slow

    class Counting(Slow):
        def __getitem__(self, i: int) -> int:
            with open(tmp_path / f"{i}", "w"):
                return i

    for prefetch in (1, 2, 4):
        for f in tmp_path.iterdir():
            f.unlink()
        it = iter(Loader(Counting(60), batch_size=1, num_workers=2, prefetch_factor=prefetch))
        for taken in range(1, 5):
            next(it)
            time.sleep(0.15)
            assert len(list(tmp_path.iterdir())) <= taken + 2 * prefetch
        del it


LOCK = threading.Lock()


class Locked(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> int:
        with LOCK:
            return i


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_hang_01_a_lock_held_by_another_thread_is_no_matter_without_fork(method: str, Loader: Any) -> None:
    with LOCK:
        loader = Loader(Locked(), batch_size=4, num_workers=2, multiprocessing_context=method)
        assert sum(int(b.sum()) for b in loader) == 780


@pytest.mark.ours
def test_hang_01_under_fork_a_timeout_names_the_stack(Loader: Any) -> None:
    """By fork the child inherits the held lock, which nothing can undo; with a timeout the error says where it waits."""
    with LOCK:
        it = iter(Loader(Locked(), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=2))
        with pytest.raises(RuntimeError, match="DataLoader timed out after 2 seconds") as e:
            next(it)
    text = full_text(e.value)
    assert "with LOCK" in text or "__getitem__" in text, text
    assert "worker 0" in text.lower() or "worker process 0" in text.lower(), text
    del it, e


def full_text(e: BaseException) -> str:
    """An exception's text with its notes."""
    return "\n".join([str(e), *getattr(e, "__notes__", [])])


class Bad:
    def __reduce__(self) -> Any:
        raise OSError("disk gone")


class BadItem(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return Bad() if i == 1 else i


@pytest.mark.ours
@pytest.mark.parametrize("method", START_METHODS)
def test_hang_02_a_result_that_cannot_be_pickled_is_an_error(method: str, Loader: Any) -> None:
    it = iter(Loader(BadItem(), batch_size=None, num_workers=1, multiprocessing_context=method))
    assert next(it) == 0
    with pytest.raises(Exception, match="disk gone") as e:
        next(it)
    text = full_text(e.value)
    assert "worker process 0" in text.lower() or "worker 0" in text.lower(), text
    assert "1" in text.replace("disk gone", ""), text
    assert [next(it), next(it)] == [2, 3]
    with pytest.raises(StopIteration):
        next(it)


class Unpicklable(Exception):
    def __init__(self, a: Any, b: Any) -> None:
        super().__init__(f"{a} and {b}")
        self.lock = threading.Lock()


class RaisesUnpicklable(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        if i == 1:
            raise Unpicklable("left", "right")
        return i


def test_hang_02_an_exception_that_cannot_be_pickled_is_an_error(Loader: Any) -> None:
    it = iter(Loader(RaisesUnpicklable(), batch_size=None, num_workers=1))
    assert next(it) == 0
    with pytest.raises(RuntimeError, match="left and right"):
        next(it)
    assert next(it) == 2


class Stuck(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        time.sleep(1e6)


def test_hang_03_timeout_fires_and_nothing_remains(Loader: Any) -> None:
    threads = threading.active_count()
    it = iter(Loader(Stuck(), batch_size=1, num_workers=2, timeout=2))
    with pytest.raises(RuntimeError, match="DataLoader timed out after 2 seconds"):
        next(it)
    pids = {w.pid for w in it._workers}
    del it
    assert not procs.wait_until(lambda: [p for p in pids if procs.alive(p)], gone=True, timeout=15)
    assert threading.active_count() == threads


@pytest.mark.ours
def test_hang_03_the_error_says_which_worker_and_which_indices(Loader: Any) -> None:
    it = iter(Loader(Stuck(), batch_size=1, num_workers=2, timeout=1))
    with pytest.raises(RuntimeError) as e:
        next(it)
    text = full_text(e.value)
    assert str(it._workers[0].pid) in text, text
    assert "[0]" in text, text
    assert "time.sleep" in text or "__getitem__" in text, text


@pytest.mark.parametrize("persistent", [True, False])
def test_hang_04_second_iterator_over_the_same_loader(persistent: bool, Loader: Any) -> None:
    loader = Loader(range(700), batch_size=2, num_workers=2, persistent_workers=persistent)
    it = iter(loader)
    next(it)
    next(it)
    assert [b.tolist() for b in iter(loader)] == [[2 * k, 2 * k + 1] for k in range(350)]
    a = iter(loader)
    b = iter(loader)
    first, second = next(a).tolist(), next(b).tolist()
    assert (first, second) == (([0, 1], [2, 3]) if persistent else ([0, 1], [0, 1]))


@pytest.mark.parametrize("ending", ["raise RuntimeError('boom')", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGINT)"])
@pytest.mark.parametrize("workers", [0, 2])
def test_hang_08_an_exception_in_the_training_loop_ends_the_program(ending: str, workers: int) -> None:
    done = procs.script(
        f"""
        import os, signal, sys, time
        {loader_import()}
        def main():
            for b in DataLoader(range(1000), batch_size=4, num_workers={workers}, persistent_workers={workers > 0}):
                {ending}
                time.sleep(1)
        main()
        """
    )
    expected = {"r": 1, "s": 3, "o": -2}[ending[0]]
    assert done.returncode in (expected, 130 if expected == -2 else expected), done.stderr
    assert done.stderr.count("Traceback") == (0 if expected == 3 else 1), done.stderr
    assert "Exception ignored" not in done.stderr


def test_tensors_of_a_batch_can_be_moved_to_another_thread_and_back(Loader: Any) -> None:
    """The consumer may be any thread (HANG group: helper threads around a loader)."""
    out: list[int] = []

    def consume() -> None:
        out.extend(int(b.sum()) for b in Loader(torch.arange(40), batch_size=4, num_workers=2))

    t = threading.Thread(target=consume)
    t.start()
    t.join(50)
    assert not t.is_alive()
    assert sum(out) == 780
