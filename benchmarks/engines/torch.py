"""torch.utils.data.DataLoader: what everything is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.engines import Setting, prefetch_settings
from benchmarks.workloads import Case


def version() -> str:
    return f"torch {torch.__version__}"


def refuses(row: dict[str, Any], workers: int) -> str | None:
    return None


def settings(row: dict[str, Any], workers: int) -> list[Setting]:
    return prefetch_settings(row, workers)


def arguments(case: Case, workers: int, setting: Setting) -> dict[str, Any]:
    """The keyword arguments that every loader with torch's signature gets."""
    arguments = {
        "batch_size": case.batch_size,
        "sampler": case.sampler(),
        "num_workers": workers,
        "collate_fn": case.collate_fn,
        **setting,
    }
    if workers and case.start_method:
        arguments["multiprocessing_context"] = case.start_method
    return arguments


def open(case: Case, workers: int, setting: Setting) -> Iterable[Any]:
    return DataLoader(case.dataset, **arguments(case, workers, setting))
