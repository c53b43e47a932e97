"""NVIDIA DALI on CPUs, for the row of photographs: its fused decoder that reads only the crop, its resize, mirror and normalisation.

Not among the packages of `make bench`, being half a gigabyte: `pip install nvidia-dali-cuda120`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version as package_version
from typing import Any

import torch
from nvidia.dali import fn, pipeline_def, types

from benchmarks.engines import Setting
from benchmarks.workloads import MEAN, STD, Case


def version() -> str:
    return f"nvidia-dali {package_version('nvidia-dali-cuda120')} on CPUs"


def refuses(row: dict[str, Any], workers: int) -> str | None:
    return None if row["workload"] == "photos" else "for photographs only"


def settings(row: dict[str, Any], workers: int) -> list[Setting]:
    return [{"prefetch": prefetch} for prefetch in ((2, 4) if row.get("tune", True) else (2,))]


class Loader:
    """A pipeline that is built once and reads the files again in each epoch."""

    def __init__(self, case: Case, workers: int, prefetch: int) -> None:
        dataset: Any = case.dataset
        samples = dataset.folder.samples
        listed = [samples[k % len(samples)] for k in range(len(dataset))]
        self.batches = -(-len(listed) // case.batch_size)

        @pipeline_def(batch_size=case.batch_size, num_threads=workers, device_id=None, prefetch_queue_depth=prefetch)
        def pipeline() -> Any:
            files, labels = fn.readers.file(
                files=[path for path, _ in listed], labels=[label for _, label in listed], name="files", dont_use_mmap=False
            )
            images = fn.decoders.image_random_crop(files, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
            images = fn.resize(images, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=True)
            images = fn.crop_mirror_normalize(
                images,
                mirror=fn.random.coin_flip(),
                mean=[255 * value for value in MEAN],
                std=[255 * value for value in STD],
                dtype=types.FLOAT,
                output_layout="CHW",
            )
            return images, labels

        self.pipeline = pipeline()
        self.pipeline.build()

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.batches):
            images, labels = self.pipeline.run()
            # The pipeline uses its buffers again: a batch that is kept must be copied, as DALI's own iterator for torch does.
            yield torch.from_numpy(images.as_array().copy()), torch.from_numpy(labels.as_array().reshape(-1)).long()


def open(case: Case, workers: int, setting: Setting) -> Iterable[Any]:
    return Loader(case, workers, setting["prefetch"])
