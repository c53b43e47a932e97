"""torchdata's StatefulDataLoader: torch's loader with a state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torchdata
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.engines import Setting
from benchmarks.engines.torch import arguments, settings
from benchmarks.workloads import Case

__all__ = ["open", "refuses", "settings", "version"]


def version() -> str:
    return f"torchdata {torchdata.__version__}"


def refuses(row: dict[str, Any], workers: int) -> str | None:
    return None


def open(case: Case, workers: int, setting: Setting) -> Iterable[Any]:
    return StatefulDataLoader(case.dataset, **arguments(case, workers, setting))
