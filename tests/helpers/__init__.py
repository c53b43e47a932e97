"""What several test modules share. Importable in spawned workers, since `tests/` is on their path."""

from __future__ import annotations

import os
from typing import Any

STOCK = os.environ.get("FEEDRATE_TEST_STOCK") == "1"
SLOW = os.environ.get("FEEDRATE_SLOW") == "1"
TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
START_METHODS = ("fork", "forkserver", "spawn")


def loader_class() -> Any:
    """Our DataLoader for torch, or the stock one with FEEDRATE_TEST_STOCK=1."""
    if STOCK:
        from torch.utils.data import DataLoader

        return DataLoader
    from feedrate.torch import DataLoader as Ours

    return Ours


def loader_import() -> str:
    """The import line for scripts that run in a process of their own."""
    if STOCK:
        return "from torch.utils.data import DataLoader"
    return "from feedrate.torch import DataLoader"
