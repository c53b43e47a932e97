"""Pipelines when something goes wrong in one lane, and streams that have to be the same however they are read.

Found by a review: each of these gave wrong data without a word.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
from feedrate import DataLoader


def lines(path: Path, numbers: Any) -> str:
    path.write_text("".join(f'{{"x": {number}}}\n' for number in numbers))
    return str(path)


def given(pipeline: Any, **kwargs: Any) -> list[int]:
    loader = DataLoader(pipeline, batch_size=4, num_workers=0, collate_fn=list, **kwargs)
    return [element["x"] for batch in loader for element in batch]


# -- a lane that fails alone


def test_a_file_that_is_gone_for_one_lane_is_reported_by_it(tmp_path: Path) -> None:
    """The lane's first record is another lane's: it was passing over."""
    path = Path(lines(tmp_path / "a.jsonl", range(160)))
    native = feedrate.open(str(path))._native
    counts: list[Any] = []
    for number in range(4):
        lane = native.lane(number, 4, 4, 0, 0, None)
        if number == 2:
            path.rename(tmp_path / "b")
            with pytest.raises(feedrate.PipelineError, match="No such file"):
                lane.take(4)
            (tmp_path / "b").rename(path)
            continue
        count = 0
        while found := lane.take(4):
            count += len(found)
        counts.append(count)
    assert counts == [40, 40, 40]


class Failing:
    """Raises once, at the given step of its life."""

    def __init__(self, error: BaseException, at: int) -> None:
        self.error, self.at, self.steps = error, at, 0

    def __iter__(self) -> Any:
        for number in range(80):
            self.steps += 1
            if self.steps == self.at:
                raise self.error
            yield {"x": number}


@pytest.mark.parametrize("error", [OSError("a moment's trouble"), KeyboardInterrupt()], ids=["OSError", "KeyboardInterrupt"])
def test_what_an_iterable_raises_is_seen_wherever_it_is_read(error: BaseException) -> None:
    """Eight lanes read it each: in seven of eight places the lane is passing over."""
    for at in (1, 2, 30, 85, 100, 200, 500):
        with pytest.raises(type(error)):
            given(feedrate.from_iterable(Failing(error, at)))
    assert sorted(given(feedrate.from_iterable(Failing(error, 0)))) == list(range(80))


def test_an_interrupt_behind_a_step_that_counts_ends_the_lane() -> None:
    """It was lost where it was another lane's turn, and the lanes then gave each other's elements."""
    left = 0

    def function(element: dict[str, int]) -> dict[str, int]:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return element

    items = feedrate.from_items([{"x": number} for number in range(80)])
    for calls in (1, 2, 9, 70, 111):
        left = calls
        with pytest.raises(KeyboardInterrupt):
            given(items.map(function).take(64).lanes(rows=4))
    lane = items.map(function).take(64)._native.lane(1, 4, 4, 0, 0, None)
    left = 2
    with pytest.raises(KeyboardInterrupt):
        lane.take(4)
    with pytest.raises(feedrate.PipelineError, match="go on from the last state"):
        lane.take(4)


@pytest.mark.parametrize("split", ["auto", "records", "shards"])
@pytest.mark.parametrize("columns", [False, True])
def test_damage_in_one_parquet_file_leaves_the_next_one_whole(split: Any, columns: bool, tmp_path: Path) -> None:
    """Lanes that jump over the damage and the one that finds it have to agree on what comes behind."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(1)
    for part in range(3):
        table = pa.table({"x": np.arange(40) + part * 40, "r": [rng.bytes(30).hex() for _ in range(40)]})
        pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=8, compression="zstd")
    data = bytearray((tmp_path / "1.parquet").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 60] = rng.bytes(60)
    (tmp_path / "1.parquet").write_bytes(data)
    pipeline = feedrate.open(str(tmp_path / "*.parquet"), split=split).on_error("skip")
    if columns:
        batches = DataLoader(pipeline.batch(3), batch_size=None)
        found = [int(x) for batch in batches for x in batch["x"]]
        alone = [int(x) for batch in pipeline.batch(3) for x in batch["x"]]
    else:
        found = given(pipeline)
        alone = [element["x"] for element in pipeline]
    assert max(Counter(found).values()) == 1
    assert set(found) >= set(range(40)) | set(range(80, 120))
    assert set(alone) >= set(range(40)) | set(range(80, 120))
    # Row groups of 8 before the damaged one are whole, also where a batch reaches into it.
    assert {x for x in alone if 40 <= x < 80} == set(range(40, min(set(range(40, 80)) - set(alone))))
    assert (min(set(range(40, 80)) - set(alone)) - 40) % 8 == 0


# -- streams that are the same however they are read


def numbered(number: int) -> tuple[int, int]:
    return number, int(feedrate.rng().numpy.integers(1000))


def test_branches_give_one_stream_whatever_lies_between() -> None:
    """Each of these had made the branches read streams of their own, in orders and with numbers of their own."""
    left, right = feedrate.from_items(range(8)).shuffle("all").map(numbered).fork(2)
    for changed in (left.cache(), left.batch(2, collate=list).unbatch(), left.repeat(1)):
        pairs = [(tuple(a), tuple(b)) for a, b in changed.zip(right)]
        assert len(pairs) == 8
        assert all(a == b for a, b in pairs), str(changed)
    for loader in (DataLoader(left.batch(2, collate=list).unbatch().zip(right), 2, collate_fn=list, seed=s) for s in range(3)):
        pairs = [(tuple(a), tuple(b)) for batch in loader for a, b in batch]
        assert sorted(a[0] for a, _ in pairs) == list(range(8))
        assert all(a == b for a, b in pairs)


def test_routed_elements_come_once_whatever_lies_between() -> None:
    even, odd = feedrate.from_items(range(40)).map(numbered).route(lambda pair: pair[1] % 2, [0, 1])
    ways = (
        even.cache().concat(odd),
        even.batch(2, collate=list).unbatch().concat(odd),
        feedrate.mix(even, odd, weights=[1, 1]),
    )
    for way in ways:
        assert sorted(element[0] for element in way) == list(range(40)), str(way)
        batches = DataLoader(way, 4, collate_fn=list)
        assert sorted(element[0] for batch in batches for element in batch) == list(range(40)), str(way)


def test_rounds_within_rounds_have_orders_of_their_own() -> None:
    source = feedrate.from_items(range(8)).shuffle("all")
    nested = feedrate.mix(source.repeat(2), feedrate.from_items([]), weights=[1, 1]).repeat(3)
    for pipeline, rounds in ((nested, 6), (source.repeat(2).repeat(2).repeat(2), 8), (source.repeat(3).repeat(3), 9)):
        found = list(pipeline)
        orders = [tuple(found[at : at + 8]) for at in range(0, len(found), 8)]
        assert len(orders) == rounds
        assert all(sorted(order) == list(range(8)) for order in orders)
        assert len(set(orders)) == rounds


@pytest.mark.parametrize("rows", [1, 4])
def test_a_schedule_counts_the_draws_of_all_lanes(rows: int) -> None:
    first, second = (feedrate.from_items([(name, k) for k in range(4000)]) for name in "ab")
    pipeline = feedrate.mix(first, second, weights={0: [1, 0], 1000: [0, 1]}).lanes(rows=rows)
    names = [name for batch in DataLoader(pipeline, 10, collate_fn=list) for name, _ in batch]
    assert names[:1000].count("a") >= 1000 - 10 * rows
    assert names[1000:3000].count("b") >= 2000 - 10 * rows


class Plain:
    def __call__(self, first: int, number: int) -> int:
        return number


def test_functions_with_objects_bound_to_them_are_equal_in_every_process() -> None:
    """The object's address had been in the definition's fingerprint."""
    import functools

    def made() -> Any:
        return feedrate.from_items(range(3)).map(functools.partial(Plain().__call__, 1)).map(functools.partial(max, object()))

    assert made().fingerprint == made().fingerprint
    assert " at 0x" not in str(made())


# -- what is kept, and what is gone on with


def test_a_cache_is_of_its_files(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")

    def elements(pattern: str = "*.jsonl") -> list[int]:
        return [element["x"] for element in feedrate.open(str(tmp_path / pattern)).map(dict).cache(folder)]

    lines(tmp_path / "b.jsonl", [1, 2, 3])
    assert elements() == [1, 2, 3]
    lines(tmp_path / "a.jsonl", [7, 8, 9])
    assert elements() == [7, 8, 9, 1, 2, 3]
    # Of the same size, at another time.
    lines(tmp_path / "a.jsonl", [4, 5, 6])
    os.utime(tmp_path / "a.jsonl", (1, 1))
    assert elements() == [4, 5, 6, 1, 2, 3]
    other = tmp_path / "other"
    other.mkdir()
    lines(other / "b.jsonl", [11, 12, 13])
    before = os.getcwd()
    try:
        found = []
        for place in (tmp_path, other):
            os.chdir(place)
            found.append([element["x"] for element in feedrate.open("b.jsonl").map(dict).cache(folder)])
    finally:
        os.chdir(before)
    assert found == [[1, 2, 3], [11, 12, 13]]


def test_packing_goes_on_with_the_fields_it_began_with() -> None:
    documents = [{"a": np.arange(3)}, {"a": np.arange(4)}, *({"a": np.arange(3), "b": np.arange(3)} for _ in range(6))]
    pipeline = feedrate.from_items(documents).pack(8)
    whole = [sorted(element) for element in pipeline]
    for cut in range(len(whole)):
        pipeline.set_epoch(0)
        elements = iter(pipeline)
        for _ in range(cut):
            next(elements)
        resumed = iter(pipeline)
        resumed.load_state_dict(json.loads(json.dumps(elements.state_dict())))
        assert [sorted(element) for element in resumed] == whole[cut:]


def test_a_long_document_is_made_once_when_its_pieces_are_taken_up() -> None:
    calls = 0

    def tokens(number: int) -> Any:
        nonlocal calls
        calls += 1
        return {"tokens": np.arange(number, number + 5000)}

    pipeline = feedrate.from_items(range(3)).map(tokens).pack(100)
    elements = iter(pipeline)
    for _ in range(7):
        next(elements)
    state = elements.state_dict()
    rest = [element["tokens"].tolist() for element in elements]
    calls = 0
    pipeline.set_epoch(0)
    resumed = iter(pipeline)
    resumed.load_state_dict(state)
    assert calls == 1
    assert [element["tokens"].tolist() for element in resumed] == rest


def test_bad_elements_before_a_state_count_behind_it() -> None:
    def odd(number: int) -> int:
        if number % 2:
            raise ValueError(number)
        return number

    pipeline = feedrate.from_items(range(20)).map(odd).on_error("skip", at_most=5)
    elements = iter(pipeline)
    for _ in range(4):
        next(elements)
    resumed = iter(pipeline)
    resumed.load_state_dict(elements.state_dict())
    found = []
    with pytest.raises(ValueError, match="11"):
        found.extend(resumed)
    assert found == [8, 10]


def test_the_length_of_a_loader_is_not_told_where_lanes_decide_it(tmp_path: Path) -> None:
    for part in range(8):
        np.save(tmp_path / f"{part}.npy", np.arange(5))
    pipeline = feedrate.open(str(tmp_path / "*.npy"))
    assert len(pipeline.batch(4)) == 10
    with pytest.raises(TypeError, match=r"batch\(4.*makes batches in each of 8 lanes"):
        len(DataLoader(pipeline.batch(4), batch_size=None))
    one = DataLoader(pipeline.batch(4).lanes(rows=1), batch_size=None)
    assert len(one) == len(list(one)) == 10
    outside = DataLoader(pipeline, batch_size=4)
    assert len(outside) == len(list(outside)) == 10


@pytest.mark.parametrize("saved", [1, 3])
def test_what_failed_ahead_is_tried_again_from_a_state(saved: int) -> None:
    """It was kept in the state, so that no function could be mended: each run from that state ended there."""
    bad = True
    reached: list[int] = []

    def function(number: int) -> int:
        reached.append(number)
        if number == 5 and bad:
            raise ValueError("five")
        return number

    pipeline = feedrate.from_items(range(10)).map(function).prefetch(4)
    elements = iter(pipeline)
    found = [next(elements) for _ in range(saved)]
    for _ in range(1000):
        if max(reached) >= saved + 3:
            break
        time.sleep(0.01)
    state = json.loads(json.dumps(elements.state_dict()))
    with pytest.raises(ValueError, match="five"):
        list(elements)
    resumed = iter(pipeline)
    resumed.load_state_dict(state)
    with pytest.raises(ValueError, match="five"):
        list(resumed)
    bad = False
    resumed = iter(pipeline)
    resumed.load_state_dict(state)
    assert found + list(resumed) == list(range(10))


WAITING = """
import sys, time, feedrate
def slow(number):
    print("called", flush=True)
    time.sleep(600)
elements = iter(feedrate.from_items(range(3)).map(slow).prefetch(2))
try:
    next(elements)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    import os
    os._exit(0)
"""


def test_an_interrupt_is_seen_while_a_prefetch_is_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "called\n"
            running.send_signal(signal.SIGINT)
            assert "interrupted" in running.communicate(timeout=60)[0]
        finally:
            running.kill()


def fails_at_1_of_5(number: int) -> int:
    if number % 5 == 1:
        raise ValueError(number)
    return number


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_left_over_beside_a_failure_comes_later(workers: int) -> None:
    """A lane ends in a turn in which another one fails: the turn's batch is lost, and what the lane has left over is not."""
    pipeline = feedrate.from_items(range(20)).map(fails_at_1_of_5).filter(lambda number: number % 3).lanes(rows=3, units=2)

    def loader() -> Any:
        return feedrate.DataLoader(pipeline, batch_size=4, num_workers=workers, workers="thread", seed=1, collate_fn=list)

    def told(batches: Any) -> Any:
        """Batches and errors to the end, and the states before each and behind the last."""
        found, states = [], [made.state_dict()]
        while True:
            try:
                found.append(next(batches))
            except StopIteration:
                return found, states
            except ValueError as error:
                found.append(str(error))
            states.append(made.state_dict())

    made = loader()
    whole, states = told(iter(made))
    assert [8] in whole
    for cut, state in enumerate(states):
        made = loader()
        made.load_state_dict(state)
        assert told(iter(made))[0] == whole[cut:], cut


class Gone:
    """A stream that cannot be begun any more."""

    lost = False

    def __iter__(self) -> Any:
        if self.lost:
            raise OSError("the mount is gone")
        return iter(range(8))


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "workers": "thread"}], ids=["none", "threads"])
def test_lanes_that_cannot_be_opened_say_so_once(workers: dict[str, Any]) -> None:
    """Each its own error, and then they are at their end: who logs errors and goes on gets there."""
    gone = Gone()
    loader = feedrate.DataLoader(feedrate.from_iterable(gone), batch_size=2, **workers)
    gone.lost = True
    for _ in range(2):
        it, errors = iter(loader), 0
        for _ in range(100):
            try:
                next(it)
            except OSError as error:
                assert "the mount is gone" in str(error)
                errors += 1
            except StopIteration:
                break
        assert 1 <= errors <= 8


def read(element: dict[str, Any]) -> str:
    found: str = element["bytes"].decode()
    return found


def files(tmp_path: Path) -> Path:
    source = tmp_path / "in"
    source.mkdir()
    for k in range(6):
        (source / f"f{k}.txt").write_text(f"old {k}")
    return source


def test_a_cache_of_files_sees_each_of_them(tmp_path: Path) -> None:
    """They are parts of many, of which it saw the first and the last name."""
    source = files(tmp_path)
    make = lambda: feedrate.open(str(source), format="files").map(read).cache(str(tmp_path / "cache"))  # noqa: E731
    assert list(make()) == [f"old {k}" for k in range(6)]
    (source / "f2.txt").write_text("entirely new")
    assert list(make())[2] == "entirely new"


def test_a_state_of_files_is_of_all_their_names(tmp_path: Path) -> None:
    source = files(tmp_path)
    make = lambda: feedrate.open(str(source), format="files").map(read)  # noqa: E731
    begun = iter(make())
    for _ in range(3):
        next(begun)
    state = begun.state_dict()
    again = iter(make())
    again.load_state_dict(state)
    assert list(again) == ["old 3", "old 4", "old 5"]
    (source / "f1.txt").unlink()
    (source / "f4b.txt").write_text("4b")
    with pytest.raises(feedrate.ResumeError, match="other data"):
        iter(make()).load_state_dict(state)


def test_a_cache_counts_numbers_in_lists() -> None:
    """A list of numbers counted as nothing, and its limit was none."""
    made: list[int] = []

    def tokens(x: int) -> dict[str, Any]:
        made.append(x)
        return {"ids": list(range(2000))}

    pipeline = feedrate.from_items(range(300)).map(tokens).cache(limit=4 << 20)
    assert [len(element["ids"]) for element in pipeline] == [2000] * 300
    made.clear()
    assert [len(element["ids"]) for element in pipeline] == [2000] * 300
    assert 100 < len(made) < 300
