"""What a trial of the steps found: elements side by side, batches taken apart, caches told apart, bad elements counted once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
import feedrate.torch
from feedrate import DataLoader, Pipeline, from_items
from feedrate.image import Transform

pytestmark = pytest.mark.ours


def bad_at(*numbers: int) -> Any:
    def function(x: int) -> int:
        if x in numbers:
            raise ValueError(f"{x} is bad")
        return x

    return function


def going_on(iterator: Any) -> list[Any]:
    """What comes, with errors as their texts."""
    found: list[Any] = []
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            found.append(str(error).splitlines()[0])


# -- zip


@pytest.mark.parametrize("bad", [(0,), (3,), (7,), (2, 3), tuple(range(8))])
def test_zip_stays_side_by_side(bad: tuple[int, ...]) -> None:
    left, right = from_items(range(8)), from_items(range(10, 18))
    expected = [[x, x + 10] for x in range(8) if x not in bad]
    for pipeline in (
        left.map(bad_at(*bad)).zip(right),
        left.zip(right.map(bad_at(*(x + 10 for x in bad)))),
        left.map(bad_at(*bad)).zip(right.map(bad_at(*(x + 10 for x in bad)))),
    ):
        assert [list(pair) for pair in pipeline.on_error("skip")] == expected
        raised = going_on(iter(pipeline))
        assert [x for x in raised if not isinstance(x, str)] == expected
        assert len(raised) == 8
        loader = DataLoader(pipeline.on_error("skip").lanes(rows=1), batch_size=None, num_workers=2, workers="thread")
        assert [list(pair) for pair in loader] == expected
        assert len(loader.skipped) == len(bad)


def test_zip_of_branches_stays_side_by_side() -> None:
    left, right = from_items(range(8)).fork()
    pairs = left.zip(right.map(bad_at(3, 4))).on_error("skip")
    assert [list(pair) for pair in pairs] == [[x, x] for x in range(8) if x not in (3, 4)]


def test_zip_ends_where_a_shard_cannot_be_read_further(tmp_path: Path) -> None:
    for name, rows in (("a", 3), ("b", 3)):
        (tmp_path / f"{name}.csv").write_text("x\n" + "".join(f"{name}{i}\n" for i in range(rows)))
    # Quotes that do not close: how many rows are lost nobody knows.
    (tmp_path / "a.csv").write_text('x\na0\n"a1\n')
    rows = feedrate.open([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]).zip(from_items(range(5))).on_error("skip")
    elements = iter(rows)
    assert next(elements) == [{"x": "a0"}, 0]
    with pytest.raises(feedrate.PipelineError, match=r"a\.csv"):
        next(elements)


# -- batches taken apart


@pytest.mark.parametrize(
    "items",
    [
        [(1, 10), (2, 20), (3, 30), (4, 40), (5, 50)],
        [(i, f"t{i}") for i in range(5)],
        [("a", "b"), ("c", "d"), ("e", "f")],
        ["a", "b", "c"],
        [{"box": [i, i + 1], "name": str(i)} for i in range(5)],
        [{"deep": ({"x": i}, [i, (i, str(i))])} for i in range(5)],
        [np.full(3, i) for i in range(5)],
        [[np.full(2, i), np.full(3, i)] for i in range(5)],
    ],
)
def test_unbatch_gives_what_went_in(items: list[Any]) -> None:
    def plain(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: plain(value) for name, value in x.items()}
        if isinstance(x, list | tuple):
            return [plain(value) for value in x]
        return x.tolist() if isinstance(x, np.ndarray | np.generic) else x

    expected = [plain(x) for x in items]
    source = from_items(items)
    for pipeline in (
        source.batch(2).unbatch(),
        source.batch(4).take(9).filter(lambda _: True).unbatch(),
        source.batch(3).cache().unbatch(),
        source.batch(2).rebatch(3).unbatch(),
        source.bucket_batch(lambda _: 1, [5], 2).unbatch(),
    ):
        assert [plain(x) for x in pipeline] == expected, str(pipeline)
        # Taken up within a batch.
        elements = iter(pipeline)
        next(elements)
        resumed = iter(pipeline)
        resumed.load_state_dict(json.loads(json.dumps(elements.state_dict())))
        assert [plain(x) for x in resumed] == expected[1:]


def test_unbatch_of_lists_that_a_function_made() -> None:
    rows = from_items([[np.arange(2), np.arange(3)], [np.arange(4)]]).map(list).unbatch()
    assert [row.tolist() for row in rows] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_unbatch_of_columns_of_lists(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    # Two rows, and lists of two: rows and entries cannot be told apart by their numbers.
    pq.write_table(pa.table({"l": [[0, 1], [2, 3]]}), tmp_path / "l.parquet")
    rows = feedrate.open(str(tmp_path / "l.parquet")).batch(2).unbatch()
    assert [row["l"].tolist() for row in rows] == [[0, 1], [2, 3]]


def test_batches_over_files_of_other_columns(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": [4, 5, 6], "b": [7, 8, 9]}), tmp_path / "1.parquet")
    for pattern in ("*.parquet", "[10].parquet"):
        rows = feedrate.open(sorted(map(str, tmp_path.glob(pattern)), reverse=pattern[0] == "["))
        with pytest.raises(feedrate.PipelineError, match="column `b` is .* in the next: unify=True"):
            list(iter(rows.batch(4)))
    united = list(feedrate.open(str(tmp_path / "*.parquet"), unify=True).batch(4))
    assert [list(batch["b"]) for batch in united] == [[None, None, None, 7], [8, 9]]


def test_padding_refuses_what_it_would_lose() -> None:
    rows = from_items([{"x": np.arange(2)}, {"x": np.arange(3), "y": 1}])
    for pipeline in (rows.padded_batch(2), rows.bucket_batch(lambda _: 1, [5], 2, pad=True)):
        with pytest.raises(feedrate.PipelineError, match="element 1 of the batch has the field `y`, which the first one lacks"):
            next(iter(pipeline))
    named = from_items([{"x_length": 1, "x": np.arange(2)}])
    with pytest.raises(feedrate.PipelineError, match="there is a field of that name: rename it"):
        next(iter(named.padded_batch(1)))


def test_lists_of_python_data_become_values() -> None:
    pairs = from_items([0, 1, 2, 3]).zip(from_items([10, 11, 12, 13]))
    assert [[x.tolist() for x in batch] for batch in pairs.batch(2)] == [[[0, 1], [10, 11]], [[2, 3], [12, 13]]]
    cached = pairs.cache()
    assert list(cached) == list(cached) == [[0, 10], [1, 11], [2, 12], [3, 13]]


@pytest.mark.parametrize("scalar", [np.int64, np.float32, np.uint8])
def test_keys_may_be_scalars_of_numpy(scalar: Any) -> None:
    items = from_items([3, 1, 2])
    assert list(items.sort_within(3, lambda x: scalar(x))) == [1, 2, 3]
    assert [b.tolist() for b in items.bucket_batch(lambda x: scalar(x), [2], 2)] == [[3, 2], [1]]
    assert [b.tolist() for b in items.budget_batch(6, lambda x: np.prod(np.ones(x).shape, dtype=scalar))] == [[3, 1], [2]]


# -- caches


def upper(data: bytes) -> str:
    return data.decode().upper()


def test_caches_tell_decoders_and_transforms_apart(tmp_path: Path) -> None:
    texts, folder = from_items([{"txt": b"abc"}]), tmp_path / "texts"
    found = [
        next(iter(step.cache(folder)))["txt"] for step in (texts.decode("txt"), texts.decode(txt=upper), texts.decode(txt=len))
    ]
    assert found == ["abc", "ABC", 3]
    images, folder = from_items([np.zeros((8, 8, 3), np.uint8)]), tmp_path / "images"
    sizes = [next(iter(images.map(Transform().resize(size)).cache(folder))).shape[0] for size in (4, 6)]
    assert sizes == [4, 6]


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_cache_sees_that_its_shard_was_rewritten(tmp_path: Path, place: str) -> None:
    shard = tmp_path / "a.jsonl"
    shard.write_text('{"x": 1}\n')
    pipeline = feedrate.open(str(shard)).map(dict).cache(tmp_path / "c" if place == "disk" else None)
    assert list(pipeline) == list(pipeline) == [{"x": 1}]
    shard.write_text('{"x": 22}\n')
    assert list(pipeline) == [{"x": 22}]


FILES = """
import os, sys, feedrate
made = []
pipeline = feedrate.from_items(range(80)).map(lambda x: made.append(x) or bytes(10)).cache(sys.argv[1])
for run in range(80):
    if (child := os.fork()) == 0:
        assert len(list(pipeline.take(run + 1))) == run + 1 and made == [run]
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert len(os.listdir(sys.argv[1])) == 80
assert list(pipeline) == list(pipeline) == [bytes(10)] * 80 and made == []
links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
assert 1 <= sum(link.endswith(".cache") for link in links) <= 33, links
os.remove(os.path.join(sys.argv[1], sorted(os.listdir(sys.argv[1]))[0]))
again = feedrate.from_items(range(80)).map(lambda x: made.append(x) or bytes(10)).cache(sys.argv[1])
assert list(again) == list(again) == [bytes(10)] * 80 and len(made) == 1, made
"""


def test_a_cache_that_many_processes_wrote_keeps_few_files_open(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FILES, str(tmp_path / "c")], check=True, timeout=120)


FULL = """
import resource, sys, feedrate
made = []
pipeline = feedrate.from_items(range(6)).map(lambda x: made.append(x) or bytes([x]) * 10_000).cache(sys.argv[1])
if len(sys.argv) == 3:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (25_000, hard))
    try:
        list(pipeline)
        raise AssertionError
    except feedrate.PipelineError as error:
        assert sys.argv[1] in str(error), error
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert made == [0, 1, 2]
assert list(pipeline) == [bytes([x]) * 10_000 for x in range(6)]
print(made)
"""


def test_a_cache_whose_disk_was_full_is_whole(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, "-c", FULL, str(tmp_path / "c"), *words]
        return subprocess.run(command, check=True, timeout=120, stdout=subprocess.PIPE, text=True).stdout

    assert run("full") == "[0, 1, 2, 2, 3, 4, 5]\n"
    assert run() == "[]\n"


def test_a_log_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    pipeline = from_items(range(6)).map(bad_at(2)).on_error("skip", log=tmp_path / "no" / "log.jsonl")
    with pytest.warns(RuntimeWarning, match=r"log\.jsonl'\): bad elements are not written down: .*No such file or directory"):
        assert list(pipeline) == [0, 1, 3, 4, 5]
    loader = DataLoader(pipeline, batch_size=5)
    with pytest.warns(RuntimeWarning, match="bad elements are not written down"):
        assert [batch.tolist() for batch in loader] == [[0, 1, 3, 4, 5]]
    assert len(loader.skipped) == 1


# -- limits


def test_more_than_there_can_be() -> None:
    rows = from_items([{"x": np.arange(3)}])
    with pytest.raises(feedrate.PipelineError, match="no memory for 9223372036854775808 bytes"):
        next(iter(rows.pack(1 << 60)))
    many = from_items(range(3)).repeat(2**62)
    with pytest.raises(TypeError, match="not known"):
        len(many.concat(many))


STUCK = """
import sys, threading, feedrate
never, reached = threading.Event(), threading.Event()
def work(x):
    if x == 3:
        reached.set()
        never.wait()
    return x
steps = feedrate.from_items(range(9)).map(work)
elements = iter(steps.prefetch(4) if sys.argv[1] == "prefetch" else steps.join(feedrate.from_items([]), ahead=4))
next(elements)
reached.wait()
"""


@pytest.mark.parametrize("step", ["prefetch", "join"])
def test_a_process_ends_though_a_function_that_runs_ahead_is_stuck(step: str) -> None:
    subprocess.run([sys.executable, "-c", STUCK, step], check=True, timeout=120)


# -- bad elements


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_elements_behind_the_last_batch_are_told(tmp_path: Path, workers: int) -> None:
    log = tmp_path / "log.jsonl"
    pipeline = from_items(range(40)).map(bad_at(*range(30, 40))).lanes(rows=1).on_error("skip", log=log)
    loader = DataLoader(pipeline, batch_size=10, num_workers=workers, workers="thread")
    assert [batch.tolist() for batch in loader] == [list(range(at, at + 10)) for at in (0, 10, 20)]
    assert len(loader.skipped) == len(log.read_text().splitlines()) == 10
    strict = DataLoader(
        from_items(range(9)).map(bad_at(*range(9))).on_error("skip", at_most=2),
        batch_size=3,
        num_workers=workers,
        workers="thread",
    )
    batches = iter(strict)
    with pytest.raises(feedrate.PipelineError, match="9 bad elements were left out"):
        next(batches)
    assert next(batches, None) is None
    assert len(strict.skipped) == 9


@pytest.mark.parametrize("ranks", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_bad_elements_are_counted_once_across_a_resume(tmp_path: Path, ranks: bool, rows: int) -> None:
    bad = (4, 17, 29, 46, 58, 59)

    def make(log: Path | None = None) -> Any:
        pipeline = from_items(range(60)).map(bad_at(*bad)).lanes(rows=rows).on_error("skip", at_most=len(bad), log=log)
        more = {"distributed": (0, 1)} if ranks else {}
        return DataLoader(pipeline, batch_size=4, **more)

    whole = [batch.tolist() for batch in make()]
    for cut in range(len(whole) + 1):
        log = tmp_path / f"{cut}.jsonl"
        first = make(log)
        batches = iter(first)
        for _ in range(cut):
            next(batches)
        state = json.loads(json.dumps(first.state_dict()))
        second = make(log)
        second.load_state_dict(state)
        assert [batch.tolist() for batch in second] == whole[cut:]
        assert len(first.skipped) + len(second.skipped) == len(bad), cut
        assert len(log.read_text().splitlines()) == len(bad)


def test_an_error_counts_when_it_is_raised(tmp_path: Path) -> None:
    """Ranks take some ahead: a state behind an error lost the batches between it and the next error."""
    pipeline = from_items(range(30)).filter(lambda _: True).map(bad_at(6, 12)).lanes(rows=1)
    make = lambda: DataLoader(pipeline, batch_size=3, distributed=(0, 1))  # noqa: E731
    whole = going_on(iter(make()))
    assert [x if isinstance(x, str) else x.tolist() for x in whole][2:5] == ["6 is bad", [7, 8, 9], "12 is bad"]
    for cut in range(1, len(whole)):
        loader = make()
        batches = iter(loader)
        for _ in range(cut):
            try:
                next(batches)
            except ValueError:
                pass
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        rest = [x if isinstance(x, str) else x.tolist() for x in going_on(iter(resumed))]
        assert rest == [x if isinstance(x, str) else x.tolist() for x in whole[cut:]], cut


@pytest.mark.parametrize("make", [DataLoader, feedrate.torch.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("indexed", [False, True])
def test_asking_goes_on_behind_an_error(make: Any, workers: int, indexed: bool) -> None:
    items = from_items(range(20)).map(bad_at(2, 9))
    loader = make(items if indexed else items.filter(lambda _: True), batch_size=4, num_workers=workers)
    expected = [x if isinstance(x, str) else x.tolist() for x in going_on(iter(loader))]
    found: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            batch = iterator.try_next()
        except StopIteration:
            break
        except Exception as error:
            found.append(str(error).splitlines()[0])
            continue
        if batch is not feedrate.NOT_READY:
            found.append(batch.tolist())
    assert found == expected


# -- definitions


def test_long_chains_have_states_that_load() -> None:
    total = from_items([0])
    for at in range(1, 150):
        total = total + from_items([at])
    chain = from_items(range(50))
    for _ in range(150):
        chain = chain.filter(lambda _: True)
    for pipeline in (total, chain):
        loader = DataLoader(pipeline.lanes(rows=1), batch_size=10)
        batches = iter(loader)
        first = next(batches)
        resumed = DataLoader(pipeline.lanes(rows=1), batch_size=10)
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert [*first.tolist(), *(x for batch in resumed for x in batch.tolist())] == list(pipeline)


def test_a_chain_that_is_too_long_is_refused() -> None:
    chain = from_items(range(3))
    with pytest.raises(ValueError, match="at most 200 steps in a row"):
        for _ in range(300):
            chain = chain.filter(bool)


def test_a_sum_is_one_step() -> None:
    a, b, c = (from_items([x]) for x in "abc")
    assert str(a + b + c) == str(a.concat(b, c))
    assert list(a + (b + c)) == ["a", "b", "c"]
    with pytest.raises(TypeError, match="unsupported operand"):
        a + 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("define", "error", "message"),
    [
        (lambda p: p.zip(range(8)), TypeError, r"zip\(\) takes pipelines, each an argument of its own, but got range"),
        (lambda p: p.concat([p, p]), TypeError, r"concat\(\) takes pipelines, each an argument of its own, but got list"),
        (lambda p: p.interleave([p]), TypeError, r"interleave\(\) takes pipelines"),
        (lambda p: p[[1, 2]], TypeError, "a list of indices has no element"),
        (lambda p: p["a"], TypeError, "an index is a whole number or a slice, but got 'a'"),
        (lambda p: p[-3:], TypeError, "slices go from a start to a stop, both from 0 on"),
        (lambda p: p.seed(-1), ValueError, r"seed\(\) takes a whole number from 0 on, but got -1"),
        (lambda p: p.bucket_batch(len, 4, 2), TypeError, "takes a list of boundaries, but got 4"),
        (lambda p: p.on_error("skip", at_most=-1), ValueError, "from 0 on, but got -1"),
        (lambda p: p.on_error("skip", at_most="2"), TypeError, "a whole number, but got '2'"),
        (lambda p: p.select("a", a="b"), ValueError, "gives two fields the name 'a'"),
        (lambda p: p.rename(a="x", b="x"), ValueError, "gives a field two names"),
    ],
)
def test_definitions_that_cannot_be(define: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        define(from_items(range(4)))


def test_renaming_loses_no_field() -> None:
    rows = from_items([{"a": 1, "b": 2}])
    with pytest.raises(ValueError, match="'b' cannot be called 'a', since there is a field of that name"):
        list(rows.rename(a="b"))
    with pytest.raises(KeyError, match="no field 'zz' to rename"):
        list(rows.rename(c="zz"))
    assert list(rows.rename(a="b", b="a")) == [{"b": 1, "a": 2}]


def test_paths_are_followed_in_columns_of_images_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    row = {"txt": {"bytes": None, "path": str(secret)}}
    assert list(from_items([row]).decode()) == [row]
    assert list(from_items([row]).decode("txt")) == [row]


def test_an_iteration_that_was_resumed_counts_its_epoch() -> None:
    def made() -> Pipeline:
        return from_items(range(20)).shuffle(5)

    epochs = made()
    orders = [list(epochs) for _ in range(4)]
    stopped = made()
    stopped.set_epoch(2)
    elements = iter(stopped)
    head = [next(elements) for _ in range(7)]
    fresh = made()
    resumed = iter(fresh)
    resumed.load_state_dict(elements.state_dict())
    assert head + list(resumed) == orders[2]
    assert list(fresh) == orders[3]
