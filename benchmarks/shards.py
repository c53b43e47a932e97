"""What rows about pipelines measure: a whole pass over files of one format, in a fresh process, by a peer and by us.

The files are made once, by the peers' own writers where they have one, and kept in `.cache/benchmarks`. Each probe first reads them
all (the page cache is warm for everybody) and runs the first samples, so that nothing is imported or compiled within the time; the
answer is a checksum over another, untimed pass.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import checksum, procs

Params = dict[str, Any]
Answer = dict[str, Any]

FOLDER = Path(__file__).parent.parent / ".cache" / "benchmarks"


def made(kind: str, params: Params, write: Callable[[Path, Params], None]) -> list[str]:
    """The files of these parameters, written if they are not there."""
    words = "-".join(f"{name}{params[name]}" for name in sorted(params) if name != "value")
    folder = FOLDER / f"{kind}-{words}"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, params)
        (folder / "done").touch()
    return sorted(str(path) for path in folder.iterdir() if path.name != "done")


def write_tar(folder: Path, params: Params) -> None:
    rng = np.random.default_rng(1)
    pictures = [photograph(rng) for _ in range(20)] if params.get("jpeg") else None
    each = params["samples"] // params["shards"]
    for shard in range(params["shards"]):
        with tarfile.open(folder / f"{shard:04}.tar", "w") as archive:
            for number in range(each):
                image = pictures[number % 20] if pictures else rng.bytes(params["size"])
                for extension, data in (("jpg", image), ("cls", b"%02d" % (number % 100))):
                    entry = tarfile.TarInfo(f"{shard:04}{number:07}.{extension}")
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))


def photograph(rng: np.random.Generator) -> bytes:
    """A JPEG of 256 x 256 with something in it."""
    from PIL import Image

    small = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8))
    out = io.BytesIO()
    small.resize((256, 256), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def write_parquet(folder: Path, params: Params) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(2)
    rows = params["rows"]
    columns = {f"f{at:02}": rng.standard_normal(rows, dtype=np.float32) for at in range(params["columns"])}
    pq.write_table(pa.table(columns), folder / "rows.parquet", compression="snappy", row_group_size=1 << 17)


def write_tfrecord(folder: Path, params: Params) -> None:
    from tfrecord.writer import TFRecordWriter

    rng = np.random.default_rng(3)
    writer = TFRecordWriter(str(folder / "examples.tfrecord"))
    for number in range(params["samples"]):
        row = {"image": (rng.bytes(params["size"]), "byte"), "label": (number % 1000, "int"), "box": ([1, 2, 3, number], "int")}
        writer.write(row)
    writer.close()


def write_jsonl(folder: Path, params: Params) -> None:
    rng = np.random.default_rng(4)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz    ", np.uint8)
    with (folder / "rows.jsonl").open("wb") as file:
        for number in range(params["samples"]):
            text = letters[rng.integers(0, len(letters), params["size"] - 120)].tobytes().decode()
            row = {
                "id": number,
                "text": text,
                "score": number / 7,
                "tags": ["a", "b"],
                "source": {"url": f"x/{number}", "ok": True},
            }
            file.write(json.dumps(row).encode() + b"\n")


def in_python(files: list[str]) -> int:
    """Reads the files and does nothing with them; gives the number of bytes."""
    buffer = bytearray(1 << 20)
    total = 0
    for path in files:
        with Path(path).open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def timed(run: Callable[[], Iterable[Any]], count: Callable[[Any], int] = lambda _: 1, answer: Any = None) -> Answer:
    """Seconds of a whole pass, after the start of one; the answer comes of a third."""
    for _ in itertools.islice(run(), 50):
        pass
    with procs.Growth() as growth:
        started = time.perf_counter()
        total = 0
        for element in run():
            total += count(element)
        seconds = time.perf_counter() - started
    crc = 0
    for element in run():
        crc = checksum.update(crc, element if answer is None else answer(element))
    note = f"{total / seconds:.4g} a second"
    return {"value": seconds, "count": total, "checksum": f"{crc:08x}", "peak": growth.bytes, "note": note}


def in_threads(pipeline: Any, threads: int) -> Any:
    """Our loader over a pipeline, whose batches are lists of samples."""
    from feedrate import DataLoader

    return DataLoader(pipeline, num_workers=threads, workers="thread", batch_size=64, collate_fn=just)


def just(samples: list[Any]) -> list[Any]:
    """No collation."""
    return samples


def tar(engine: str, workers: int, params: Params, given: Any) -> Answer:
    """Samples of tar shards as bytes: dicts with a key and the members."""
    files = made("tar", params, write_tar)
    size = in_python(files)

    if engine == "read":
        started = time.perf_counter()
        in_python(files)
        seconds = time.perf_counter() - started
        # Nothing is taken apart: the answer is ours, so that it is the row's.
        from feedrate import open as pipeline_of

        return timed(lambda: pipeline_of(files), answer=of_tar) | {"value": seconds, "note": f"{size / seconds / 1e6:.0f} MB/s"}
    if engine == "webdataset":
        import webdataset

        return timed(lambda: webdataset.WebDataset(files, shardshuffle=False), answer=of_tar)
    from feedrate import open as pipeline_of

    return timed(lambda: pipeline_of(files), answer=of_tar)


def of_tar(sample: dict[str, Any]) -> Any:
    """What is compared of a sample; peers put the path before the key."""
    return sample["__key__"].rsplit("/", 1)[-1], sample["jpg"], sample["cls"]


def decoded(sample: dict[str, Any]) -> tuple[np.ndarray[Any, Any], int]:
    """With Pillow, as users write it."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(sample["jpg"])).convert("RGB")), int(sample["cls"])


def tar_decoded(engine: str, workers: int, params: Params, given: Any) -> Answer:
    """Tar shards, a Python function that decodes with Pillow, batches, worker processes."""
    import torch

    torch.set_num_threads(1)
    files = made("tar", params, write_tar)
    in_python(files)

    def batches() -> Iterable[Any]:
        if engine == "webdataset":
            import webdataset

            data = webdataset.WebDataset(files, shardshuffle=False).map(decoded).batched(64)
            return webdataset.WebLoader(data, batch_size=None, num_workers=workers)
        from feedrate import open as pipeline_of
        from feedrate.torch import DataLoader

        return DataLoader(pipeline_of(files).map(decoded), batch_size=64, num_workers=workers)

    # webdataset's batches end with each worker's share, so only what is in them is compared.
    found = timed(batches, count=lambda batch: len(batch[1]), answer=lambda batch: 0)
    sums = [0, 0]
    for pictures, labels in batches():
        sums[0] += int(np.asarray(pictures, dtype=np.uint64).sum())
        sums[1] += int(np.asarray(labels).sum())
    return found | {"checksum": f"{checksum.update(0, sums):08x}"}


def parquet(engine: str, workers: int, params: Params, given: Any) -> Answer:
    """Batches of 4,096 rows as one tensor [rows, columns]."""
    import torch

    torch.set_num_threads(1)
    files = made("parquet", params, write_parquet)
    in_python(files)

    def of_arrow() -> Iterator[Any]:
        import pyarrow.parquet as pq

        for batch in pq.ParquetFile(files[0]).iter_batches(4096, use_threads=False):
            out = np.empty((batch.num_rows, batch.num_columns), np.float32)
            for at, column in enumerate(batch.columns):
                out[:, at] = column.to_numpy(zero_copy_only=False)
            yield torch.from_numpy(out)

    def ours() -> Iterator[Any]:
        from feedrate import open as pipeline_of

        for batch in pipeline_of(files).batch(4096):
            out = np.empty((len(next(iter(batch.values()))), len(batch)), np.float32)
            for at, column in enumerate(batch.values()):
                out[:, at] = column
            yield torch.from_numpy(out)

    return timed(of_arrow if engine == "pyarrow" else ours, count=len)


def tfrecord(engine: str, workers: int, params: Params, given: Any) -> Answer:
    """Examples with bytes and ints as dicts of arrays."""
    files = made("tfrecord", params, write_tfrecord)
    in_python([path for path in files if path.endswith(".tfrecord")])
    path = next(path for path in files if path.endswith(".tfrecord"))

    def answer(row: dict[str, Any]) -> Any:
        image, label, box = row["image"], row["label"], row["box"]
        data = image if isinstance(image, bytes) else image[0] if isinstance(image, list) else image.tobytes()
        return data, int(np.asarray(label).reshape(-1)[0]), np.asarray(box).tolist()

    if engine == "tfrecord":
        from tfrecord.reader import tfrecord_loader

        kinds = {"image": "byte", "label": "int", "box": "int"}
        return timed(lambda: tfrecord_loader(path, None, kinds), answer=answer)
    from feedrate import open as pipeline_of

    return timed(lambda: pipeline_of(path, format="tfrecord"), answer=answer)


def jsonl(engine: str, workers: int, params: Params, given: Any) -> Answer:
    """Lines of JSON as dicts."""
    files = made("jsonl", params, write_jsonl)
    in_python(files)

    def of_json() -> Iterator[Any]:
        with Path(files[0]).open("rb") as file:
            for line in file:
                yield json.loads(line)

    if engine == "json":
        return timed(of_json)
    from feedrate import open as pipeline_of

    return timed(lambda: pipeline_of(files))


def lengths_of(params: Params) -> np.ndarray[Any, Any]:
    """Lognormal, as lengths of documents are: median about 400, some in the thousands."""
    rng = np.random.default_rng(5)
    found = rng.lognormal(6.0, 1.0, params["documents"]).astype(np.int64)
    return np.clip(found, 1, params["length"])


def packing(engine: str, workers: int, params: Params, given: Any) -> Answer:
    """Documents to sequences; the note says how much of them is padding. The documents are views of one array, so nothing is read."""
    lengths = lengths_of(params)
    length = params["length"]
    base = np.arange(length, dtype=np.int32) + 1
    documents = [base[:n] for n in lengths.tolist()]
    total = int(lengths.sum())

    def grain_packed() -> Iterable[Any]:
        import grain.python as grain

        source = grain.MapDataset.source(documents).map(as_tokens).to_iter_dataset()
        return grain.experimental.FirstFitPackIterDataset(
            source, length_struct={"tokens": length}, num_packing_bins=params["bins"], shuffle_bins=False
        )

    def ours() -> Iterable[Any]:
        from feedrate import from_items

        return from_items(documents).pack(length, open_sequences=params["bins"])

    run = grain_packed if engine == "grain" else ours
    for _ in itertools.islice(run(), 20):
        pass
    sequences = held = 0
    with procs.Growth() as growth:
        started = time.perf_counter()
        for sequence in run():
            sequences += 1
            held += int(np.count_nonzero(sequence["tokens"]))
        seconds = time.perf_counter() - started
    padding = 1 - total / (sequences * length)
    note = f"{total / seconds / 1e6:.3g} M tokens/s, padding {padding:.2%}"
    # All tokens came, however they were packed.
    crc = checksum.update(0, math.isclose(held, total, rel_tol=0))
    return {"value": seconds, "count": total, "checksum": f"{crc:08x}", "peak": growth.bytes, "note": note}


def as_tokens(document: Any) -> dict[str, Any]:
    """As Grain packs them: a dict of arrays."""
    return {"tokens": document}


PROBES: dict[str, Callable[[str, int, Params, Any], Answer]] = {
    "tar": tar,
    "tar-decoded": tar_decoded,
    "parquet": parquet,
    "tfrecord": tfrecord,
    "jsonl": jsonl,
    "packing": packing,
}

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Grain's libraries log at import
