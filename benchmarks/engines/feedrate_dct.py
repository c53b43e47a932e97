"""Ours, with JPEGs decoded smaller than they are where a crop is at least twice as large as what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import feedrate
from benchmarks.engines import Setting
from benchmarks.engines import feedrate as exact
from benchmarks.workloads import Case


def version() -> str:
    return f"feedrate {feedrate.__version__} (shrink=dct)"


def refuses(row: dict[str, Any], workers: int) -> str | None:
    return None if row["workload"] == "photos" else "for photographs only"


def settings(row: dict[str, Any], workers: int) -> list[Setting]:
    return exact.settings(row, workers)


def open(case: Case, workers: int, setting: Setting) -> Iterable[Any]:
    return exact.open(case, workers, {**setting, "shrink": "dct"})
