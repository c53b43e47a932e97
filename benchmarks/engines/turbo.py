"""turboloader, for the row of photographs: its fused crop, resize and normalisation over a tar archive of the files.

It has one pool of threads for the process, of the size of the machine, whatever `num_workers` says: it is compared where all CPUs are used.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import torch
import turboloader

from benchmarks.engines import Setting
from benchmarks.photos import CACHE
from benchmarks.workloads import Case


def version() -> str:
    return f"turboloader {package_version('turboloader')}"


def refuses(row: dict[str, Any], workers: int) -> str | None:
    if row["workload"] != "photos" or row["params"]["kind"] != "train":
        return "for training on photographs only"
    return (
        None
        if workers == len(os.sched_getaffinity(0))
        else "one pool of threads as large as the machine, whatever num_workers says"
    )


def settings(row: dict[str, Any], workers: int) -> list[Setting]:
    return [{"prefetch": prefetch} for prefetch in ((4, 8) if row.get("tune", True) else (4,))]


def archive(listed: list[tuple[str, int]]) -> Path:
    """The files in their order, one after the other; made the first time."""
    path = CACHE / f"bench-photos-{len(listed)}.tar"
    if not path.is_file():
        made = path.with_name(f"{path.name}-{os.getpid()}")
        with tarfile.open(made, "w") as tar:
            for k, (file, _) in enumerate(listed):
                tar.add(file, arcname=f"{k:06d}.jpg")
        made.rename(path)
    return path


class Loader:
    """Images from turboloader; the labels, which this archive has none of, by number."""

    def __init__(self, case: Case, prefetch: int) -> None:
        dataset: Any = case.dataset
        samples = dataset.folder.samples
        listed = [samples[k % len(samples)] for k in range(len(dataset))]
        self.size = case.batch_size
        self.labels = torch.tensor([label for _, label in listed])
        self.loader = turboloader.DataLoader(
            str(archive(listed)),
            batch_size=case.batch_size,
            image_size=224,
            transform=turboloader.Resize(224, 224) | turboloader.ImageNetNormalize(),
            output_format="pytorch",
            train_aug=True,
            antialias=True,
            prefetch_batches=prefetch,
        )

    def __iter__(self) -> Iterator[Any]:
        for k, batch in enumerate(self.loader):
            images = batch[0] if isinstance(batch, tuple | list) else batch["image"] if isinstance(batch, dict) else batch
            yield torch.as_tensor(images), self.labels[k * self.size : (k + 1) * self.size]


def open(case: Case, workers: int, setting: Setting) -> Iterable[Any]:
    return Loader(case, setting["prefetch"])
