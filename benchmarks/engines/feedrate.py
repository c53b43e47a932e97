"""feedrate.torch.DataLoader: ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import feedrate
import feedrate.image
import feedrate.torch
from benchmarks.engines import Setting, prefetch_settings
from benchmarks.engines.torch import arguments
from benchmarks.workloads import Case, Photos, Pixels


def version() -> str:
    return f"feedrate {feedrate.__version__}"


def refuses(row: dict[str, Any], workers: int) -> str | None:
    return None


def settings(row: dict[str, Any], workers: int) -> list[Setting]:
    in_flight = row.get("items_in_flight", 1)
    if in_flight > 1 and workers:
        return prefetch_settings(row, workers, workers="thread", items_in_flight=in_flight)
    if workers and row["workload"] in ("photos", "pixels"):
        return prefetch_settings(row, workers, workers="thread")
    return prefetch_settings(row, workers)


def native(dataset: Any) -> Any:
    """Datasets of images as ours; others as they are."""
    if isinstance(dataset, Photos):
        made = feedrate.ImageFolder(dataset.root, feedrate.image.from_torchvision(dataset.transform))
        made.samples = [made.samples[k % len(made.samples)] for k in range(len(dataset))]
        return made
    return NativePixels(dataset) if isinstance(dataset, Pixels) else dataset


class NativePixels:
    """Arrays whose crops are written straight into the batch."""

    native = True

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels
        self.transform = feedrate.image.Transform().random_crop(224).horizontal_flip()
        self.batch_shape = ("uint8", self.transform.shape(224, 224))

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.pixels.image(index)), index

    def fill_batch(self, indices: list[int], out: Any, seeds: Any) -> list[int]:
        batch = self.transform.open([self.pixels.image(index) for index in indices])
        self.transform.draw(batch, seeds)
        batch.run([out], 1)
        return indices


def open(case: Case, workers: int, setting: Setting) -> Iterable[Any]:
    return feedrate.torch.DataLoader(native(case.dataset), **arguments(case, workers, setting))
