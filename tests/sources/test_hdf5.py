"""HDF5 files of every layout are read as h5py reads them; damaged ones end in errors."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
from feedrate import DataLoader, PipelineError
from feedrate.testing import assert_resumable

h5py = pytest.importorskip("h5py")

ROWS = 23
NUMBERS = "i1 u1 <i2 >i2 <u2 >u4 <i4 <i8 >i8 <u8 <f2 >f2 <f4 >f4 <f8 >f8 ? <c8 >c16".split()
VERSIONS = ["earliest", "v108", "v110", "latest"]


def layouts(shape: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """How a dataset may be stored: every kind of index of chunks, and every filter that is read."""
    narrow = (5, *(max(1, n // 2) for n in shape[1:]))
    grows, all_grow = (None, *shape[1:]), (None,) * len(shape)
    return {
        "contiguous": {},
        "fixed": {"chunks": narrow},
        "single": {"chunks": shape, "compression": "gzip"},
        "grows": {"chunks": narrow, "maxshape": grows},
        "all_grow": {"chunks": narrow, "maxshape": all_grow, "shuffle": True},
        "gzip": {"chunks": (4, *shape[1:]), "compression": "gzip", "shuffle": True, "fletcher32": True},
        "grows_gzip": {"chunks": narrow, "maxshape": grows, "compression": "gzip"},
        "lzf": {"chunks": narrow, "compression": "lzf"},
        "deep": {"chunks": (64, *shape[1:]), "maxshape": all_grow, "compression": "gzip"},
    }


def made(path: Path, version: str = "earliest", rows: int = ROWS, **options: Any) -> dict[str, Any]:
    """A file of numbers in all layouts; what is in it."""
    rng = np.random.default_rng(rows)
    with h5py.File(path, "w", libver=version if version == "earliest" else (version, version), **options) as file:
        for at, dtype in enumerate(NUMBERS):
            shape = (rows, 3, 5) if at % 2 else (rows,)
            values = (rng.standard_normal(shape) * 50).astype(dtype)
            kinds = list(layouts(shape).items())
            for name, stored in [kinds[at % len(kinds)], kinds[(at * 5 + 3) % len(kinds)]]:
                where = f"{name}/{np.dtype(dtype).name}{at}"
                if where not in file:
                    file.create_dataset(where, data=values, **stored)
    return contents(path)


def contents(path: Path) -> dict[str, Any]:
    found = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[...]

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def equal(found: Any, wanted: Any, where: str) -> None:
    """The same bits, in this machine's order."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype.newbyteorder("="), wanted.shape), where
    assert found.tobytes() == wanted.astype(found.dtype).tobytes(), where


@pytest.mark.parametrize("version", VERSIONS)
def test_all_layouts_and_numbers(version: str, tmp_path: Path) -> None:
    path = tmp_path / "all.h5"
    wanted = made(path, version)
    source = feedrate.open(str(path))
    assert len(source) == ROWS
    rows = list(source)
    assert sorted(rows[0]) == sorted(wanted)
    for at in range(ROWS):
        for name, values in wanted.items():
            equal(rows[at][name], values[at], f"{name}[{at}]")
    for at in (17, 3, 22, 0):
        for name, values in wanted.items():
            equal(source[at][name], values[at], f"{name}[{at}]")
    batches = list(source.batch(7))
    for name, values in wanted.items():
        equal(np.concatenate([batch[name] for batch in batches]), values, name)


def test_indexes_of_many_chunks(tmp_path: Path) -> None:
    """Indexes of several nodes, pages and blocks, whole and with holes."""
    for version in ("earliest", "latest"):
        path = tmp_path / f"{version}.h5"
        with h5py.File(path, "w", libver=version) as file:
            for name, chunks, most in (("one", (1,), None), ("grows", (1,), (None,)), ("square", (1, 1), (None, None))):
                shape = (5000, 2) if name == "square" else (5000,)
                values = np.arange(np.prod(shape)).reshape(shape)
                file.create_dataset(name, data=values, chunks=chunks, maxshape=most)
                holes = file.create_dataset(
                    f"holes/{name}", shape, "i4", chunks=chunks, maxshape=most, fillvalue=-3, compression="gzip"
                )
                holes[100:103] = 8
                holes[4321:] = 9
        wanted = contents(path)
        batches = list(feedrate.open(str(path)).batch(1000))
        for name, values in wanted.items():
            equal(np.concatenate([batch[name] for batch in batches]), values, name)


def test_grown_cut_and_empty_datasets(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        grown = file.create_dataset("grown", (5, 3), "i4", chunks=(4, 2), maxshape=(None, None), fillvalue=3)
        grown[:] = 2
        grown.resize((40, 3))
        grown[30:] = 8
        grown.resize((35, 2))
        file.create_dataset("never", (35, 2), ">f8", fillvalue=1.5)
        file.create_dataset("neither", (35,), "i8", chunks=(8,))
        file.create_dataset("narrow", (35, 0), "f4")
    wanted = contents(path)
    for at, row in enumerate(feedrate.open(str(path))):
        for name in wanted:
            equal(row[name], wanted[name][at], name)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (0, 4), "f4", chunks=(8, 4), maxshape=(None, 4))
    empty = feedrate.open(str(path))
    assert (len(empty), list(empty), list(empty.batch(3))) == (0, [], [])


def test_text_enumerations_and_sequences(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    text = ["", "a", "žluť", "日本" * 30, "x" * 1000]
    with h5py.File(path, "w") as file:
        utf8, ascii = h5py.string_dtype(), h5py.string_dtype("ascii")
        file.create_dataset("text", data=text, dtype=utf8, chunks=(2,), compression="gzip")
        file.create_dataset("pairs", data=np.array([[t, t[:1]] for t in text], object), dtype=utf8)
        file.create_dataset("never", shape=(5,), dtype=utf8)
        file.create_dataset("old", data=[b"a", b"", b"bcd", b"e", b"f"], dtype=ascii)
        file["bytes"] = np.array([b"a", b"", b"bcd", b"e", b"f"], "S3")
        fixed = file.create_dataset("fixed", shape=(5,), dtype=h5py.string_dtype("utf-8", 6))
        fixed[...] = np.array([t.encode()[:5] for t in ["ab", "", "žl", "c", "defghi"]], h5py.string_dtype("utf-8", 6))
        kinds = h5py.enum_dtype({"R": 0, "G": 1, "B": 1000}, basetype="i2")
        file.create_dataset("kinds", data=np.array([0, 1, 1000, 0, 1], "i2"), dtype=kinds)
        grid = file.create_dataset("grid", shape=(5,), dtype=np.dtype((">i4", (2, 3))))
        grid[...] = np.arange(30).reshape(5, 2, 3)
        ragged = file.create_dataset("ragged", shape=(5,), dtype=h5py.vlen_dtype(np.dtype(">f4")))
        for at in range(5):
            ragged[at] = np.arange(at)
    rows = list(feedrate.open(str(path)))
    assert [row["text"] for row in rows] == text
    assert [row["pairs"] for row in rows] == [[t, t[:1]] for t in text]
    assert [row["never"] for row in rows] == [""] * 5
    assert [row["old"] for row in rows] == [row["bytes"] for row in rows] == [b"a", b"", b"bcd", b"e", b"f"]
    assert [row["fixed"] for row in rows] == ["ab", "", "žl", "c", "defgh"]
    assert [row["kinds"].tolist() for row in rows] == [0, 1, 1000, 0, 1]
    for at, row in enumerate(rows):
        equal(row["grid"], np.arange(30, dtype="i4").reshape(5, 2, 3)[at], "grid")
        equal(row["ragged"], np.arange(at, dtype="f4"), "ragged")
    (batch,) = feedrate.open(str(path), columns=["text", "grid"]).batch(5)
    assert batch["text"] == text
    assert batch["grid"].shape == (5, 2, 3)


def test_groups_links_and_names(tmp_path: Path) -> None:
    for version in ("earliest", "latest"):
        path = tmp_path / f"{version}.bin"  # found by content, behind what a user put in front of it
        with h5py.File(path, "w", libver=version, userblock_size=1024) as file:
            for name in ("train/images", "train/labels", "test/images"):
                file[name] = np.arange(4 if name < "train" else 6)
            for at in range(200):
                file[f"many/{at}/x"] = np.arange(at % 3)
            file["soft"] = h5py.SoftLink("/train/images")
            file["lost"] = h5py.SoftLink("/nothing")
            file["elsewhere"] = h5py.ExternalLink("other.h5", "/x")
            file["round"] = file["/"]
            file["hard"] = file["train/labels"]
        for names in (["train/images", "train/labels"], ["soft"], ["hard"], ["round/train/images"]):
            rows = list(feedrate.open(str(path), columns=names))
            assert [{name: int(row[name]) for name in row} for row in rows] == [dict.fromkeys(names, i) for i in range(6)]
        assert [row["many/71/x"].tolist() for row in feedrate.open(str(path), columns="many/71/x")] == [0, 1]
        for name in ("elsewhere", "lost", "train", "train/none"):
            with pytest.raises(PipelineError, match=rf"(?s){version}.*no dataset \"{name}\".*links to other files"):
                list(feedrate.open(str(path), columns=[name]))
    with pytest.raises(TypeError, match="no option 'fields'"):
        feedrate.open(str(path), fields=["soft"])
    with h5py.File(tmp_path / "far.h5", "w", userblock_size=8192) as file:
        file["x"] = np.arange(3)
    assert [int(row["x"]) for row in feedrate.open(str(tmp_path / "far.h5"))] == [0, 1, 2]
    with h5py.File(tmp_path / "few.h5", "w") as file:
        file["b"], file["a/x"], file["c"] = np.arange(3), np.arange(3), np.arange(3)
        file["other"] = file["c"]
    (row, *_) = feedrate.open(str(tmp_path / "few.h5"))
    assert list(row) == ["b", "c", "a/x"]  # each once


def test_what_is_refused_says_why(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="v110") as file:
        file["x"] = np.arange(4)
        file["y"] = np.arange(5)
        file["scalar"] = 5.0
        file["empty"] = h5py.Empty("f4")
        file["compound"] = np.zeros(4, [("a", "i4"), ("b", "f4")])
        file["opaque"] = np.zeros(4, "V3")
        file["reference"] = np.array([file["x"].ref] * 4, h5py.ref_dtype)
        file.create_dataset("outside", (4,), "i4", external=[(str(tmp_path / "raw"), 0, 16)])
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource(".", "x", shape=(4,))
        file.create_virtual_dataset("virtual", layout)
        unknown = {"compression": 32001, "allow_unknown_filter": True}
        packed = file.create_dataset("packed", (4,), "i4", chunks=(4,), **unknown)
        packed.id.write_direct_chunk((0,), b"whatever")
    for name, why in {
        "scalar": "no dimensions",
        "empty": "no dimensions",
        "compound": "compounds",
        "opaque": "opaque",
        "reference": "references",
        "outside": "other files",
        "virtual": "virtual",
        "packed": "32001 \\(Blosc\\).*h5repack",
    }.items():
        with pytest.raises(PipelineError, match=rf"(?s)a\.h5.*{name}.*{why}"):
            list(feedrate.open(str(path), columns=[name]))
    with pytest.raises(PipelineError, match=r'"x" and "y" have 4 and 5 rows.*columns='):
        list(feedrate.open(str(path), columns=["x", "y"]))
    with h5py.File(path, "w") as file:
        pass
    with pytest.raises(PipelineError, match="no dataset in it"):
        list(feedrate.open(str(path)))


def opened(folder: Path) -> Any:
    return feedrate.open(str(folder / "*.hdf5"), columns=["x", "wide"])


def written(folder: Path, lengths: tuple[int, ...] = (31, 0, 8, 22)) -> list[int]:
    first = 0
    for part, rows in enumerate(lengths):
        with h5py.File(folder / f"{part}.hdf5", "w", libver="latest" if part % 2 else "earliest") as file:
            values = np.arange(first, first + rows)
            file.create_dataset("x", data=values, chunks=(5,), maxshape=(None,), compression="gzip")
            file.create_dataset("wide", data=np.repeat(values[:, None], 4, 1), chunks=(3, 3), maxshape=(None, 4))
        first += rows
    return list(range(first))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", ["thread", "process"])
def test_lanes_give_each_row_once(workers: Any, tmp_path: Path) -> None:
    wanted = written(tmp_path)
    for number in (1, 2, 3):
        stream = opened(tmp_path).filter(bool)
        for source in (opened(tmp_path), stream):
            loader = DataLoader(source, batch_size=4, num_workers=number, workers=workers)
            batches = list(loader)
            assert sorted(np.concatenate([batch["x"] for batch in batches]).tolist()) == wanted
            for batch in batches:
                assert (batch["wide"] == batch["x"][:, None]).all()
    shuffled = DataLoader(opened(tmp_path).shuffle("all"), batch_size=4, num_workers=2, workers=workers, seed=3)
    found = np.concatenate([batch["x"] for batch in shuffled]).tolist()
    assert found != wanted and sorted(found) == wanted


def test_resume_at_every_cut(tmp_path: Path) -> None:
    written(tmp_path, (13, 8))

    def make_loader(num_workers: int = 0) -> Any:
        pipeline = opened(tmp_path).shuffle(7).batch(3)
        return DataLoader(pipeline, batch_size=None, num_workers=num_workers, workers="thread", seed=1)

    assert_resumable(make_loader, workers=(0, 2), epochs=1)


def test_cut_and_changed_files(tmp_path: Path) -> None:
    """No file ends in anything but rows or an error that names it; what has a checksum is never wrong."""
    good, path = tmp_path / "good.h5", tmp_path / "bad.h5"
    dice = random.Random(7)
    for version in VERSIONS:
        with h5py.File(good, "w", libver=version) as file:
            for name, stored in layouts((12, 6)).items():
                file.create_dataset(f"g/{name}", data=np.arange(72).reshape(12, 6), **stored)
            file.create_dataset("text", data=[f"text {i}" for i in range(12)], dtype=h5py.string_dtype())
        whole = good.read_bytes()
        wanted = contents(good)
        for cut in (0, 5, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:cut])
            with pytest.raises(PipelineError, match=r"bad\.h5"):
                list(feedrate.open(str(path), format="hdf5"))
        for _ in range(60):
            bytes_ = bytearray(whole)
            for _ in range(dice.randrange(1, 4)):
                bytes_[dice.randrange(len(bytes_))] = dice.randrange(256)
            path.write_bytes(bytes_)
            for name in ("g/gzip", dice.choice(list(wanted))):
                try:
                    rows = list(feedrate.open(str(path), format="hdf5", columns=[name]))
                except PipelineError as error:
                    assert "bad.h5" in str(error)
                else:
                    if name == "g/gzip" and version == "latest" and len(rows) == 12:
                        # All of it is under checksums, in headers, in indexes and in chunks.
                        for at, row in enumerate(rows):
                            equal(row[name], wanted[name][at], name)


def test_a_claim_of_size_takes_no_memory(tmp_path: Path) -> None:
    """A file of some kilobytes says that it has rows of terabytes."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("wide", (4, 1 << 42), "u1", chunks=(1, 1 << 20), compression="gzip")
        file.create_dataset("chunk", (4, 3), "u1", chunks=(1 << 10, 1 << 20), maxshape=(None, None), compression="gzip")
    with h5py.File(path) as file:
        assert file["wide"].shape == (4, 1 << 42)
    with pytest.raises(PipelineError, match=r"dataset wide: a row has 4398046511104 bytes"):
        list(feedrate.open(str(path), columns=["wide"]))
    assert [row["chunk"].tolist() for row in feedrate.open(str(path), columns=["chunk"])] == [[0, 0, 0]] * 4
