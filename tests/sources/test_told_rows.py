"""Rows that are wanted and not given, or given and not wanted, on files that are as good as any."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import feedrate
from feedrate import DataLoader


@pytest.mark.parametrize("index", [None, "beside"])
def test_scattered_samples_that_are_not_whole_are_passed_over(tmp_path: Path, index: Any) -> None:
    """The reader came back to one of them for ever."""
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("0.jpg", "1.jpg", "3.cls", "0.cls", "2.jpg", "2.cls"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(name[:1].encode()))
    options = {} if index is None else {"index": index}
    for _ in range(2):
        pipeline = feedrate.open(str(path), grouping="scattered", fields=["jpg", "cls"], missing="skip", **options)
        assert [sample["__key__"] for sample in pipeline] == ["0", "2"]
        if index is not None:
            assert len(pipeline) == 2
            assert [pipeline[k]["__key__"] for k in (1, 0)] == ["2", "0"]


def patched(path: Path, table: pa.Table, swaps: list[tuple[bytes, bytes]]) -> None:
    """Written, and changed by pieces of the same length, so that the footer stays as long as it says."""
    pq.write_table(table, path, compression="none")
    raw, found = path.read_bytes(), 0
    for old, new in swaps:
        assert len(old) == len(new)
        found += raw.count(old)
        raw = raw.replace(old, new)
    assert found
    path.write_bytes(raw)


def test_nulls_that_nobody_has_counted_are_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "n.parquet"
    # The number of nulls becomes that of distinct values.
    table = pa.table({"x": pa.array([1, None, 2, None], pa.int64())})
    patched(path, table, [(b"\x16\x04\x28\x08", b"\x26\x04\x18\x08")])
    statistics = pq.read_metadata(path).row_group(0).column(0).statistics
    assert not statistics.has_null_count
    assert len(list(feedrate.open(str(path), where=("x", "is null")))) == 2


def test_old_bounds_of_text_are_not_believed(tmp_path: Path) -> None:
    """Old writers compared bytes as numbers with a sign: what is beyond ASCII was the least."""
    path = tmp_path / "s.parquet"
    old = b"\x36\x00\x28\x02\xc3\xa9\x18\x01a"
    new = b"\x18\x01b\x18\x02\xc3\xa9\x16\x00"
    patched(
        path,
        pa.table({"s": ["a", "b", "\u00e9"]}),
        [(old + b"\x11\x11\x00", new + b"\x41\x11\x00"), (old + b"\x00", new + b"\x00")],
    )
    assert [row["s"] for row in feedrate.open(str(path), where=("s", "=", "a"))] == ["a"]


def test_a_bad_row_takes_no_other_along(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    schema = pa.schema([("i", pa.int64()), ("s", pa.struct([("h", pa.uint64())]))])
    rows = [{"h": 2**63 + 5} if i in (1, 6) else {"h": i} for i in range(12)]
    pq.write_table(pa.table({"i": list(range(12)), "s": rows}, schema=schema), path)
    good = [i for i in range(12) if i not in (1, 6)]
    by_row = feedrate.open(str(path)).on_error("skip")
    by_batch = feedrate.open(str(path)).batch(4).on_error("skip")
    assert [row["i"] for row in by_row] == good
    assert [int(i) for batch in by_batch for i in batch["i"]] == good
    loader = DataLoader(feedrate.open(str(path)).batch(4).on_error("skip"), batch_size=None, num_workers=2)
    assert sorted(int(i) for batch in loader for i in batch["i"]) == good


@pytest.mark.parametrize("cut", [1, 3, 5])
@pytest.mark.parametrize("held", ["shuffle", "prefetch", "unbatch"])
def test_filtered_batches_of_arrow_are_made_again(tmp_path: Path, held: str, cut: int) -> None:
    """A block was named by its rows that passed, and made again of so many that were looked at."""
    path = tmp_path / "t.arrow"
    table = pa.table({"x": list(range(1000))})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=400)

    def make() -> Any:
        batches = feedrate.open(str(path), where=("x", "in", list(range(0, 1000, 3)))).batch(32)
        return {"shuffle": batches.shuffle(4), "prefetch": batches.prefetch(3), "unbatch": batches.unbatch()}[held]

    def numbers(element: Any) -> list[int]:
        return [int(x) for x in element["x"]] if held != "unbatch" else [int(element["x"])]

    whole = [numbers(element) for element in make()]
    assert sorted(x for part in whole for x in part) == list(range(0, 1000, 3))
    begun = iter(make())
    before = [numbers(next(begun)) for _ in range(cut)]
    state = json.loads(json.dumps(begun.state_dict()))
    again = iter(make())
    again.load_state_dict(state)
    assert before + [numbers(element) for element in again] == whole
