"""workers="thread" and items_in_flight: same batches, overlapping waits, real threads and no processes."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as Stock
from torch.utils.data import Dataset, get_worker_info

from helpers import datasets as d
from helpers import procs
from helpers.canon import canon

pytestmark = pytest.mark.ours

SCHEMAS: list[Any] = [
    ("int",),
    ("tensor", "float32", (3, 4)),
    ("dict", ("a", ("tensor", "int64", (5,))), ("b", ("str",)), ("c", ("point", ("float",), ("bytes",)))),
    ("list", ("array", "uint8", (2, 2)), ("deque", ("int",), ("bool",))),
]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("flight", [1, 3])
def test_same_batches_as_torch(schema: Any, workers: int, flight: int, Loader: Any) -> None:
    for kwargs in ({"batch_size": 3}, {"batch_size": None}, {"batch_size": 4, "shuffle": True, "drop_last": True}):
        torch.manual_seed(1)
        expected = [canon(b) for _ in range(2) for b in Stock(d.MapDS(schema, 17), **kwargs)]
        torch.manual_seed(1)
        loader = Loader(d.MapDS(schema, 17), num_workers=workers, workers="thread", items_in_flight=flight, **kwargs)
        assert [canon(b) for _ in range(2) for b in loader] == expected


def test_iterables_in_one_thread(Loader: Any) -> None:
    for split in ("stride", "all", "uneven"):
        expected = [canon(b) for b in Stock(d.IterDS(("int",), 13, split), batch_size=2)]
        got = [canon(b) for b in Loader(d.IterDS(("int",), 13, split), batch_size=2, num_workers=1, workers="thread")]
        assert got == expected


def test_iterables_in_several_threads_must_be_able_to_share_out(Loader: Any) -> None:
    """torch's get_worker_info() cannot tell threads apart, ours can; so the dataset must be one that asks ours."""
    import torch.utils.data

    import feedrate

    class Strided(feedrate.IterableDataset, torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            info = feedrate.get_worker_info()
            return iter(range(info.id, 23, info.num_workers))

    with pytest.raises(ValueError, match=r"feedrate\.get_worker_info"):
        iter(Loader(d.IterDS(("int",), 13), num_workers=2, workers="thread"))
    got = [b.tolist() for b in Loader(Strided(), batch_size=2, num_workers=3, workers="thread")]
    assert sorted(v for b in got for v in b) == list(range(23))
    assert got[:3] == [[0, 3], [1, 4], [2, 5]]


def test_a_stream_with_its_place_in_itself_is_not_shared_by_threads(Loader: Any) -> None:
    import torch.utils.data

    import feedrate

    class Placed(feedrate.IterableDataset, torch.utils.data.IterableDataset[int]):
        at = 0

        def __iter__(self) -> Any:
            while self.at < 9:
                self.at += 1
                yield self.at

        def state_dict(self) -> Any:
            return {"at": self.at}

        def load_state_dict(self, state: Any) -> None:
            self.at = state["at"]

    for kind in (Loader, feedrate.DataLoader):
        with pytest.raises(ValueError, match=r'Placed keeps where.* 2 threads .*workers="process".*num_workers=1.*iterator'):
            kind(Placed(), batch_size=2, num_workers=2, workers="thread")
        assert len(list(kind(Placed(), batch_size=2, num_workers=1, workers="thread"))) == 5


def test_no_process_is_started_and_threads_end(Loader: Any) -> None:
    before = threading.active_count()
    native = len(procs.threads())
    it = iter(Loader(Where(), num_workers=2, workers="thread"))
    rows = list(it)
    assert {int(b[0]) for b in rows} == {os.getpid()}
    assert {int(b[1]) for b in rows}.isdisjoint({threading.get_ident()})
    assert not procs.child_pids() - procs.helper_pids()
    del it
    assert procs.wait_until(lambda: threading.active_count() <= before, timeout=10)
    assert procs.wait_until(lambda: len(procs.threads()) <= native, timeout=10)


class Where(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> Any:
        time.sleep(0.002)
        return os.getpid(), threading.get_ident()


class Info(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> Any:
        import feedrate

        info = feedrate.get_worker_info()
        assert info is not None
        time.sleep(0.001)
        assert feedrate.get_worker_info() is info
        return i, info.id, info.num_workers


def test_worker_info_is_per_thread(Loader: Any) -> None:
    import feedrate

    rows = list(Loader(Info(), num_workers=3, workers="thread"))
    assert [int(b[1]) for b in rows] == [k % 3 for k in range(12)]
    assert {int(b[2]) for b in rows} == {3}
    assert feedrate.get_worker_info() is None
    assert get_worker_info() is None


class Overlap(Dataset[int]):
    """Knows how many calls are inside it at once."""

    def __init__(self, n: int, seconds: float) -> None:
        self.n, self.seconds = n, seconds
        self.lock = threading.Lock()
        self.inside = self.most = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(self.seconds)
        with self.lock:
            self.inside -= 1
        return i


@pytest.mark.parametrize(("workers", "flight"), [(1, 1), (1, 8), (2, 4)])
def test_items_in_flight_overlap_up_to_the_number_given(workers: int, flight: int, Loader: Any) -> None:
    ds = Overlap(64, 0.01)
    loader = Loader(ds, batch_size=16, num_workers=workers, workers="thread", items_in_flight=flight)
    assert [b.tolist() for b in loader] == [list(range(k, k + 16)) for k in range(0, 64, 16)]
    assert ds.most <= workers * flight
    assert ds.most >= min(workers * flight, 2)


def test_items_in_flight_inside_worker_processes(Loader: Any) -> None:
    loader = Loader(Overlapping(32), batch_size=8, num_workers=1, items_in_flight=8)
    rows = list(loader)
    assert [i for b in rows for i in b[0].tolist()] == list(range(32))
    assert max(int(v) for b in rows for v in b[1]) > 1


class Overlapping(Dataset[Any]):
    lock = threading.Lock()
    inside = 0

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        cls = type(self)
        with cls.lock:
            cls.inside += 1
            now = cls.inside
        time.sleep(0.02)
        with cls.lock:
            cls.inside -= 1
        return i, now


def test_items_in_flight_without_workers(Loader: Any) -> None:
    ds = Overlap(20, 0.001)
    assert [int(v) for b in Loader(ds, batch_size=5, items_in_flight=4) for v in b] == list(range(20))


@pytest.mark.parametrize("flight", [1, 4])
@pytest.mark.parametrize("pool", ["thread", "process"])
def test_errors_in_items(flight: int, pool: str, Loader: Any) -> None:
    it = iter(Loader(d.MapDS(("int",), 16, "value", (5, 6)), batch_size=4, num_workers=2, workers=pool, items_in_flight=flight))
    assert next(it).tolist() == [-5, -2, 1, 4]
    with pytest.raises(ValueError, match="bad sample 5"):  # the first in order, whichever came first in time
        next(it)
    assert [b.tolist() for b in it] == [[19, 22, 25, 28], [31, 34, 37, 40]]


def test_exceptions_in_threads_are_the_objects_themselves(Loader: Any) -> None:
    with pytest.raises(d.TwoArgs) as e:
        list(Loader(d.MapDS(("int",), 4, "two", (2,)), num_workers=1, workers="thread"))
    assert e.value.b == 2


def test_opaque_iterables_refuse_items_in_flight(Loader: Any) -> None:
    with pytest.raises(ValueError, match="items_in_flight"):
        list(Loader(d.IterDS(("int",), 8), num_workers=1, items_in_flight=2))


def test_bad_values(Loader: Any) -> None:
    for bad in (0, -1, "x", 1.5):
        with pytest.raises((ValueError, TypeError), match="items_in_flight"):
            Loader([1], items_in_flight=bad)
    for bad in ("x", None, 3):
        with pytest.raises((ValueError, TypeError), match="workers"):
            Loader([1], workers=bad)


def test_breaking_out_of_threads(Loader: Any) -> None:
    native = len(procs.threads())
    for _ in range(20):
        for b in Loader(d.Slow(100, 0.001), batch_size=2, num_workers=3, workers="thread"):
            assert b.tolist() == [0, 1]
            break
    assert procs.wait_until(lambda: len(procs.threads()) <= native, timeout=15)


def test_timeout_in_threads_names_the_stack(Loader: Any) -> None:
    it = iter(Loader(Sleepy(4, 0.0), num_workers=1, workers="thread", timeout=0.5))
    next(it)
    with pytest.raises(RuntimeError, match="DataLoader timed out after 0.5 seconds") as e:
        next(it)
    text = "\n".join([str(e.value), *getattr(e.value, "__notes__", [])])
    assert "sleep_in_thread" in text, text


class Sleepy(d.Slow):
    def __getitem__(self, i: int) -> int:
        if i == 1:
            sleep_in_thread()
        return i


def sleep_in_thread() -> None:
    time.sleep(3)


def test_persistent_threads_and_kept_batches(Loader: Any) -> None:
    loader = Loader(d.Image(100), batch_size=4, num_workers=2, workers="thread", persistent_workers=True)
    kept = []
    for _ in range(3):
        kept += list(loader)
    assert all(bool((x[:, 0, 0, 0] == i).all() and (x[:, 2, 7, 7] == i).all()) for x, i in kept)
    assert [int(v) for _, i in kept for v in i] == list(range(100)) * 3


def test_randomly_slow_items_keep_their_order(Loader: Any) -> None:
    class Jitter(Dataset[int]):
        def __len__(self) -> int:
            return 120

        def __getitem__(self, i: int) -> int:
            time.sleep(random.Random(i).random() * 0.004)
            return i

    for flight in (1, 5):
        loader = Loader(Jitter(), batch_size=6, num_workers=3, workers="thread", items_in_flight=flight)
        assert [v for b in loader for v in b.tolist()] == list(range(120))
