"""feedrate.torch.DataLoader: ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import feedrate
import feedrate.torch
from benchmarks.engines import Setting, prefetch_settings
from benchmarks.engines.torch import arguments
from benchmarks.workloads import Case


def version() -> str:
    return f"feedrate {feedrate.__version__}"


def refuses(row: dict[str, Any], workers: int) -> str | None:
    return None


def settings(row: dict[str, Any], workers: int) -> list[Setting]:
    in_flight = row.get("items_in_flight", 1)
    if in_flight > 1 and workers:
        return prefetch_settings(row, workers, workers="thread", items_in_flight=in_flight)
    return prefetch_settings(row, workers)


def open(case: Case, workers: int, setting: Setting) -> Iterable[Any]:
    return feedrate.torch.DataLoader(case.dataset, **arguments(case, workers, setting))
