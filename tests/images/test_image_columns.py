"""Image columns of Parquet files as Hugging Face's datasets write them: a struct of bytes and path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import feedrate
import feedrate.image
from images import corpus


@pytest.fixture
def column(tmp_path: Path) -> tuple[str, list[Any]]:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pictures = [corpus.as_mode("RGB", 40, 30, seed) for seed in range(6)]
    rows = []
    for k, picture in enumerate(pictures):
        path = tmp_path / f"{k}.png"
        picture.save(path)
        # Bytes with the file's name, or only a path.
        rows.append({"bytes": None, "path": str(path)} if k % 2 else {"bytes": path.read_bytes(), "path": path.name})
    pq.write_table(pa.table({"image": rows, "label": list(range(6))}), tmp_path / "a.parquet")
    return str(tmp_path / "a.parquet"), [np.asarray(picture) for picture in pictures]


@pytest.mark.parametrize("fields", [(), ("image",)])
def test_decode_takes_an_image_column(column: tuple[str, list[Any]], fields: tuple[str, ...]) -> None:
    path, pictures = column
    rows = list(feedrate.open(path).decode(*fields))
    assert [row["label"] for row in rows] == list(range(6))
    for row, picture in zip(rows, pictures, strict=True):
        assert np.array_equal(row["image"], picture)


@pytest.mark.parametrize("workers", [0, 2])
def test_image_takes_an_image_column(column: tuple[str, list[Any]], workers: int) -> None:
    path, pictures = column
    loader = feedrate.DataLoader(feedrate.open(path).image(feedrate.image.Transform()), batch_size=3, num_workers=workers)
    batches = list(loader)
    assert np.array_equal(np.concatenate([batch["image"] for batch in batches]), pictures)


def test_an_image_without_bytes_and_path_is_named(tmp_path: Path) -> None:
    item = {"image": {"bytes": None, "path": None}, "label": 1}
    for pipeline in (
        feedrate.from_items([item]).decode("image"),
        feedrate.from_items([item]).image(feedrate.image.Transform()),
    ):
        with pytest.raises(ValueError, match="neither bytes nor a path"):
            list(pipeline)


def test_bytes_called_image_are_left_unless_named() -> None:
    """Records also call raw pixels so."""
    png = corpus.saved(Image.new("RGB", (4, 3), (1, 2, 3)), "PNG")
    pipeline = feedrate.from_items([{"image": png}])
    assert next(iter(pipeline.decode()))["image"] == png
    assert next(iter(pipeline.decode("image")))["image"].shape == (3, 4, 3)
