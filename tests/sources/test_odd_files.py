"""Files that a reader took for what they are not, or gave as what is not in them."""

from __future__ import annotations

import datetime
import gzip
import json
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def schema_only(endianness: int) -> bytes:
    """An Arrow stream without columns: a message (version 5, a schema) and the schema, as FlatBuffers lay tables out."""
    message = struct.pack("<I 5H2x i h B x I", 16, 10, 12, 4, 6, 8, 12, 4, 1, 4 + 8)
    schema = struct.pack("<4H i h 2x I I 4x", 8, 12, 4, 8, 8, endianness, 4, 0)
    body = message + schema
    return struct.pack("<iI", -1, len(body)) + body + struct.pack("<iI", -1, 0)


def test_arrow_of_the_other_byte_order_is_refused(tmp_path: Path) -> None:
    little, big = tmp_path / "l.arrows", tmp_path / "b.arrows"
    little.write_bytes(schema_only(0))
    big.write_bytes(schema_only(1))
    assert pa.ipc.open_stream(little).schema == pa.schema([])
    assert list(feedrate.open(str(little), format="arrow")) == []
    with pytest.raises(feedrate.PipelineError, match=r"b\.arrows, byte 0: its numbers are big-endian"):
        list(iter(feedrate.open(str(big), format="arrow")))


def test_pages_that_say_they_are_not_compressed_and_are(tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    table = pa.table({"a": list(range(5000))})
    pq.write_table(table, path, data_page_version="2.0", compression="snappy", use_dictionary=False)
    new = path.read_bytes()
    writer = new[new.index(b"parquet-cpp-arrow version ") : new.rindex(b"PAR1")].split(b"\x19")[0]
    before = (b"parquet-cpp version 1.5.1-" + b"S" * 99)[: len(writer)]
    # In the page's head: no bytes of repetition levels, compressed.
    old = new.replace(b"\x15\x00\x11", b"\x15\x00\x12", 1).replace(writer, before)
    assert len(old) == len(new) and old != new
    assert [row["a"] for row in feedrate.open(str(path))] == list(range(5000))
    path.write_bytes(old)
    assert pq.read_table(path) == table
    with pytest.raises(feedrate.PipelineError, match="say that they are not compressed and are: write it anew"):
        next(iter(feedrate.open(str(path))))


def test_parquet_pages_with_a_wrong_checksum(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path, compression="none", use_dictionary=False, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<q", 700))
    data[at + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(feedrate.PipelineError, match="CRC checksum mismatch"):
        list(iter(feedrate.open(str(path))))


def test_parquet_with_brotli(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(1000)), "b": ["text"] * 1000})
    pq.write_table(table, tmp_path / "b.parquet", compression="brotli")
    assert list(feedrate.open(str(tmp_path / "b.parquet"))) == table.to_pylist()


def arrow_file(table: Any, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[Any, Path], None]] = {"t.parquet": pq.write_table, "t.arrow": arrow_file}


@pytest.mark.parametrize("name", WRITERS)
def test_columns_of_one_name(tmp_path: Path, name: str) -> None:
    table = pa.Table.from_arrays([pa.array([1, 2]), pa.array(["x", "y"]), pa.array([0, 0])], names=["a", "a", "b"])
    WRITERS[name](table, tmp_path / name)
    for options in ({}, {"columns": ["a"]}, {"where": ("a", "=", 1)}):
        with pytest.raises(feedrate.PipelineError, match='several columns are called "a"'):
            list(iter(feedrate.open(str(tmp_path / name), **options)))
    assert list(feedrate.open(str(tmp_path / name), columns=["b"])) == [{"b": 0}, {"b": 0}]


def test_fields_of_one_name_in_a_struct(tmp_path: Path) -> None:
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    arrow_file(pa.table({"s": twice}), tmp_path / "t.arrow")
    with pytest.raises(feedrate.PipelineError, match='several fields of a struct are called "x"'):
        list(iter(feedrate.open(str(tmp_path / "t.arrow"))))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("kind", ["decimal32", "decimal64", "decimal128"])
def test_decimals_are_the_nearest_float(tmp_path: Path, name: str, kind: str) -> None:
    digits = 9 if kind == "decimal32" else 18
    random = np.random.default_rng(5)
    values = [Decimal(int(n)).scaleb(-2) for n in random.integers(-(10**digits) + 1, 10**digits, 3000)]
    WRITERS[name](pa.table({"d": pa.array(values, getattr(pa, kind)(digits, 2))}), tmp_path / name)
    floats = [float(value) for value in values]
    assert [row["d"] for row in feedrate.open(str(tmp_path / name))] == floats
    assert np.concatenate([batch["d"] for batch in feedrate.open(str(tmp_path / name)).batch(700)]).tolist() == floats


def test_structs_of_other_fields_do_not_unite(tmp_path: Path) -> None:
    for at, field in enumerate("ab"):
        pq.write_table(pa.table({"s": [{field: at}]}), tmp_path / f"{at}.parquet")
    with pytest.raises(feedrate.PipelineError, match=r'column s: it is Struct\("b".* and Struct\("a"'):
        list(iter(feedrate.open(str(tmp_path / "*.parquet"), unify=True)))


def test_what_lists_call_their_elements_makes_no_difference(tmp_path: Path) -> None:
    for at, name in enumerate(["item", "element"]):
        kind = pa.list_(pa.field(name, pa.struct([("x", pa.int64())])))
        arrow_file(pa.table({"l": pa.array([[{"x": at}]], kind)}), tmp_path / f"{at}.arrow")
    assert list(feedrate.open(str(tmp_path / "*.arrow"), unify=True)) == [{"l": [{"x": 0}]}, {"l": [{"x": 1}]}]


@pytest.mark.parametrize(
    "values", [[1, 2, 3, 4, None, 6], [True, False, True, True, None, False], [0.5, 1.5, 2.5, 3.5, None, 5.5]]
)
def test_batches_over_parts_with_and_without_nulls(tmp_path: Path, values: list[Any]) -> None:
    for kind in ["int8", "uint32", "int64", "uint64", "float16", "float32", "float64", "bool"]:
        if (kind == "bool") != isinstance(values[0], bool) or ("float" in kind) != isinstance(values[0], float):
            continue
        table = pa.table({"n": pa.array(values, pa.type_for_alias(kind) if kind != "bool" else pa.bool_())})
        whole, parts = tmp_path / f"{kind}.arrow", tmp_path / f"{kind}-parts.arrow"
        arrow_file(table, whole)
        with pa.ipc.new_file(parts, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
        expected = [batch["n"] for batch in feedrate.open(str(whole)).batch(5)]
        found = [batch["n"] for batch in feedrate.open(str(parts)).batch(5)]
        assert found[0] == expected[0] == values[:5]
        assert [type(x) for x in found[0]] == [type(x) for x in expected[0]]


def test_batches_of_columns_that_a_file_lacks(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3, 4]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"x": [5, 6], "y": [1.5, 2.5]}), tmp_path / "1.parquet")
    batches = list(feedrate.open(str(tmp_path / "*.parquet"), unify=True).batch(5))
    assert next(batch["y"] for batch in batches) == [None, None, None, None, 1.5]


def test_files_of_two_types_name_the_way_out(tmp_path: Path) -> None:
    for at, kind in enumerate([pa.int32(), pa.int64()]):
        pq.write_table(pa.table({"x": pa.array([1, 2], kind)}), tmp_path / f"{at}.parquet")
    with pytest.raises(feedrate.PipelineError, match=r"column `x`: .*int64.*int32.*unify=True"):
        list(iter(feedrate.open(str(tmp_path / "*.parquet")).batch(3)))


def test_conditions_that_are_unclear(tmp_path: Path) -> None:
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table({"i": [1, 2, 3]}), path)
    assert list(feedrate.open(path, where=("i", "=", np.int64(2)))) == [{"i": 2}]
    assert list(feedrate.open(path, where=("i", "in", np.array([1, 3])))) == [{"i": 1}, {"i": 3}]
    assert list(feedrate.open(path, where=["or", [("i", "=", 1)], [("i", "=", 3)]])) == [{"i": 1}, {"i": 3}]
    with pytest.raises(ValueError, match='begin lists with "or" or "and"'):
        feedrate.open(path, where=[[("i", "=", 1)], [("i", "=", 3)]])
    with pytest.raises(ValueError, match=r"i is compared with datetime\.date\(2020, 1, 1\) of the type date"):
        feedrate.open(path, where=("i", "=", datetime.date(2020, 1, 1)))
    with pytest.raises(ValueError, match=r"where: \('i',\) is neither"):
        feedrate.open(path, where=("i",))


# -- MDS


def mds(folder: Path, texts: list[str]) -> str:
    """A shard with one column of JSON, as MosaicML's writer lays it out."""
    samples = [struct.pack("<I", len(text.encode())) + text.encode() for text in texts]
    config = b"{}"
    at = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = [at]
    for sample in samples:
        offsets.append(offsets[-1] + len(sample))
    data = struct.pack(f"<I{len(offsets)}I", len(samples), *offsets) + config + b"".join(samples)
    (folder / "s.mds").write_bytes(data)
    shard = {
        "column_encodings": ["json"],
        "column_names": ["j"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "raw_data": {"basename": "s.mds", "bytes": len(data), "hashes": {}},
        "samples": len(samples),
        "size_limit": None,
        "version": 2,
        "zip_data": None,
    }
    (folder / "index.json").write_text(json.dumps({"shards": [shard], "version": 2}))
    return str(folder)


def test_json_in_mds_is_what_python_reads(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    values = [*random.random(2000).tolist(), {"b": 1, "a": [2, None]}, float("inf"), 2**63 - 1, "", [], 5e-324]
    found = [row["j"] for row in feedrate.open(mds(tmp_path, [json.dumps(value) for value in values]))]
    assert found == values
    assert list(found[2000]) == ["b", "a"]


def test_json_in_mds_does_not_round_whole_numbers(tmp_path: Path) -> None:
    with pytest.raises(feedrate.PipelineError, match="18446744073709551616 does not fit 64 bits"):
        list(iter(feedrate.open(mds(tmp_path, [str(2**64)]))))


# -- CSV


def test_a_stored_index_is_of_its_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text('a;b\n1;"x\n9;y"\n2;z\n')
    assert feedrate.open(str(path), index="beside").length() == 3
    right = feedrate.open(str(path), delimiter=";", index="beside")
    rows = [{"a": "1", "b": "x\n9;y"}, {"a": "2", "b": "z"}]
    assert right.length() == 2 and right.indexed and [right[0], right[1]] == rows
    assert sorted(right.shuffle("all"), key=str) == rows


def test_inferred_floats_do_not_round_whole_numbers(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text("id\n1\n9007199254740993\n9223372036854775809\n")
    assert [row["id"] for row in feedrate.open(str(path), infer=10)] == ["1", "9007199254740993", "9223372036854775809"]
    path.write_text("id\n1.5\n9007199254740992\n9007199254740993\n")
    rows = iter(feedrate.open(str(path), infer=2))
    assert [next(rows), next(rows)] == [{"id": 1.5}, {"id": 9007199254740992.0}]
    with pytest.raises(feedrate.PipelineError, match=r'line 4.*"9007199254740993", which the inferred float would round'):
        next(rows)
    assert [row["id"] for row in feedrate.open(str(path), types={"id": float})][2] == 9007199254740992.0


def test_types_are_inferred_from_all_files_that_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("a,b,flag\n")
    (tmp_path / "1.csv").write_text("a,b,flag\n1,,true\n2,,1\n")
    (tmp_path / "2.csv").write_text("a,b,flag\n3,2.5,0\n")
    rows = list(feedrate.open(str(tmp_path / "*.csv"), infer=2))
    assert rows[0] == {"a": 1, "b": None, "flag": "true"} and rows[2] == {"a": 3, "b": 2.5, "flag": "0"}
    (tmp_path / "2.csv").write_text("a,b,flag\nx,2.5,0\n")
    right = list(feedrate.open(str(tmp_path / "*.csv"), infer=2))
    assert [row["a"] for row in right] == ["1", "2", "x"]
    found = feedrate.open(str(tmp_path / "*.csv"), infer=2, columns=["a"])
    with pytest.raises(feedrate.PipelineError, match=r"inferred from the first 2 rows of .*0.csv … .*1.csv \(2 files\)"):
        list(found)


def test_lines_that_end_as_on_old_macs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_bytes(b"a,b\r1,2\r3,4\r")
    with pytest.raises(feedrate.PipelineError, match=r"lines end with \\r alone"):
        list(iter(feedrate.open(str(tmp_path / "m.csv"))))
    (tmp_path / "q.csv").write_bytes(b'"a\r\nx",b\n1,2\n')
    assert list(feedrate.open(str(tmp_path / "q.csv"))) == [{"a\r\nx": "1", "b": "2"}]


def test_files_of_two_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("a\n1\n")
    (tmp_path / "j.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "t.tsv").write_text("a\tb\n1\t2\n")
    at = {name: str(tmp_path / name) for name in ("c.csv", "j.jsonl", "t.tsv")}
    for first, second in (("c.csv", "j.jsonl"), ("j.jsonl", "c.csv"), ("c.csv", "t.tsv")):
        with pytest.raises(feedrate.PipelineError, match=f"{second}: it is .* by its name, and .*{first} is"):
            feedrate.open([at[first], at[second]])
    with pytest.raises(feedrate.PipelineError, match="by its name"):
        feedrate.open(str(tmp_path / "*"))
    assert list(feedrate.open([at["c.csv"], at["t.tsv"]], format="csv")) == [{"a": "1"}, {"a\tb": "1\t2"}]


# -- tokens


def test_padding_fits_the_tokens(tmp_path: Path) -> None:
    path = str(tmp_path / "t.bin")
    np.arange(5, dtype="<u2").tofile(path)
    options: dict[str, Any] = {"format": "tokens", "dtype": "uint16", "length": 4, "extra": 0}
    for pad in (-1, 65536):
        with pytest.raises(feedrate.PipelineError, match=f"uint16 tokens cannot hold the padding {pad}"):
            list(iter(feedrate.open(path, pad=pad, **options)))
        assert list(feedrate.open(path, pad=pad, wide=True, **options))[1]["tokens"].tolist() == [4, pad, pad, pad]
    assert list(feedrate.open(path, pad=65535, **options))[1]["tokens"].tolist() == [4, 65535, 65535, 65535]


def test_tokens_above_int64_are_not_wrapped(tmp_path: Path) -> None:
    path = str(tmp_path / "t.bin")
    np.array([1, 2**64 - 1], dtype="<u8").tofile(path)
    options: dict[str, Any] = {"format": "tokens", "dtype": "uint64", "length": 2, "extra": 0}
    assert next(iter(feedrate.open(path, **options)))["tokens"].tolist() == [1, 2**64 - 1]
    with pytest.raises(feedrate.PipelineError, match="does not fit int64"):
        list(iter(feedrate.open(path, wide=True, **options)))


def megatron(stem: Path, documents: list[list[int]]) -> None:
    data = np.concatenate([np.array(document, "<u2") for document in documents])
    data.tofile(f"{stem}.bin")
    lengths = [len(document) for document in documents]
    offsets = np.cumsum([0, *lengths[:-1]]) * 2
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1)
    tables = (
        np.array(lengths, "<i4").tobytes() + offsets.astype("<i8").tobytes() + np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    )
    Path(f"{stem}.idx").write_bytes(head + tables)


def test_pairs_of_megatron_by_pattern_and_folder(tmp_path: Path) -> None:
    for at in range(2):
        megatron(tmp_path / f"g{at}", [[at, 5], [at]])
    expected = [[0, 5], [0], [1, 5], [1]]
    for pattern in ("g*.bin", "g*.idx", "g*", "g{0..1}.bin", ""):
        rows = feedrate.open(str(tmp_path / pattern), format="tokens")
        assert [row["tokens"].tolist() for row in rows] == expected, pattern
    with pytest.raises(ValueError, match=r"finds no \.bin or \.idx"):
        (tmp_path / "x.txt").touch()
        feedrate.open(str(tmp_path / "*.txt"), format="tokens")


# -- compressed files of formats that are read by position


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.npy", "t.npz", "t.h5", "t.bin"])
def test_compressed_files_of_formats_by_position(tmp_path: Path, name: str) -> None:
    plain, packed, renamed = tmp_path / name, tmp_path / f"{name}.gz", tmp_path / "renamed.gz"
    options: dict[str, Any] = {"format": {"t.npz": "npy", "t.h5": "hdf5", "t.bin": "tokens"}.get(name, name[2:])}
    if name in WRITERS:
        WRITERS[name](pa.table({"a": [1]}), plain)
    elif name == "t.npy":
        np.save(plain, np.zeros(3))
    elif name == "t.npz":
        np.savez(plain, a=np.zeros(3))
    elif name == "t.h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(plain, "w") as file:
            file["a"] = np.zeros(3)
    else:
        plain.write_bytes(bytes(64))
        options.update(dtype="uint8", length=4)
    rows = list(iter(feedrate.open(str(plain), **options)))
    assert rows
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    message = "gz: it is compressed with gzip, and files of this format are read by position: unpack it"
    with pytest.raises(feedrate.PipelineError, match=message):
        list(iter(feedrate.open(str(packed), **options)))
    # The name alone means nothing.
    renamed.write_bytes(plain.read_bytes())
    assert len(list(iter(feedrate.open(str(renamed), **options)))) == len(rows)


def test_hdf5_names_the_dataset_that_is_not_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["a"] = np.arange(4)
        file["c"] = np.zeros(4, dtype=[("x", "i4")])
    with pytest.raises(feedrate.PipelineError, match="dataset c: "):
        list(iter(feedrate.open(str(tmp_path / "m.h5"))))
