"""libjpeg-turbo that decodes every pixel of the photographs, and nothing else: files in memory, one core, one buffer used again and again.

No loader: a bound to hold loaders against. What it gives has the shape of a batch and no pixels in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch

from benchmarks.engines import Setting
from benchmarks.photos import HEIGHT, WIDTH
from benchmarks.workloads import Case


def version() -> str:
    return f"simplejpeg {package_version('simplejpeg')} (libjpeg-turbo)"


def refuses(row: dict[str, Any], workers: int) -> str | None:
    if row["workload"] != "photos":
        return "for photographs only"
    return "one core only" if workers != 1 else None


def settings(row: dict[str, Any], workers: int) -> list[Setting]:
    return [{}]


class Decoded:
    """Decodes a batch, and throws it away."""

    def __init__(self, case: Case) -> None:
        dataset: Any = case.dataset
        samples = dataset.folder.samples
        contents = [Path(path).read_bytes() for path, _ in samples]
        self.files = [contents[k % len(samples)] for k in range(len(dataset))]
        self.labels = torch.tensor([samples[k % len(samples)][1] for k in range(len(dataset))])
        self.size = case.batch_size
        self.buffer = np.empty((HEIGHT, WIDTH, 3), np.uint8)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.files), self.size):
            part = self.files[start : start + self.size]
            for file in part:
                simplejpeg.decode_jpeg(file, "RGB", buffer=self.buffer)
            yield torch.empty(len(part), 3, 224, 224), self.labels[start : start + self.size]


def open(case: Case, workers: int, setting: Setting) -> Iterable[Any]:
    return Decoded(case)
