"""One file for each loader compared. An engine says what it cannot do, which settings are worth trying, and opens a loader."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Protocol

from benchmarks.workloads import Case

Setting = dict[str, Any]


class Engine(Protocol):
    """What each module of this package provides."""

    def version(self) -> str:
        """The package and its version. Raises ImportError where it is not installed."""
        ...

    def refuses(self, row: dict[str, Any], workers: int) -> str | None:
        """Why this loader cannot serve the row, or None."""
        ...

    def settings(self, row: dict[str, Any], workers: int) -> list[Setting]:
        """The settings to try; the fastest is used. The first is the loader's usual one."""
        ...

    def open(self, case: Case, workers: int, setting: Setting) -> Iterable[Any]:
        """A loader; each iter() of it is an epoch. It may have a close()."""
        ...


NAMES = ("torch", "torch_io", "stateful", "spdl", "spdl_io", "dali", "turbo", "jpeg_only", "feedrate")


def load(name: str) -> Engine:
    """The engine module of that name."""
    module: Any = importlib.import_module(f"benchmarks.engines.{name}")
    return module  # type: ignore[no-any-return]


def prefetch_settings(row: dict[str, Any], num_workers: int, **fixed: Any) -> list[Setting]:
    """Persistent workers with 2, 4 and 8 batches prefetched; just the default where the row says not to tune."""
    if num_workers == 0:
        return [dict(fixed)]
    factors = (2, 4, 8) if row.get("tune", True) else (2,)
    return [{"persistent_workers": True, "prefetch_factor": factor, **fixed} for factor in factors]
