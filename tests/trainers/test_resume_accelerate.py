"""A loop under Accelerate, killed and resumed: the rest of the run is exactly the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from resume_runs import Server, resumed_exactly, server

pytestmark = [pytest.mark.ours, pytest.mark.watchdog(200), pytest.mark.filterwarnings("ignore")]
pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def runs() -> Iterator[Server]:
    with server("accelerate") as it:
        yield it


# An epoch has 11 batches on one rank, and 6 on each of two.


@pytest.mark.parametrize("order", ["generator", "global", "sampler"])
@pytest.mark.parametrize(("cut", "extra", "workers"), [(4, 0, 0), (16, 2, 2)])
def test_in_the_middle_of_an_epoch(runs: Server, tmp_path: Path, order: str, cut: int, extra: int, workers: int) -> None:
    resumed_exactly(runs, tmp_path, cut, extra, order=order, workers=workers)


@pytest.mark.parametrize("every", [11, 0])
def test_at_the_end_of_an_epoch(runs: Server, tmp_path: Path, every: int) -> None:
    """While the last batch is trained on, and after the epoch."""
    resumed_exactly(runs, tmp_path, 11, 2, every=every)


@pytest.mark.parametrize(("data", "workers"), [("stream", 0), ("stream", 2), ("plain", 0)])
def test_iterable_data(runs: Server, tmp_path: Path, data: str, workers: int) -> None:
    resumed_exactly(runs, tmp_path, 8, 1, data=data, workers=workers)


@pytest.mark.parametrize("order", ["generator", "sampler"])
@pytest.mark.parametrize(("cut", "extra"), [(4, 0), (8, 1)])
def test_two_ranks(runs: Server, tmp_path: Path, order: str, cut: int, extra: int) -> None:
    resumed_exactly(runs, tmp_path, cut, extra, world=2, order=order)


def test_two_ranks_at_the_end_of_an_epoch(runs: Server, tmp_path: Path) -> None:
    resumed_exactly(runs, tmp_path, 6, 1, world=2, every=6)


@pytest.mark.parametrize("order", ["sampler", "generator"])
def test_iterable_data_on_two_ranks(runs: Server, tmp_path: Path, order: str) -> None:
    """Read by the first rank and sent to the others, as Accelerate does by default, or read by each."""
    resumed_exactly(runs, tmp_path, 4, 1, world=2, data="stream", order=order)
