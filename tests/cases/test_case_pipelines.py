"""What users of other loaders met with shards: distribution, order and resume of pipelines."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
from feedrate import Coordinator, DataLoader, Pipeline

pytestmark = pytest.mark.ours


def write_tar(path: Path, numbers: range) -> None:
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            data = str(number).encode()
            member = tarfile.TarInfo(f"{number:06}.cls")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def shards(folder: Path, sizes: list[int]) -> str:
    start = 0
    for at, size in enumerate(sizes):
        write_tar(folder / f"s{at:03}.tar", range(start, start + size))
        start += size
    return str(folder / "s*.tar")


def number(sample: dict[str, Any]) -> int:
    return int(sample["cls"])


def is_even(x: int) -> bool:
    return x % 2 == 0


def is_small(x: int) -> bool:
    return x < 1000


def batches(pipeline: Pipeline, workers: int, **options: Any) -> list[list[int]]:
    loader = DataLoader(pipeline, num_workers=workers, workers="thread", seed=3, **{"batch_size": 4, **options})
    return [np.asarray(batch).tolist() for batch in loader]


def flat(found: list[list[int]]) -> list[int]:
    return [x for batch in found for x in batch]


WORKERS = pytest.mark.parametrize("workers", [0, 1, 2, 4])


@WORKERS
@pytest.mark.parametrize("kind", ["tar", "jsonl", "tsv"])
def test_each_sample_once_for_any_number_of_workers(kind: str, workers: int, tmp_path: Path) -> None:
    """DIST-01, TFR-03, ORD-07."""
    if kind == "tar":
        pipeline = feedrate.open(shards(tmp_path, [7, 9, 4])).map(number)
    elif kind == "jsonl":
        for part in range(3):
            lines = [json.dumps({"cls": x}) for x in range(part * 7, min(20, part * 7 + 7))]
            (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))
        pipeline = feedrate.open(str(tmp_path / "*.jsonl")).map(number)
    else:
        (tmp_path / "a.tsv").write_text("cls\tx\n" + "".join(f"{x}\t0\n" for x in range(20)))
        pipeline = feedrate.open(str(tmp_path / "a.tsv")).map(number)
    assert sorted(flat(batches(pipeline, workers))) == list(range(20))
    assert sorted(flat(batches(pipeline.shuffle("shards").shuffle(6), workers))) == list(range(20))


@WORKERS
def test_drop_last_drops_one_batch_and_not_one_of_each_worker(workers: int, tmp_path: Path) -> None:
    """DIST-02, ORD-05."""
    pipeline = feedrate.open(shards(tmp_path, [5] * 4)).map(number).shuffle(8)
    assert [len(batch) for batch in batches(pipeline, workers, batch_size=16, drop_last=True)] == [16]
    assert [len(batch) for batch in batches(pipeline, workers, batch_size=16)] == [16, 4]
    assert [len(batch) for batch in batches(pipeline, workers, batch_size=3)] == [3] * 6 + [2]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9])
@pytest.mark.parametrize("batch_size", [1, 4, 8])
@pytest.mark.parametrize("drop_last", [False, True])
def test_len_is_what_is_delivered(size: int, batch_size: int, drop_last: bool) -> None:
    """DIST-03."""
    pipeline = feedrate.from_items(range(size)).shuffle(3)
    loader = DataLoader(pipeline, batch_size=batch_size, drop_last=drop_last)
    assert len(loader) == len(list(loader))
    with pytest.raises(TypeError, match="not known before all is read"):
        len(DataLoader(feedrate.from_items(range(size)).filter(is_even), batch_size=batch_size))


def on_ranks(world: int, make: Any, rounds: int = 1) -> list[list[list[int]]]:
    """The batches of each rank; ranks are threads that meet at every step, as an all_reduce would have them."""
    dist = pytest.importorskip("torch.distributed")
    store, barrier = dist.HashStore(), threading.Barrier(world)
    found: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            loader = make(rank, Coordinator(store, timeout=60, name="case"))
            mine = []
            for batch in loader:
                mask = loader.mask
                mine.append(np.asarray(batch)[: len(mask)][mask].tolist())
                barrier.wait(60)
            found[rank] = mine
        except BaseException as error:
            found[rank] = error
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for rank in found:
        if isinstance(rank, BaseException):
            raise rank
    return found


@pytest.mark.parametrize("remainder", ["pad", "drop", "exact"])
@pytest.mark.parametrize("sizes", [[32], [3, 50, 7, 41]], ids=["one shard", "uneven shards"])
@pytest.mark.parametrize("world", [2, 4])
def test_fewer_or_uneven_shards_give_every_rank_the_same_steps(
    world: int, sizes: list[int], remainder: Any, tmp_path: Path
) -> None:
    """DIST-04, DIST-05, DIST-06."""
    pipeline = feedrate.open(shards(tmp_path, sizes)).map(number)

    def make(rank: int, coordinator: Coordinator) -> DataLoader:
        return DataLoader(pipeline, batch_size=4, distributed=(rank, world), remainder=remainder, coordinator=coordinator)

    ranks = on_ranks(world, make)
    assert len({len(rank) for rank in ranks}) == 1
    samples = [x for rank in ranks for x in flat(rank)]
    assert len(samples) == len(set(samples))
    if remainder != "drop":
        assert sorted(samples) == list(range(sum(sizes)))
    assert all(flat(rank) for rank in ranks)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_a_tiny_stream_on_two_ranks(size: int) -> None:
    """DIST-07, DIST-09. A rank that has had no batch has none to repeat or to empty: that is said, and nobody waits for it."""
    pipeline = feedrate.from_items(range(size)).filter(is_small)

    def make(remainder: Any) -> Any:
        return lambda rank, coordinator: DataLoader(
            pipeline, batch_size=1, distributed=(rank, 2), remainder=remainder, coordinator=coordinator
        )

    dropped = on_ranks(2, make("drop"))
    assert [len(rank) for rank in dropped] == [size // 2] * 2
    if size == 1:
        with pytest.raises(feedrate.Error, match='rank 1 of 2 had no batch.*use remainder="drop"'):
            on_ranks(2, make("pad"))
    else:
        assert sorted(x for rank in on_ranks(2, make("pad")) for x in flat(rank)) == list(range(size))


def test_more_workers_than_shards_are_all_busy_and_so_they_stay_behind_a_shuffle(tmp_path: Path) -> None:
    """DIST-04, DIST-11."""
    busy: dict[int, int] = {}

    def by_worker(sample: dict[str, Any]) -> int:
        worker = feedrate.get_worker_info().id
        busy[worker] = busy.get(worker, 0) + 1
        return number(sample)

    for pipeline in (feedrate.open(shards(tmp_path, [40, 40])), feedrate.open(shards(tmp_path, [40, 40])).shuffle(100)):
        busy.clear()
        assert sorted(flat(batches(pipeline.map(by_worker), 4))) == list(range(80))
        assert len(busy) == 4
        assert max(busy.values()) <= 2 * min(busy.values())


@pytest.mark.parametrize("empty", [0, 1, 2])
@WORKERS
def test_a_mix_is_exact_with_an_empty_stream_anywhere_and_behind_a_shuffle(empty: int, workers: int) -> None:
    """DIST-12, DIST-13."""
    streams: list[list[int]] = [[0, 1], [10]]
    streams.insert(empty, [])
    mixed = feedrate.mix(*map(feedrate.from_items, streams), weights=[1, 1, 1]).seed(42)
    assert sorted(flat(batches(mixed, workers))) == [0, 1, 10]
    three = feedrate.mix(
        *map(feedrate.from_items, ([0, 1, 2], [10, 11, 12, 13], [20, 21, 22])), weights=[0.2, 0.6, 0.2], replacement=True
    ).lanes(rows=1)
    assert set(flat(batches(three.shuffle(1000), workers))) == {0, 1, 2, 10, 11, 12, 13, 20, 21, 22}


def test_a_mix_draws_by_its_weights() -> None:
    """DIST-12: within 3 sigma."""
    n, p = 4000, 0.7
    mixed = feedrate.mix(feedrate.from_items(["a"]).repeat(), feedrate.from_items(["b"]).repeat(), weights=[p, 1 - p])
    count = sum(x == "a" for x in mixed[:n])
    assert abs(count - n * p) < 3 * (n * p * (1 - p)) ** 0.5


@WORKERS
def test_a_shuffle_window_is_part_of_the_state(workers: int, tmp_path: Path) -> None:
    """RES-04, ORD-09: nothing is lost and nothing comes twice, and the order is that of the run that was not stopped."""
    pipeline = feedrate.open(shards(tmp_path, [30, 30])).map(number).shuffle("shards").shuffle(25)
    whole = batches(pipeline, 0)
    for cut in (1, 5, len(whole) - 1):
        loader = DataLoader(pipeline, batch_size=4, seed=3, num_workers=workers, workers="thread")
        iterator = iter(loader)
        begun = [next(iterator).tolist() for _ in range(cut)]
        state = json.loads(json.dumps(loader.state_dict()))
        del iterator
        later = DataLoader(pipeline, batch_size=4, seed=3)
        later.load_state_dict(state)
        assert begun + [batch.tolist() for batch in later] == whole
        assert [batch.tolist() for batch in later] != whole  # the next epoch has another order


def test_files_whose_columns_differ(tmp_path: Path) -> None:
    """PQ-02."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    feather = pytest.importorskip("pyarrow.feather")
    tables = [
        pa.table({"x": pa.nulls(3), "y": [1, 2, 3]}),
        pa.table({"y": [4, 5], "x": ["a", "b"]}),
        pa.table({"y": pa.array([6], pa.int32())}),
    ]
    wanted = [(None, 1), (None, 2), (None, 3), ("a", 4), ("b", 5), (None, 6)]
    for kind in ("parquet", "arrow"):
        folder = tmp_path / kind
        folder.mkdir()
        for at, table in enumerate(tables):
            if kind == "parquet":
                pq.write_table(table, folder / f"{at}.parquet")
            else:
                feather.write_feather(table, str(folder / f"{at}.arrow"))
        files = str(folder / f"*.{kind}")
        rows = feedrate.open(files, unify=True)
        assert [tuple(row.items()) for row in rows] == [(("x", x), ("y", y)) for x, y in wanted]
        assert [row["y"] for row in rows.__getitems__([5, 0])] == [6, 1]
        columns = list(feedrate.open(files, unify=True, columns=["y"]).batch(6))
        assert [str(batch["y"].dtype) for batch in columns] == ["int64"]
        assert columns[0]["y"].tolist() == [1, 2, 3, 4, 5, 6]
        for workers in (0, 2):
            loader = DataLoader(rows, batch_size=2, num_workers=workers, workers="thread", collate_fn=list)
            assert [(row["x"], row["y"]) for batch in loader for row in batch] == wanted
        kept = feedrate.open(files, unify=True, where=("x", "is null"))
        assert [row["y"] for row in kept] == [1, 2, 3, 6]
        kept = feedrate.open(files, unify=True, where=("x", "=", "b"), columns=["y"])
        assert [dict(row) for row in kept] == [{"y": 5}]
        # As they are: no column is dropped, and none is made up.
        assert [sorted(row) for row in feedrate.open(files)] == [["x", "y"]] * 5 + [["y"]]
        assert feedrate.open(files).fingerprint != rows.fingerprint
        for options in ({"columns": ["z"]}, {"where": ("z", "=", 1)}):
            with pytest.raises(feedrate.PipelineError, match='"z"'):
                list(feedrate.open(files, unify=True, **options))
        later = folder / f"3.{kind}"
        conflict = pa.table({"x": [1.5], "y": [7]})
        if kind == "parquet":
            pq.write_table(conflict, later)
        else:
            feather.write_feather(conflict, str(later))
        with pytest.raises(feedrate.PipelineError, match=rf"(?s)3\.{kind}.*column x.*1\.{kind}"):
            list(feedrate.open(files, unify=True))
        # Columns that nobody wants may differ.
        assert [row["y"] for row in feedrate.open(files, unify=True, columns=["y"])] == [1, 2, 3, 4, 5, 6, 7]


def test_empty_row_groups_and_files(tmp_path: Path) -> None:
    """PQ-03."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    schema = pa.schema([("x", pa.int64())])
    pq.ParquetWriter(tmp_path / "0.parquet", schema).close()
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "1.parquet")
    with pq.ParquetWriter(tmp_path / "2.parquet", schema) as writer:
        for values in ([1], [], [2]):
            writer.write_table(pa.table({"x": pa.array(values, pa.int64())}))
    rows = feedrate.open(str(tmp_path / "*.parquet"))
    assert [row["x"] for row in rows] == [1, 2]
    for workers in (0, 2):
        assert sorted(
            flat([b["x"].tolist() for b in DataLoader(rows.filter(bool), batch_size=2, num_workers=workers, workers="thread")])
        ) == [1, 2]
    (tmp_path / "3.parquet").write_bytes(b"")
    with pytest.raises(feedrate.PipelineError, match=r"3\.parquet"):
        list(feedrate.open(str(tmp_path / "*.parquet")))
    only = feedrate.open([str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")])
    assert (len(only), list(only)) == (0, [])
