"""Acceptance cases WRK-01 to WRK-05 and CRASH-03, as far as the drop-in is concerned."""

from __future__ import annotations

import gc
import os
import signal
import time
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from helpers import START_METHODS, loader_import, procs
from helpers import datasets as d


def full_text(e: BaseException) -> str:
    """An exception's text with its notes and its cause."""
    parts = [str(e), *getattr(e, "__notes__", [])]
    return "\n".join(parts + ([full_text(e.__cause__)] if e.__cause__ else []))


@pytest.mark.ours
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("method", START_METHODS)
def test_wrk_01_exceptions_keep_type_and_attributes(workers: int, method: str, Loader: Any) -> None:
    kwargs = {"multiprocessing_context": method} if workers else {}
    it = iter(Loader(d.MapDS(("int",), 4, "two", (2,)), num_workers=workers, **kwargs))
    next(it)
    next(it)
    with pytest.raises(d.TwoArgs) as e:
        next(it)
    assert (e.value.a, e.value.b) == ("aa", 2)
    if workers:
        text = full_text(e.value)
        assert "worker" in text, text
        assert "raise_error" in text, text  # the remote traceback
        assert "2" in text
    assert next(it).tolist() == [4]


@pytest.mark.ours
def test_wrk_01_notes_name_worker_and_indices(Loader: Any) -> None:
    it = iter(Loader(d.MapDS(("int",), 12, "value", (7,)), batch_size=3, num_workers=2))
    next(it)
    next(it)
    with pytest.raises(ValueError, match="bad sample 7") as e:
        next(it)
    notes = "\n".join(getattr(e.value, "__notes__", []))
    assert "worker 0" in notes, notes
    assert "sample index 7" in notes, notes


@pytest.mark.ours
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, -3, 0])
def test_wrk_02_a_sample_that_always_kills_is_named(how: int, Loader: Any) -> None:
    it = iter(Loader(d.KillAlways(100, (7,), how), batch_size=1, num_workers=2))
    seen = []
    with pytest.raises(RuntimeError) as e:
        for b in it:
            seen.append(int(b))
    assert seen == list(range(7))
    import feedrate

    assert isinstance(e.value, feedrate.WorkerDied)
    text = full_text(e.value)
    assert "[7]" in text, text
    expected = {signal.SIGKILL: "SIGKILL", signal.SIGSEGV: "SIGSEGV", -3: "3", 0: "0"}[how]
    assert expected in text or "Killed" in text or "Segmentation" in text, text


@pytest.mark.ours
def test_wrk_02_other_workers_stop_when_the_iterator_goes(Loader: Any) -> None:
    it = iter(Loader(d.KillAlways(100, (7,)), batch_size=1, num_workers=2))
    with pytest.raises(RuntimeError):
        list(it)
    del it
    gc.collect()  # the caught exception's frames
    assert not procs.wait_until(lambda: procs.child_pids() - procs.helper_pids(), gone=True, timeout=10)


@pytest.mark.ours
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, -3])
def test_wrk_02_killed_once_costs_a_retry_and_not_the_run(method: str, how: int, Loader: Any, tmp_path: Any) -> None:
    ds = d.KillOnce(60, 31, str(tmp_path / "flag"), how, (16,))
    loader = Loader(ds, batch_size=4, num_workers=2, multiprocessing_context=method)
    seen = [b[:, 0].int().tolist() for b in loader]
    assert seen == [list(range(k, k + 4)) for k in range(0, 60, 4)]
    assert (tmp_path / "flag").exists()


@pytest.mark.ours
def test_wrk_02_redo_off_restores_stocks_error(Loader: Any) -> None:
    it = iter(Loader(d.KillAlways(20, (3,)), batch_size=1, num_workers=1, redo=False))
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid(\(s\))? .*\d+\)? ?.*"):
        list(it)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_wrk_03_after_an_error_the_next_batch_comes(workers: int, Loader: Any) -> None:
    bad = (3, 10, 11, 25)
    it = iter(Loader(d.MapDS(("int",), 40, "runtime", bad), batch_size=2, num_workers=workers))
    good: list[int] = []
    errors = 0
    while True:
        try:
            good += next(it).tolist()
        except StopIteration:
            break
        except RuntimeError:
            errors += 1
    assert errors == len({i // 2 for i in bad})
    dropped = {j for i in bad for j in (i // 2 * 2, i // 2 * 2 + 1)}
    assert good == [i * 3 - 5 for i in range(40) if i not in dropped]


@pytest.mark.ours
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("where", ["item", "collate", "getitems"])
def test_wrk_04_stop_iteration_in_user_code_is_an_error(workers: int, where: str, Loader: Any) -> None:
    cls = d.GetItems if where == "getitems" else d.MapDS
    ds = cls(("int",), 5, "stop", () if where == "collate" else (2,))
    it = iter(Loader(ds, num_workers=workers, collate_fn=_stopping if where == "collate" else None))
    next(it)
    next(it)
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(it)
    assert next(it) is not None
    next(it)
    with pytest.raises(StopIteration):
        next(it)


def _stopping(batch: Any) -> Any:
    if batch[0] == 1:
        raise StopIteration
    return batch


@pytest.mark.parametrize("workers", [0, 1])
def test_wrk_04_index_error_in_user_code_is_an_error(workers: int, Loader: Any) -> None:
    class Short(Dataset[int]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, i: int) -> int:
            return [0, 1][i]

    it = iter(Loader(Short(), num_workers=workers))
    next(it)
    next(it)
    with pytest.raises(IndexError, match="list index out of range"):
        next(it)


_LOOP = """
    import sys, time
    {imports}
    from helpers.datasets import Slow
    if __name__ == "__main__":
        loader = DataLoader(Slow(100000, 0.002), batch_size=4, num_workers=4, multiprocessing_context="{method}",
                            persistent_workers={persistent})
        it = iter(loader)
        next(it)
        print(*[w.pid for w in it._workers], flush=True)
        for b in it:
            pass
"""


_IMPORTING = """
    import time
    {imports}
    from helpers.datasets import Slow
    if __name__ == "__main__":
        for batch in DataLoader(Slow(1000, 0.002), num_workers=2, multiprocessing_context="{method}"):
            pass
    else:
        print("importing", flush=True)
        time.sleep(20)
"""


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.watchdog(120)
def test_wrk_05_a_signal_to_the_parent_leaves_no_worker(sig: int, method: str) -> None:
    shm = procs.shm_entries()
    proc = procs.start(_LOOP.format(imports=loader_import(), method=method, persistent=sig == signal.SIGTERM))
    assert proc.stdout is not None
    pids = [int(p) for p in proc.stdout.readline().split()]
    assert len(pids) == 4
    others = procs.descendants(proc.pid)
    time.sleep(0.3)
    os.kill(proc.pid, sig)
    _, err = procs.finish(proc, timeout=30)
    assert proc.returncode in ((-sig, 128 + sig) if sig != signal.SIGINT else (-2, 130, 1)), err
    left = procs.wait_until(lambda: [p for p in others if procs.alive(p)], gone=True, timeout=15)
    assert not left, procs.describe(left)
    assert err.count("Traceback") == (1 if sig == signal.SIGINT else 0), err
    assert not procs.new_shm_entries(shm)


def interrupted(proc: Any, children: Any) -> None:
    """A Ctrl-C, which goes to the whole group, ends all with one traceback."""
    os.killpg(proc.pid, signal.SIGINT)
    _, err = procs.finish(proc, timeout=60)
    assert err.count("Traceback (most recent call last)") == 1, err
    assert err.rstrip().endswith("KeyboardInterrupt"), err
    left = procs.wait_until(lambda: [p for p in children if procs.alive(p)], gone=True, timeout=15)
    assert not left, procs.describe(left)


@pytest.mark.parametrize("method", START_METHODS)
def test_wrk_05_ctrl_c_to_the_whole_group_gives_one_traceback(method: str) -> None:
    proc = procs.start(_LOOP.format(imports=loader_import(), method=method, persistent=False))
    assert proc.stdout is not None
    pids = [int(p) for p in proc.stdout.readline().split()]
    time.sleep(0.3)
    interrupted(proc, pids)


@pytest.mark.ours
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_wrk_05_ctrl_c_to_workers_that_are_still_importing(method: str) -> None:
    proc = procs.start(_IMPORTING.format(imports=loader_import(), method=method))
    assert proc.stdout is not None
    assert [proc.stdout.readline(), proc.stdout.readline()] == ["importing\n"] * 2
    children = procs.descendants(proc.pid)
    interrupted(proc, children)


@pytest.mark.watchdog(120)
def test_wrk_05_fifty_breaks_leave_nothing(Loader: Any) -> None:
    loader = Loader(d.Image(400), batch_size=4, num_workers=4)

    def once() -> None:
        for x, i in loader:
            assert x.shape == (4, 3, 8, 8)
            assert i.tolist() == [0, 1, 2, 3]
            break

    for _ in range(3):
        once()
    fds, threads, shm = procs.open_fds(), len(procs.threads()), procs.shm_entries()
    for _ in range(50):
        once()
    assert not procs.wait_until(lambda: procs.child_pids() - procs.helper_pids(), gone=True)
    assert procs.open_fds() <= fds
    assert len(procs.threads()) <= threads
    assert not procs.new_shm_entries(shm)


@pytest.mark.parametrize(("n", "size"), [(10, 4), (4, 4), (1, 4), (5, 1), (3, 5)])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_crash_03_short_last_batch_and_batches_kept(n: int, size: int, workers: int, Loader: Any) -> None:
    for drop in (False, True):
        kept = list(Loader(d.Image(n, (5,)), batch_size=size, num_workers=workers, drop_last=drop))
        sizes = [len(x) for x, _ in kept]
        assert sum(sizes) == (n // size * size if drop else n)
        assert all(s == size for s in sizes[:-1])
        flat = [int(k) for _, i in kept for k in i]
        assert flat == list(range(sum(sizes)))
        for x, i in kept:
            assert torch.equal(x, i[:, None].float().expand(len(i), 5))
