"""Draws that came out the same where they should not, and what users changed in a data set that went unseen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
import feedrate.torch
from feedrate.image import Transform

torch = pytest.importorskip("torch")

MAKE = pytest.mark.parametrize("make", [feedrate.DataLoader, feedrate.torch.DataLoader])


class Cropped:
    """One picture: only what is drawn can differ."""

    def __init__(self) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        self.transform = Transform().random_crop(8)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.pixels)


class Numbers:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        return float(torch.rand(()))


def different(batches: list[Any]) -> bool:
    found = [np.asarray(batch).tobytes() for batch in batches]
    return len(set(found)) == len(found)


@MAKE
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("data", [Cropped, Numbers])
def test_workers_and_epochs_draw_differently(make: Any, method: str, data: type) -> None:
    """Without torch's loader nobody seeded torch's generator in workers, from which transforms draw if it is imported."""
    loader = make(data(), 2, num_workers=4, workers="process", multiprocessing_context=method)
    assert different(list(loader) + list(loader))


LATE = """
import sys
import numpy as np, feedrate
from feedrate.image import Transform

class Late:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    transform = Transform().random_crop(8)
    def __len__(self):
        return 4
    def __getitem__(self, index):
        import torch
        return self.transform(self.pixels)

assert "torch" not in sys.modules
loader = feedrate.DataLoader(Late(), 2, num_workers=2, workers="process", multiprocessing_context="fork")
batches = [batch.tobytes() for batch in [*loader, *loader]]
assert len(set(batches)) == 4
"""


def test_workers_that_import_torch_late_draw_differently() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], timeout=120, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def noisy(x: int) -> float:
    return float(feedrate.rng().numpy.random())


class Holds:
    def __init__(self, pipeline: Any, form: str) -> None:
        self.parts = {"list": [1, pipeline], "tuple": (pipeline,), "dict": {"a": pipeline}, "plain": pipeline}[form]
        self.form = form

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        part = {"list": lambda p: p[1], "tuple": lambda p: p[0], "dict": lambda p: p["a"], "plain": lambda p: p}[self.form](
            self.parts
        )
        return part[index]


@MAKE
@pytest.mark.parametrize("form", ["list", "tuple", "dict", "plain", "stacked"])
def test_pipelines_in_collections_draw_by_seed_and_epoch(make: Any, form: str) -> None:
    pipeline = feedrate.from_items(range(6)).map(noisy)
    data = torch.utils.data.StackDataset(a=pipeline) if form == "stacked" else Holds(pipeline, form)

    def run(loader: Any) -> list[float]:
        return [float(x) for batch in loader for x in (batch["a"] if form == "stacked" else batch)]

    loader = make(data, 6, seed=1)
    first, second = run(loader), run(loader)
    assert first != second
    assert run(make(data, 6, seed=1)) == first
    assert run(make(data, 6, seed=2)) != first


def folder(tmp_path: Path) -> str:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(2):
            image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(tmp_path / name / f"{k}.png")
    return str(tmp_path)


class Remapped(feedrate.ImageFolder):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, target = super().__getitem__(index)
        return image, target + 100


@MAKE
def test_samples_of_subclasses_are_theirs_in_batches_too(make: Any, tmp_path: Path) -> None:
    data = Remapped(folder(tmp_path), Transform().resize((8, 8)).to("float32"))
    for workers in (0, 2):
        targets = [int(target) for _, batch in make(data, 2, num_workers=workers) for target in batch]
        assert targets == [100, 100, 101, 101]


@MAKE
def test_transforms_of_folders_may_be_changed(make: Any, tmp_path: Path) -> None:
    data = feedrate.ImageFolder(folder(tmp_path), Transform().random_resized_crop(8).to("float32"))
    assert (data.native, data[0][0].shape) == (True, (3, 8, 8))
    data.transform = Transform().resize((16, 12)).to("float32")
    images, _ = next(iter(make(data, 4)))
    assert np.array_equal(np.asarray(images), np.stack([np.asarray(data[k][0]) for k in range(4)]))
    assert images.shape == (4, 3, 16, 12)
    data.transform = None
    assert data[0][0].shape == (20, 24, 3)
    data.transform = lambda image: np.asarray(image)[:5, :5]
    assert (data.native, data[0][0].shape) == (False, (5, 5, 3))
    assert next(iter(make(data, 4)))[0].shape == (4, 5, 5, 3)
    data.transform = None
    data.loader = len
    assert data[0][0] == len(data.samples[0][0])
