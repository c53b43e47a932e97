"""SPDL with its own decoder and filters (FFmpeg), on threads, for the row of photographs. Needs FFmpeg's shared libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version as package_version
from typing import Any

import spdl.io
import torch
from spdl.pipeline import PipelineBuilder
from torchvision.transforms import RandomResizedCrop

from benchmarks.engines import Setting
from benchmarks.workloads import MEAN, STD, Case


def version() -> str:
    try:
        spdl.io.decode_config()
    except RuntimeError as error:
        raise ImportError(f"spdl.io finds no FFmpeg: {str(error).splitlines()[0][:80]}") from error
    return f"spdl-io {package_version('spdl-io')}"


def refuses(row: dict[str, Any], workers: int) -> str | None:
    return None if row["workload"] == "photos" and row["params"]["kind"] == "train" else "for training on photographs only"


def settings(row: dict[str, Any], workers: int) -> list[Setting]:
    return [{"prefetch": prefetch} for prefetch in ((2, 4) if row.get("tune", True) else (4,))]


MINUS = torch.tensor([255 * value for value in MEAN]).view(1, 3, 1, 1)
OVER = torch.tensor([1 / (255 * value) for value in STD]).view(1, 3, 1, 1)


def decode(path: str) -> Any:
    """Frames of one image, cropped, resized and perhaps mirrored by FFmpeg."""
    packets = spdl.io.demux_image(path)
    size = torch.empty(3, packets.height, packets.width, device="meta")
    top, left, height, width = RandomResizedCrop.get_params(size, [0.08, 1.0], [3 / 4, 4 / 3])  # type: ignore[arg-type]
    steps = [f"crop=w={width}:h={height}:x={left}:y={top}:exact=1", "scale=w=224:h=224:flags=bilinear"]
    if torch.rand(()) < 0.5:
        steps.append("hflip")
    return spdl.io.decode_packets(
        packets, filter_desc=spdl.io.get_video_filter_desc(filter_desc=",".join([*steps, "format=pix_fmts=rgb24"]), pix_fmt=None)
    )


def batch(samples: list[tuple[str, int]]) -> Any:
    """A batch as a trainer takes it."""
    frames = [decode(path) for path, _ in samples]
    pixels = spdl.io.to_torch(spdl.io.convert_frames(frames))
    return (pixels.permute(0, 3, 1, 2).float() - MINUS).mul_(OVER), torch.tensor([label for _, label in samples])


class Loader:
    """Builds the pipeline at each epoch."""

    def __init__(self, case: Case, workers: int, prefetch: int) -> None:
        dataset: Any = case.dataset
        samples = dataset.folder.samples
        listed = [samples[k % len(samples)] for k in range(len(dataset))]
        size = case.batch_size
        self.batches = [listed[k : k + size] for k in range(0, len(listed), size)]
        self.workers = workers
        self.prefetch = prefetch

    def __iter__(self) -> Iterator[Any]:
        pipeline = (
            PipelineBuilder()
            .add_source(self.batches)
            .pipe(batch, concurrency=self.workers, output_order="input")
            .add_sink(self.prefetch)
            .build(num_threads=self.workers)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()


def open(case: Case, workers: int, setting: Setting) -> Iterable[Any]:
    return Loader(case, workers, setting["prefetch"])
