"""PyTorch's own tests of its loader, with ours in place: what passes with the stock class passes with ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).resolve().parents[2] / "tools" / "pytorch_suite.py"
UNAVAILABLE = 77
SECONDS = 1500  # the stock class takes about 250 s on two cores


def run(*options: str, seconds: int) -> None:
    done = subprocess.run(
        [sys.executable, str(RUNNER), "feedrate.torch:DataLoader", "--total", str(seconds), *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode == UNAVAILABLE:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"


@pytest.mark.long
@pytest.mark.ours
@pytest.mark.nocheck  # PyTorch's tests leave semaphores behind when they are killed
@pytest.mark.watchdog(SECONDS + 120)
def test_what_passes_with_the_stock_class_passes_with_ours() -> None:
    run(seconds=SECONDS)


@pytest.mark.slow  # PyTorch itself leaves them out by default: about 250 s each with the stock class
@pytest.mark.ours
@pytest.mark.nocheck
@pytest.mark.watchdog(2 * SECONDS + 120)
def test_the_slow_exit_tests_pass_without_redo() -> None:
    run("--slow", "--no-redo", "-k", "test_proper_exit", "--timeout", str(SECONDS), seconds=2 * SECONDS)
