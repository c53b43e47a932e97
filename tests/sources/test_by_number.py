"""Every format whose records are found by number: one at a time, in lists, shuffled, and in loaders, against reading it in order."""

from __future__ import annotations

import collections
import csv
import io
import json
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
import feedrate.torch

pytestmark = pytest.mark.ours

#: Records of the shards.
SIZES = (7, 1, 12)


def tar(path: Path, numbers: range, *, scattered: bool = False) -> None:
    members = [(f"{i:03}.{e}", e, i) for i in numbers for e in ("txt", "cls")]
    if scattered:
        members.sort(key=lambda member: member[1])
    with tarfile.open(path, "w") as archive:
        for name, _, i in members:
            member = tarfile.TarInfo(name)
            data = str(i).encode() * (1 + 100 * (i % 7))
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def lines(path: Path, numbers: range) -> None:
    path.write_text("".join(json.dumps({"n": i, "text": "x" * (i * 37 % 90)}) + "\n" for i in numbers))


def table(path: Path, numbers: range) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("n", "text"), *((i, "x" * (i * 37 % 90)) for i in numbers)])


def parquet(path: Path, numbers: range) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"n": list(numbers), "text": [f"t{i}" for i in numbers]}), path, row_group_size=5)


def arrow(path: Path, numbers: range) -> None:
    pa = pytest.importorskip("pyarrow")
    data = pa.table({"n": list(numbers)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, data.schema) as writer:
        writer.write_table(data, max_chunksize=4)


def tfrecord(path: Path, numbers: range) -> None:
    writer = pytest.importorskip("tfrecord").TFRecordWriter(str(path))
    for i in numbers:
        writer.write({"n": (i, "int"), "text": (b"x" * (i * 37 % 90), "byte")})
    writer.close()


def hdf5(path: Path, numbers: range) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file["n"] = np.asarray(numbers)


def npy(path: Path, numbers: range) -> None:
    np.save(path, np.asarray(numbers, np.float32)[:, None] * np.ones(3, np.float32))


def files(path: Path, numbers: range) -> None:
    path.mkdir()
    for i in numbers:
        (path / f"{i:03}.bin").write_bytes(str(i).encode())


#: How it is written, the ending, and how it is opened.
FORMATS = {
    "tar": (tar, "tar", {"index": True}),
    "tar beside": (tar, "tar", {"index": "beside"}),
    "tar fields": (tar, "tar", {"index": True, "fields": ["cls"]}),
    "tar whole": (tar, "tar", {"index": True, "grouping": "whole"}),
    "tar scattered": (lambda path, numbers: tar(path, numbers, scattered=True), "tar", {"index": True, "grouping": "scattered"}),
    "jsonl": (lines, "jsonl", {"index": True}),
    "csv": (table, "csv", {"index": True}),
    "tfrecord": (tfrecord, "tfrecord", {"index": True}),
    "parquet": (parquet, "parquet", {}),
    "arrow": (arrow, "arrow", {}),
    "hdf5": (hdf5, "h5", {}),
    "npy": (npy, "npy", {}),
    "files": (files, "d", {}),
}


def plain(value: Any) -> Any:
    """Something to compare and to count."""
    if isinstance(value, dict):
        return tuple((name, plain(item)) for name, item in value.items())
    return tuple(value.ravel().tolist()) if hasattr(value, "ravel") else value


@pytest.mark.parametrize("name", FORMATS)
def test_each_way_gives_the_same_records(name: str, tmp_path: Path) -> None:
    write, ending, options = FORMATS[name]
    first = 0
    for shard, size in enumerate(SIZES):
        write(tmp_path / f"s{shard}.{ending}", range(first, first + size))
        first += size
    path = str(tmp_path) if name == "files" else str(tmp_path / f"s*.{ending}")

    def opened() -> Any:
        return feedrate.open(path, **options)

    want = [plain(record) for record in opened()]
    count = len(want)
    assert count == len(opened()) == len(set(want)) > 0
    # In new pipelines, and in one that has been elsewhere; none of the lists begins with a shard's first record.
    assert [plain(opened()[i]) for i in range(0, count, 3)] == want[::3]
    pipeline = opened()
    order = random.Random(1).choices(range(count), k=3 * count)
    assert [plain(pipeline[i]) for i in order] == [want[i] for i in order]
    assert plain(pipeline[-1]) == want[-1]
    for indices in ([3], [5, 3, 3, 4], list(range(2, count)), [count - 1, 10, 9, 2]):
        assert [plain(record) for record in opened().__getitems__(indices)] == [want[i] for i in indices]
    assert [plain(record) for record in opened().skip(3)] == want[3:]
    assert sorted(plain(record) for record in opened().shuffle("all").seed(3)) == sorted(want)
    for loader in (feedrate.DataLoader, feedrate.torch.DataLoader):
        for workers in (0, 2):
            batches = loader(opened(), batch_size=4, shuffle=True, num_workers=workers, workers="thread", collate_fn=list)
            found = collections.Counter(plain(record) for batch in batches for record in batch)
            assert found == collections.Counter(want), (loader, workers)


@pytest.mark.parametrize("name", ["tar", "tar beside", "tar scattered", "jsonl", "csv", "tfrecord"])
def test_an_index_is_not_used_on_a_file_that_has_changed(name: str, tmp_path: Path) -> None:
    """Else records would be cut out of the middle of others. A new pipeline indexes it anew."""
    write, ending, options = FORMATS[name]
    path = tmp_path / f"s.{ending}"
    write(path, range(12))
    pipeline = feedrate.open(str(path), **options)
    shuffled = pipeline.shuffle("all").seed(1)
    assert len(list(shuffled)) == 12
    later = tmp_path / "later"
    write(later, range(100, 130))
    later.replace(path)
    with pytest.raises(
        feedrate.PipelineError, match=rf"s\.{ending}.* has changed since it was indexed: it had \d+ bytes, and has \d+ now"
    ):
        list(shuffled)
    # The same size, another time.
    anew = feedrate.open(str(path), **options)
    assert sorted(map(plain, anew)) == sorted(map(plain, anew.shuffle("all").seed(1)))
    os.utime(path, (1, 1))
    with pytest.raises(feedrate.PipelineError, match="as many, of another time"):
        list(anew.shuffle("all").seed(2))


def test_where_an_index_is_stored(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    tar(shard, range(5))
    for folder in (tmp_path / "indexes", str(tmp_path / "others")):
        assert len(feedrate.open(shard, index=folder)) == 5
        assert len(list(Path(folder).iterdir())) == 1
    with pytest.raises(NotADirectoryError, match=r'index=".*a\.tar" is a file: give a folder'):
        feedrate.open(shard, index=shard)
