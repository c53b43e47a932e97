"""Files that other tools wrote are read as their own readers read them, sample by sample."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
from feedrate import DataLoader, PipelineError


def same(found: Any, wanted: Any, where: str = "") -> None:
    """Equal in content and in type."""
    if isinstance(wanted, np.ndarray):
        assert isinstance(found, np.ndarray), where
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
        np.testing.assert_array_equal(found, wanted, where)
    elif isinstance(wanted, dict):
        assert set(found) == set(wanted), where
        for name in wanted:
            same(found[name], wanted[name], f"{where}.{name}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for i, pair in enumerate(zip(found, wanted, strict=True)):
            same(*pair, f"{where}[{i}]")
    else:
        assert type(found) is type(wanted) and found == wanted, (where, found, wanted)


# -- tar


def test_webdatasets_writer_and_reader(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    pattern = str(tmp_path / "shard-%04d.tar")
    rng = np.random.default_rng(0)
    with wds.ShardWriter(pattern, maxcount=7, verbose=0) as sink:
        for i in range(30):
            sink.write(
                {
                    "__key__": f"part/{i:05d}",
                    "jpg": rng.bytes(i * 31),
                    "cls": i % 5,
                    "json": {"i": i, "tags": ["a", None, 1.5]},
                    "seg.png": b"seg",
                    "txt": "ž" * i,
                }
            )
    shards = sorted(map(str, tmp_path.glob("*.tar")))
    assert len(shards) == 5
    wanted = list(wds.WebDataset(shards, shardshuffle=False))
    found = list(feedrate.open(str(tmp_path / "shard-{0000..0004}.tar")))
    names = [name for name in wanted[0] if not name.startswith("__")]
    assert len(found) == len(wanted) == 30
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours["__key__"] == theirs["__key__"]
        assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}
    decoded = list(wds.WebDataset(shards, shardshuffle=False).decode())
    for ours, theirs in zip(feedrate.open(shards).decode("cls", "json", "txt"), decoded, strict=True):
        assert [ours[n] for n in ("cls", "json", "txt")] == [theirs[n] for n in ("cls", "json", "txt")]


@pytest.mark.parametrize("format", ["v7", "oldgnu", "gnu", "ustar", "pax"])
def test_plain_tar(format: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    wanted = {}
    for i in range(12):
        name = f"{i:03}" if format in ("v7", "ustar") or i % 4 else f"{'long' * 40}{i:03}"
        for extension, data in (("bin", bytes([i]) * (i * 700)), ("txt", str(i).encode())):
            (folder / f"{name}.{extension}").write_bytes(data)
            wanted.setdefault(name, {})[extension] = data
    archive = tmp_path / "a.tar"
    names = sorted(path.name for path in folder.iterdir())
    subprocess.run(["tar", f"--format={format}", "-cf", archive, "-C", folder, *names], check=True)
    found = {sample["__key__"]: {"bin": sample["bin"], "txt": sample["txt"]} for sample in feedrate.open(str(archive))}
    assert found == wanted
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(archive.read_bytes()))
    assert len(list(feedrate.open(str(tmp_path / "a.tar.gz")))) == 12
    indexed = feedrate.open(str(archive), index=True)
    assert len(indexed) == 12
    assert [s["txt"] for s in indexed.__getitems__([11, 0, 5])] == [s["txt"] for s in map(list(indexed).__getitem__, (11, 0, 5))]


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def test_a_shard_that_is_cut_off_gives_whole_samples_only(tmp_path: Path) -> None:
    """TAR-01."""
    whole = tmp_path / "a.tar"
    write_tar(whole, [(f"{i:03}.{e}", b"x" * 3000) for i in range(5) for e in ("jpg", "cls")])
    data = whole.read_bytes()
    write_tar(tmp_path / "b.tar", [("9.jpg", b"y"), ("9.cls", b"z")])
    for cut in (len(data) // 2 + 100, 512 * 7, 512 * 8, 100):
        (tmp_path / "cut.tar").write_bytes(data[:cut])
        with pytest.raises(PipelineError, match=r"cut\.tar"):
            list(feedrate.open(str(tmp_path / "cut.tar"), format="tar"))
        both = feedrate.open([str(tmp_path / "cut.tar"), str(tmp_path / "b.tar")], format="tar").on_error("skip")
        samples = list(both)
        assert samples[-1]["__key__"] == "9"
        assert all(len(s["jpg"]) == len(s["cls"]) == 3000 for s in samples[:-1])
    (tmp_path / "cut.tar").write_bytes(data[: len(data) - 1024])
    assert len(list(feedrate.open(str(tmp_path / "cut.tar")))) == 5


def test_the_same_key_twice(tmp_path: Path) -> None:
    """TAR-02."""
    write_tar(tmp_path / "c.tar", [("0.jpg", b"1"), ("0.txt", b"1"), ("0.jpg", b"22"), ("1.jpg", b"1")])
    for i in (0, 1):
        write_tar(tmp_path / f"d{i}.tar", [("x.jpg", b"1%d" % i)])
    with pytest.raises(PipelineError, match=r"c\.tar.*0\.jpg|c\.tar.*jpg"):
        list(feedrate.open(str(tmp_path / "c.tar")))
    assert [s["__key__"] for s in feedrate.open(str(tmp_path / "c.tar")).on_error("skip")] == ["1"]
    assert next(iter(feedrate.open(str(tmp_path / "c.tar"), duplicates="last")))["jpg"] == b"22"
    assert [s["jpg"] for s in feedrate.open(str(tmp_path / "d*.tar"))] == [b"10", b"11"]


# -- Parquet and Arrow


def table(pa: Any) -> Any:
    return pa.table(
        {
            "i": pa.array([1, 2, None, 4, 5], pa.int32()),
            "f": pa.array([0.5, 1.5, 2.5, 3.5, 4.5], pa.float32()),
            "s": pa.array(["a", "ž", "", None, "e"]),
            "b": pa.array([b"x", b"", b"yz", b"q", None]),
            "l": pa.array([[1, 2], [], [3], None, [4, 5, 6]], pa.list_(pa.int64())),
            "d": pa.array([{"u": 1, "v": "x"}, None, {"u": None, "v": "y"}, {"u": 4, "v": None}, {"u": 5, "v": "z"}]),
            "t": pa.array([True, False, None, True, False]),
        }
    )


def plain(value: Any) -> Any:
    """Lists of whole numbers come as arrays."""
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "lz4"])
def test_parquet_of_pyarrow(codec: str, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "a.parquet")
    pq.write_table(table(pa), path, compression=codec, row_group_size=2)
    wanted = pq.read_table(path).to_pylist()
    rows = feedrate.open(path)
    assert len(rows) == 5
    assert [{name: plain(value) for name, value in row.items()} for row in rows] == wanted
    assert plain(rows[4]["l"]) == [4, 5, 6]
    assert [row["f"] for row in feedrate.open(path, columns=["f"], where=("i", ">", 1))] == [1.5, 3.5, 4.5]
    assert [row["s"] for row in feedrate.open(path, where=["or", ("i", "is null"), ("s", "=", "e")])] == ["", "e"]


def test_rows_are_chosen_as_pyarrow_chooses_them(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(3)
    columns = {
        "i": [None if v == 3 else int(v) for v in rng.integers(0, 9, 400)],
        "f": [None if v == 3 else float(v) / 2 for v in rng.integers(0, 9, 400)],
        "s": [None if v == 3 else "abcdefghi"[v] for v in rng.integers(0, 9, 400)],
        "n": list(range(400)),
    }
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table(columns), path, row_group_size=37)
    conditions: list[Any] = [
        ("i", "in", [1, 2, 8]),
        ("i", "in", {0}),
        ("i", "in", range(20, 30)),
        ("i", "not in", (1, 2)),
        ("f", "in", [0.5, 2]),
        ("f", "not in", [0.5, 2]),
        ("s", "in", ["a", "zz", "h"]),
        ("s", "not in", ["a"]),
        [("i", "in", [1, 2, 3]), ("s", ">", "c"), ("n", "in", list(range(0, 400, 3)))],
    ]
    for where in conditions:
        wanted = pq.read_table(path, filters=where if isinstance(where, list) else [where])
        rows = wanted["n"].to_pylist()
        if isinstance(where, tuple) and where[1] == "not in":
            # Arrow takes a null for one that is not in the list; here, as in SQL, that is unknown.
            rows = [n for n in rows if columns[where[0]][n] is not None]
        assert [row["n"] for row in feedrate.open(path, where=where)] == rows, where
    assert not list(feedrate.open(path, where=("i", "in", [])))
    there = [n for n in range(400) if columns["i"][n] is not None]
    assert [row["n"] for row in feedrate.open(path, where=("i", "is not null"))] == there
    assert "i in (1, 2)" in str(feedrate.open(path, where=("i", "in", [1, 2])))
    with pytest.raises(ValueError, match="takes a list of values, not a"):
        feedrate.open(path, where=("s", "in", "a"))
    with pytest.raises(ValueError, match="takes a list of values, not 7"):
        feedrate.open(path, where=("i", "in", 7))
    with pytest.raises(feedrate.PipelineError, match=r"column .s. has a string, and is compared with an int"):
        list(feedrate.open(path, where=("s", "in", [1])))
    with pytest.raises(feedrate.PipelineError, match="at once"):
        list(feedrate.open(path, where=("s", "in", [1, "a"])))


def test_parquet_batches_are_columns(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {f"c{i}": np.random.default_rng(i).standard_normal(1000).astype(np.float32) for i in range(3)}
    for part in range(2):
        pq.write_table(pa.table(columns), str(tmp_path / f"{part}.parquet"), row_group_size=300)
    batches = list(feedrate.open(str(tmp_path / "*.parquet")).batch(256))
    assert [len(batch["c0"]) for batch in batches] == [256] * 7 + [208]
    for name, column in columns.items():
        same(np.concatenate([batch[name] for batch in batches]), np.concatenate([column, column]))
    loader = DataLoader(feedrate.open(str(tmp_path / "*.parquet")).filter(bool).batch(100), batch_size=None)
    assert sum(len(batch["c1"]) for batch in loader) == 2000


@pytest.mark.parametrize("kind", ["file", "stream", "feather"])
def test_arrow_of_pyarrow(kind: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    feather = pytest.importorskip("pyarrow.feather")
    path = str(tmp_path / "a.arrow")
    data = table(pa)
    if kind == "feather":
        feather.write_feather(data, path, compression="zstd")
    else:
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with pa.OSFile(path, "wb") as file, make(file, data.schema) as writer:
            writer.write_table(data, max_chunksize=2)
    assert [{name: plain(value) for name, value in row.items()} for row in feedrate.open(path)] == data.to_pylist()


# -- TFRecord


def test_tfrecord_of_the_tfrecord_package(tmp_path: Path) -> None:
    tfrecord = pytest.importorskip("tfrecord")
    path = str(tmp_path / "a.tfrecord")
    rng = np.random.default_rng(0)
    writer = tfrecord.TFRecordWriter(path)
    for i in range(40):
        writer.write(
            {
                "image": (rng.bytes(i * 7), "byte"),
                "label": (i - 5, "int"),
                "values": ([float(x) for x in range(i % 4 + 1)], "float"),
                "big": ([2**40, -(2**63), 2**63 - 1], "int"),
            }
        )
    writer.close()
    wanted = [dict(record) for record in tfrecord.tfrecord_loader(path, None)]
    same(list(feedrate.open(path)), wanted)
    (tmp_path / "b.tfrecord.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    same(list(feedrate.open(str(tmp_path / "b.tfrecord.gz"))), wanted)
    scalars = next(iter(feedrate.open(path, scalars=["label"])))
    assert scalars["label"] == -5
    data = bytearray(Path(path).read_bytes())
    data[200] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(PipelineError, match="byte"):
        list(feedrate.open(path))
    assert 38 <= len(list(feedrate.open(path).on_error("skip"))) < 40


# -- JSON Lines, CSV, NumPy, files


def test_jsonl_against_pythons_json(tmp_path: Path) -> None:
    rows = [{"i": i, "f": i / 3, "s": 'ž\n"' * (i % 3), "n": None, "l": [1, [2.5, "x"]], "d": {"k": True}} for i in range(50)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=i % 2 == 0) + "\n" for i, row in enumerate(rows)))
    same(list(feedrate.open(str(path))), rows)
    assert [row["i"] for row in feedrate.open(str(path), columns="i")] == list(range(50))
    path.write_text(path.read_text() + '{"i": 1\n{"i": 51}\n')
    with pytest.raises(PipelineError, match="line 51"):
        list(feedrate.open(str(path)))
    assert list(feedrate.open(str(path)).on_error("skip"))[-1] == {"i": 51}


def test_csv_has_no_types_that_were_not_given(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,name,score\n007,"a ""b"", c",1.5\n8,,nan\n')
    assert [row["id"] for row in feedrate.open(str(path))] == ["007", "8"]
    typed = list(feedrate.open(str(path), types={"id": int, "score": float}))
    assert typed[0] == {"id": 7, "name": 'a "b", c', "score": 1.5}


def test_numpy_rows_and_a_global_shuffle(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int16).reshape(20, 3)
    np.save(tmp_path / "a.npy", array)
    rows = feedrate.open(str(tmp_path / "a.npy"))
    same([row["array"] for row in rows], list(array))
    shuffled = [int(row["array"][0]) for row in rows.shuffle("all").seed(1)]
    assert sorted(shuffled) == array[:, 0].tolist() != shuffled
    np.save(tmp_path / "o.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    with pytest.raises(PipelineError, match="pickle"):
        list(feedrate.open(str(tmp_path / "o.npy")))


def test_folders_of_files_with_classes(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for i in range(3):
            (tmp_path / label / f"{i}.jpg").write_bytes(f"{label}{i}".encode())
    found = list(feedrate.open(str(tmp_path), format="files", classes=True))
    assert [(s["class"], s["label"]) for s in found] == [("cat", 0)] * 3 + [("dog", 1)] * 3


# -- what is refused


def test_mistakes_name_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nothing|no file|matches"):
        feedrate.open(str(tmp_path / "none-*.tar")).length()
    with pytest.raises((PipelineError, ValueError)):
        feedrate.open(str(tmp_path / "none-*.tar"))
    write_tar(tmp_path / "a.tar", [("0.jpg", b"1")])
    with pytest.raises(TypeError, match=r"tar has no option 'colums'; there are"):
        feedrate.open(str(tmp_path / "a.tar"), colums=["x"])
    with pytest.raises(ValueError, match=r'format="zap" is none of'):
        feedrate.open(str(tmp_path / "a.tar"), format="zap")
    with pytest.raises(ValueError, match='duplicates="no" is none of'):
        feedrate.open(str(tmp_path / "a.tar"), duplicates="no")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tfrecord"])
def test_formats_without_an_index_get_one(kind: str, tmp_path: Path) -> None:
    """Any record by its number; stored, and made again when the shard has changed."""

    def write(name: str, first: int, count: int) -> None:
        path = tmp_path / name
        rows = range(first, first + count)
        if kind == "jsonl":
            path.write_text("".join(json.dumps({"n": n, "text": "é" * (n % 50)}) + "\n" * (1 + n % 2) for n in rows))
        elif kind == "csv":
            path.write_text("n,text\n" + "".join(f'{n},"{"y" * (n % 50)}\n"\n' for n in rows))
        else:
            tfrecord = pytest.importorskip("tfrecord")
            writer = tfrecord.TFRecordWriter(str(path))
            for n in rows:
                writer.write({"n": (n, "int"), "text": (b"z" * (n % 50), "byte")})
            writer.close()

    options: dict[str, Any] = {"csv": {"types": {"n": int}}, "tfrecord": {"scalars": "single"}}.get(kind, {})
    write(f"a.{kind}", 0, 100)
    write(f"b.{kind}", 100, 37)
    files = str(tmp_path / f"*.{kind}")
    plain = list(feedrate.open(files, **options))
    assert [row["n"] for row in plain] == list(range(137))
    for index in (True, "beside", str(tmp_path / "cache"), "beside"):
        rows = feedrate.open(files, index=index, **options)
        assert len(rows) == 137
        assert list(rows) == plain
        assert rows.__getitems__([136, 0, 99, 100, 5]) == [plain[at] for at in (136, 0, 99, 100, 5)]
        assert sorted(row["n"] for row in rows.shuffle("all")) == list(range(137))
        loader = DataLoader(rows, batch_size=10, shuffle=True, num_workers=2, workers="thread", collate_fn=list)
        assert sorted(row["n"] for batch in loader for row in batch) == list(range(137))
    assert len(list(tmp_path.glob("*.feedrate-index"))) == len(list((tmp_path / "cache").iterdir())) == 2
    write(f"b.{kind}", 200, 5)
    assert [row["n"] for row in feedrate.open(files, index="beside", **options)][100:] == [200, 201, 202, 203, 204]
    packed = tmp_path / f"a.{kind}.gz"
    packed.write_bytes(gzip.compress((tmp_path / f"a.{kind}").read_bytes()))
    with pytest.raises(PipelineError, match="gzip"):
        len(feedrate.open(str(packed), index=True, format=kind, **options))
