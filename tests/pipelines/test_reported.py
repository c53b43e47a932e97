"""Faults of pipelines that trials have reported."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
from feedrate.torch import DataLoader
from helpers.procs import script

LOADERS: list[Any] = [feedrate.DataLoader, DataLoader]


def batches(loader: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in loader]


def test_an_iterator_that_its_own_function_asks_says_so() -> None:
    hold: list[Any] = []
    pipeline = feedrate.from_items(range(6)).map(lambda x: (x, next(hold[0])) if x == 3 else x)
    hold.append(iter(pipeline))
    with pytest.raises(RuntimeError, match="in the middle of an element"):
        list(hold[0])
    # The element is the bad one; the others are there.
    assert list(hold[0]) == [4, 5]


@pytest.mark.parametrize("steps", [lambda p: p, lambda p: p.shuffle(4), lambda p: p.prefetch(1).map(abs)])
def test_a_handler_that_wants_a_state_in_the_middle_of_an_element(steps: Callable[[Any], Any]) -> None:
    def interrupts(x: int) -> int:
        if x == 5 and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGUSR1)
        return x

    pipeline = steps(feedrate.from_items(range(20))).map(interrupts)
    it = iter(pipeline)
    before = signal.signal(signal.SIGUSR1, lambda *_: it.state_dict())
    try:
        with pytest.raises(RuntimeError, match="in the middle of an element.*flag"):
            list(it)
    finally:
        signal.signal(signal.SIGUSR1, before)
    it.state_dict()


def test_a_state_in_a_fork_of_the_process_that_prefetches() -> None:
    it = iter(feedrate.from_items(list(range(100))).map(abs).prefetch(2))
    next(it)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        state = it.state_dict()
        try:
            iter(feedrate.from_items(list(range(100))).map(abs).prefetch(2)).load_state_dict(state)
        except BaseException as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


QUEUE = """
import os, resource, feedrate
queue = feedrate.Queue(4)
queue.put("small")
queue.put(b"x" * 300_000)
queue.put("behind")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
print(queue.get())
try:
    queue.get()
except OSError as error:
    print("told", error.errno)
for descriptor in held:
    os.close(descriptor)
print(len(queue.get()), queue.get())
"""


def test_an_item_waits_for_a_descriptor() -> None:
    run = script(QUEUE)
    assert run.stdout.split() == ["small", "told", "24", "300000", "behind"], run.stdout + run.stderr


@pytest.mark.parametrize("size", ["4", 3.0, True, None])
def test_a_queue_of_no_number(size: Any) -> None:
    with pytest.raises(TypeError, match="whole number, but got"):
        feedrate.Queue(size)


def test_bad_elements_are_not_kept() -> None:
    def odd(x: int) -> int:
        if x % 2:
            raise ValueError(x)
        return x

    it: Any = iter(feedrate.from_items(range(1000)).map(odd).on_error("skip"))
    assert len(list(it)) == 500
    assert it.state_dict()["skipped"] == 500
    assert it._skipper.fresh == []


def test_paths_without_an_order_and_text_for_items() -> None:
    with pytest.raises(TypeError, match=r"sorted\(paths\)"):
        feedrate.open({"a", "b"})  # type: ignore[arg-type]
    for function in (feedrate.from_items, feedrate.from_iterable):
        for text in ("/data/a.tar", Path("a.tar")):
            with pytest.raises(TypeError, match="open\\(\\) reads what a path stands for"):
                function(text)  # type: ignore[arg-type]


def test_what_is_no_path_here(tmp_path: Path) -> None:
    for address in ("s3://bucket/a.tar", "https://a.b/{0..3}.tar", "pipe:cat a.tar"):
        with pytest.raises(feedrate.PipelineError, match="this is an address, and only files are read"):
            list(feedrate.open(address))
    with pytest.raises(feedrate.PipelineError, match="expanduser"):
        list(feedrate.open("~/none/*.tar"))
    taken = tmp_path / "file"
    taken.touch()
    with pytest.raises(feedrate.PipelineError, match=f"{taken}: File exists"):
        list(feedrate.from_items([1]).cache(taken))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("Loader", LOADERS)
def test_a_pipeline_that_is_told_its_epoch(Loader: Any, workers: int) -> None:
    def make() -> Any:
        return Loader(feedrate.from_items(range(40)).shuffle(16), batch_size=8, num_workers=workers, seed=1)

    loader = make()
    wanted = [batches(loader) for _ in range(5)]
    assert wanted[0] != wanted[1]
    loader = make()
    found = []
    for epoch in (2, 2, 3):
        loader.dataset.set_epoch(epoch)
        found.append(batches(loader))
    # Who says nothing goes on from there.
    assert [*found, batches(loader)] == [wanted[2], wanted[2], wanted[3], wanted[4]]
    # A state goes on in its epoch, whoever names that again; another number begins that one.
    loader.set_epoch(3)
    it = iter(loader)
    begun = [np.asarray(next(it)).tolist() for _ in range(2)]
    state = loader.state_dict()
    del it
    for told, rest in ((None, wanted[3][2:]), (3, wanted[3][2:]), (1, wanted[1])):
        loader = make()
        loader.dataset.set_epoch(4)
        loader.load_state_dict(state)
        if told is not None:
            loader.dataset.set_epoch(told)
        assert batches(loader) == rest
    assert begun == wanted[3][:2]


def test_ranks_that_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(feedrate.from_items(range(8)), batch_size=2, distributed="auto")
    assert len(batches(loader)) == 4
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="rank 1 of 2 now"):
        iter(loader)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert len(batches(loader)) == 4


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_batches_out_of_a_cache_are_taken_apart_as_they_were_made(kind: str, tmp_path: Path) -> None:
    def lists(i: int) -> dict[str, Any]:
        return {"x": [np.full(3, i), np.full(2, i * 10)]}

    def make() -> Any:
        cache = {"folder": tmp_path} if kind == "files" else {}
        return feedrate.from_items(list(range(24))).map(lists).batch(2).cache(**cache).unbatch().shuffle(4)

    def rows(it: Iterator[Any], count: int) -> list[Any]:
        return [[part.tolist() for part in next(it)["x"]] for _ in range(count)]

    pipeline = make()
    it: Any = iter(pipeline)
    rows(it, 3)
    state = it.state_dict()
    rest = rows(it, 21)
    assert max(rest) == [[23] * 3, [230] * 2]
    for again in (pipeline, make()):
        it = iter(again)
        it.load_state_dict(state)
        assert rows(it, 21) == rest
    # Later epochs have all of it out of the cache.
    assert min(rows(iter(pipeline), 24)) == [[0] * 3, [0] * 2]


def test_compressed_shards_are_read_again_once_and_not_for_each_record(tmp_path: Path) -> None:
    import gzip
    import json

    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for i in range(60_000):
            file.write(json.dumps({"i": i, "text": f"{i * 7919:x}" * 4}) + "\n")
    a, b = feedrate.open(path).fork(buffer=4)
    pairs = a.zip(b.skip(20_000))
    it: Any = iter(feedrate.open(path).shuffle(4000))
    for _ in range(20_000):
        next(it)
    state = it.state_dict()
    rest = [row["i"] for row in it]
    it = iter(feedrate.open(path).shuffle(4000))

    def read() -> int:
        """Bytes that this process has read."""
        return int(next(line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar")).split()[1])

    size = path.stat().st_size
    before = read()
    it.load_state_dict(state)
    assert [row["i"] for row in it] == rest
    assert read() - before < 6 * size
    before = read()
    assert all(one["i"] + 20_000 == two["i"] for one, two in pairs)
    assert read() - before < 6 * size


@pytest.mark.parametrize("Loader", LOADERS)
def test_an_epoch_that_was_told_waits_where_it_cannot_begin(Loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise OSError("not now")

    def make() -> Any:
        return Loader(feedrate.from_items(range(40)).shuffle(16), batch_size=8, seed=1)

    loader = make()
    wanted = [batches(loader) for _ in range(3)][2]
    loader = make()
    loader.dataset.set_epoch(2)
    with monkeypatch.context() as patch:
        patch.setattr("feedrate._resumable.Epoch", fails)
        with pytest.raises(OSError, match="not now"):
            iter(loader)
    assert batches(loader) == wanted
