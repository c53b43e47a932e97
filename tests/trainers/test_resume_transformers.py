"""transformers' Trainer, killed and resumed: the rest of the run is exactly the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from resume_runs import Server, resumed_exactly, server

pytestmark = [pytest.mark.ours, pytest.mark.watchdog(200), pytest.mark.filterwarnings("ignore")]
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def runs() -> Iterator[Server]:
    with server("transformers") as it:
        yield it


# An epoch has 11 batches on one rank, and 6 on each of two.


@pytest.mark.parametrize(("cut", "extra", "workers"), [(4, 0, 0), (16, 2, 2)])
def test_in_the_middle_of_an_epoch(runs: Server, tmp_path: Path, cut: int, extra: int, workers: int) -> None:
    resumed_exactly(runs, tmp_path, cut, extra, workers=workers)


def test_at_the_end_of_an_epoch(runs: Server, tmp_path: Path) -> None:
    resumed_exactly(runs, tmp_path, 11, 2, every=11)


@pytest.mark.parametrize("data", ["stream", "plain"])
def test_iterable_data(runs: Server, tmp_path: Path, data: str) -> None:
    """The trainer reads what it skips."""
    resumed_exactly(runs, tmp_path, 4, 1, data=data, limit=9)


@pytest.mark.parametrize(("cut", "extra"), [(4, 0), (8, 1)])
def test_two_ranks(runs: Server, tmp_path: Path, cut: int, extra: int) -> None:
    """In a later epoch too."""
    resumed_exactly(runs, tmp_path, cut, extra, world=2)
