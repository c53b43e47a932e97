"""Leases: who holds memory, for how long, and that nobody writes into what somebody still reads."""

from __future__ import annotations

import functools
import gc
import operator
import os
import random
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from helpers import START_METHODS, procs
from helpers import datasets as d

MIB = 1 << 20
WORKERS = pytest.mark.parametrize("workers", [0, 1, 2])


def filled(x: torch.Tensor, i: torch.Tensor) -> bool:
    """Every element of each sample is its index."""
    return bool((x == i.to(x.dtype).reshape(-1, *([1] * (x.dim() - 1)))).all())


@WORKERS
def test_kept_batches_stay_intact(workers: int, Loader: Any) -> None:
    kept = []
    for _ in range(3):
        for k, (x, i) in enumerate(Loader(d.Image(120), batch_size=4, num_workers=workers)):
            if k % 3 == 0:
                kept.append((x, i))
    assert all(filled(x, i) for x, i in kept)
    assert len(kept) == 30


@WORKERS
def test_a_slice_keeps_the_memory(workers: int, Loader: Any) -> None:
    rows = []
    for x, i in Loader(d.Image(200, (257,)), batch_size=4, num_workers=workers):
        rows.append((x[2, 5:9], int(i[2])))
        del x
    gc.collect()
    assert all(bool((r == i).all()) for r, i in rows)


@WORKERS
def test_a_numpy_view_keeps_the_memory(workers: int, Loader: Any) -> None:
    views = []
    for x, i in Loader(d.Image(200, (257,)), batch_size=4, num_workers=workers):
        a = x.numpy()
        views.append((a[1:3], memoryview(a[3]), [int(k) for k in i]))
        del x, a
    gc.collect()
    for rows, raw, i in views:
        assert (rows[0] == i[1]).all()
        assert (rows[1] == i[2]).all()
        assert np.frombuffer(raw, dtype="float32")[7] == i[3]


@WORKERS
def test_dlpack_keeps_the_memory(workers: int, Loader: Any) -> None:
    held = []
    for x, i in Loader(d.Image(80, (257,)), batch_size=4, num_workers=workers):
        held.append((np.from_dlpack(x), torch.from_dlpack(x), i.tolist()))
        del x
    for a, t, i in held:
        assert a[:, 0].tolist() == i
        assert t[:, 256].tolist() == i


@WORKERS
def test_storage_and_reshaped_views_keep_the_memory(workers: int, Loader: Any) -> None:
    held = []
    for x, i in Loader(d.Image(80, (16, 16)), batch_size=4, num_workers=workers):
        held.append((x.untyped_storage(), x.permute(2, 0, 1).unsqueeze(0), x.as_strided((4,), (256,)), i.tolist()))
        del x
    gc.collect()
    for storage, permuted, strided, i in held:
        assert strided.tolist() == i
        assert permuted[0, 3, :, 2].tolist() == i
        assert torch.tensor([], dtype=torch.float32).set_(storage)[:256].unique().tolist() == [i[0]]


@WORKERS
def test_writes_stay_private_to_a_batch(workers: int, Loader: Any) -> None:
    """Scribbling over each batch changes no other batch, earlier or later."""
    kept = []
    for x, i in Loader(d.Image(160), batch_size=4, num_workers=workers):
        assert filled(x, i)
        if i[0] % 8 == 0:
            kept.append((x.clone(), x, i))
        else:
            x.fill_(-1)
            i.fill_(-1)
    assert all(torch.equal(a, b) and filled(b, i) for a, b, i in kept)


@pytest.mark.parametrize("workers", [1, 2])
def test_labels_do_not_keep_images(workers: int, Loader: Any) -> None:
    """Keeping the small tensor of each batch must not keep the large one: 60 batches of 8 MiB."""
    base = procs.tree_pss()
    labels = []
    for x, i in Loader(d.Image(240, (512, 1024)), batch_size=4, num_workers=workers):
        labels.append(i)
        del x
    held = procs.pss([os.getpid()]) - base
    assert [int(k) for i in labels for k in i] == list(range(240))
    assert held < 200 * MIB, held // MIB


@pytest.mark.ours
@pytest.mark.parametrize("workers", [1, 2])
def test_memory_comes_back_after_del(workers: int, Loader: Any) -> None:
    """64 kept batches of 4 MiB cost their size and nothing after they were let go."""
    gc.collect()
    base = procs.pss([os.getpid()])
    kept = list(Loader(d.Image(256, (256, 1024)), batch_size=4, num_workers=workers))
    assert all(filled(x, i) for x, i in kept)  # touches every page, so that this process's share shows them
    held = procs.pss([os.getpid()]) - base
    assert held > 200 * MIB
    del kept
    gc.collect()
    after = procs.wait_until(lambda: procs.pss([os.getpid()]) - base > 100 * MIB, gone=True, timeout=10)
    assert not after, (procs.pss([os.getpid()]) - base) // MIB


@pytest.mark.ours
def test_memory_comes_back_while_the_workers_live(Loader: Any) -> None:
    """A persistent loader whose user kept a lot for a while: the arenas shrink again by their own idle rule."""
    loader = Loader(d.Image(256, (256, 1024)), batch_size=4, num_workers=2, persistent_workers=True)
    for x, _ in loader:
        del x
    base = procs.tree_pss()
    kept = list(loader)
    assert procs.tree_pss() - base > 150 * MIB
    del kept
    for _ in range(3):
        for x, _ in loader:
            del x
    grown = procs.tree_pss() - base
    # 64 MiB of free memory may stay in each worker's arena.
    assert grown < 2 * 64 * MIB + 50 * MIB, grown // MIB


@pytest.mark.watchdog(120)
def test_no_growth_over_epochs(Loader: Any) -> None:
    loader = Loader(d.Image(400), batch_size=8, num_workers=2, persistent_workers=True)
    sizes, fds, threads = [], [], []
    for _ in range(30):
        for x, i in loader:
            assert filled(x, i)
        sizes.append(procs.tree_pss())
        fds.append(procs.open_fds())
        threads.append(len(procs.threads()))
    assert max(sizes[10:]) - sizes[9] < 8 * MIB, [s // MIB for s in sizes]
    assert max(fds[2:]) <= fds[2] + 1, fds
    assert max(threads[2:]) <= threads[2], threads


class Varying(d.Image):
    """A new shape for each sample, from bytes to megabytes."""

    def __getitem__(self, i: int) -> Any:
        n = random.Random(i).choice((1, 10, 1000, 50_000, 300_000)) + i % 7
        return torch.full((n,), float(i)), i


def test_varying_shapes_reuse_memory(Loader: Any) -> None:
    loader = Loader(Varying(600), batch_size=None, num_workers=2, persistent_workers=True)
    sizes = []
    for _ in range(6):
        for x, i in loader:
            assert bool((x == float(i)).all())
        sizes.append(procs.tree_pss())
    assert sizes[-1] - sizes[1] < 40 * MIB, [s // MIB for s in sizes]


@pytest.mark.ours
def test_file_descriptors_do_not_grow_with_batches(Loader: Any) -> None:
    it = iter(Loader(d.Image(600), batch_size=1, num_workers=2))
    kept = [next(it) for _ in range(40)]
    before = procs.open_fds()
    kept += [next(it) for _ in range(400)]
    assert procs.open_fds() <= before + 2
    assert all(filled(x, i) for x, i in kept)


@pytest.mark.parametrize("method", START_METHODS)
def test_tensors_outlive_loader_and_workers(method: str, Loader: Any) -> None:
    loader = Loader(d.Image(40), batch_size=4, num_workers=2, multiprocessing_context=method)
    it = iter(loader)
    kept = [next(it) for _ in range(6)]
    workers = list(it._workers)
    del it, loader
    gc.collect()
    for w in workers:
        w.join(10)
        assert not w.is_alive()
    assert all(filled(x, i) for x, i in kept)
    kept[0][0].add_(1)
    assert filled(kept[1][0], kept[1][1])


@pytest.mark.ours
def test_tensors_outlive_a_killed_worker(Loader: Any) -> None:
    it = iter(Loader(d.Image(80), batch_size=4, num_workers=2))
    kept = [next(it) for _ in range(4)]
    for w in list(it._workers):
        os.kill(w.pid, 9)
    kept += list(it)
    assert len(kept) == 20
    assert all(filled(x, i) for x, i in kept)
    assert [int(k) for _, i in kept for k in i] == list(range(80))


def test_letting_go_in_another_thread(Loader: Any) -> None:
    """Batches are dropped in a thread of their own, while the main thread keeps reading."""
    import queue

    q: queue.Queue[Any] = queue.Queue()
    bad: list[Any] = []

    def consume() -> None:
        while (item := q.get()) is not None:
            if not filled(*item):
                bad.append(item)
            del item

    t = threading.Thread(target=consume)
    t.start()
    for _ in range(5):
        for pair in Loader(d.Image(200), batch_size=4, num_workers=2):
            q.put(pair)
    q.put(None)
    t.join(30)
    assert not t.is_alive()
    assert not bad


def test_iterating_in_another_thread_and_several_at_once(Loader: Any) -> None:
    results: dict[int, Any] = {}

    def consume(k: int) -> None:
        pairs = list(Loader(d.Image(100), batch_size=5, num_workers=2))
        results[k] = all(filled(x, i) for x, i in pairs) and [int(v) for _, i in pairs for v in i]

    threads = [threading.Thread(target=consume, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(40)
    assert results == {k: list(range(100)) for k in range(4)}


def test_a_users_own_fork(Loader: Any) -> None:
    """A forked child reads what the parent held, lets it go, and neither disturbs the other."""
    it = iter(Loader(d.Image(400), batch_size=4, num_workers=2))
    held = [next(it) for _ in range(5)]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ok = all(filled(x, i) for x, i in held)
            held.clear()
            del it
            gc.collect()
            code = 0 if ok else 2
        finally:
            os._exit(code)
    rest = []
    for x, i in it:
        assert filled(x, i)
        rest.append(i.tolist())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert all(filled(x, i) for x, i in held)
    assert functools.reduce(operator.iadd, rest, []) == list(range(20, 400))


def test_a_long_living_fork_keeps_reading_the_same_bytes(Loader: Any) -> None:
    """What was leased at a fork isn't reused for later batches: the child still sees it after the parent let go."""
    it = iter(Loader(d.Image(400), batch_size=4, num_workers=2))
    x, i = next(it)
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(w)
        os.read(r, 1)
        os._exit(0 if filled(x, i) else 3)
    os.close(r)
    del x, i
    assert sum(len(k) for _, k in it) == 396
    os.write(w, b"x")
    os.close(w)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_batches_through_a_multiprocessing_queue(Loader: Any) -> None:
    """Batches can be pickled and sent to other processes like any tensor."""
    import copy
    import pickle

    for x, i in Loader(d.Image(16), batch_size=4, num_workers=2):
        for twin in (pickle.loads(pickle.dumps((x, i))), copy.deepcopy((x, i)), (x.clone(), i.clone())):
            x2, i2 = twin
            assert filled(x2, i2) and torch.equal(x, x2)
        x.fill_(-5)
        assert filled(x2, i2)


@pytest.mark.ours
def test_share_memory_and_torch_multiprocessing(Loader: Any) -> None:
    import torch.multiprocessing as mp

    ctx = mp.get_context("fork")
    q = ctx.SimpleQueue()
    for x, i in Loader(d.Image(8), batch_size=4, num_workers=1):
        p = ctx.Process(target=_send_sum, args=(q, x, i))
        p.start()
        assert q.get() == float(x.sum())
        p.join(10)
        x.share_memory_()
        assert filled(x, i)


def _send_sum(q: Any, x: torch.Tensor, i: torch.Tensor) -> None:
    q.put(float(x.sum()))


def test_a_slow_consumer_is_not_overrun(Loader: Any) -> None:
    it = iter(Loader(d.Image(60), batch_size=2, num_workers=2, prefetch_factor=4))
    previous = None
    for x, i in it:
        if previous is not None:
            assert filled(*previous)
        time.sleep(0.01)
        assert filled(x, i)
        previous = (x, i)
