"""torch's DataLoader with torchvision's own decoder and its v2 transforms on tensors, for the rows of photographs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.engines import Setting, prefetch_settings
from benchmarks.engines.torch import arguments
from benchmarks.workloads import Case, PhotosIO


def version() -> str:
    import torchvision

    return f"torchvision {torchvision.__version__} (decode_jpeg, v2)"


def refuses(row: dict[str, Any], workers: int) -> str | None:
    return None if row["workload"] == "photos" and row["params"]["kind"] != "views" else "for photographs without jitter"


def settings(row: dict[str, Any], workers: int) -> list[Setting]:
    return prefetch_settings(row, workers)


def open(case: Case, workers: int, setting: Setting) -> Iterable[Any]:
    dataset: Any = PhotosIO(case.dataset)
    return DataLoader(dataset, **arguments(case, workers, setting))
