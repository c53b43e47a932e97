"""Lightning's Trainer, killed and resumed: the rest of the run is exactly the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from resume_runs import Server, resumed_exactly, server

pytestmark = [pytest.mark.ours, pytest.mark.watchdog(200), pytest.mark.filterwarnings("ignore")]
pytest.importorskip("lightning")


@pytest.fixture(scope="module")
def runs() -> Iterator[Server]:
    with server("lightning") as it:
        yield it


# An epoch has 11 batches on one rank, and 6 on each of two.


@pytest.mark.parametrize(("cut", "extra"), [(4, 0), (16, 2)])
@pytest.mark.parametrize(("workers", "bridge"), [(0, False), (2, True)])
def test_in_the_middle_of_an_epoch(runs: Server, tmp_path: Path, cut: int, extra: int, workers: int, bridge: bool) -> None:
    """Also in a later epoch, and without the callback."""
    resumed_exactly(runs, tmp_path, cut, extra, workers=workers, bridge=bridge, epochs=2)


@pytest.mark.parametrize("how", ["step", "epoch", "limit"])
def test_at_the_end_of_an_epoch(runs: Server, tmp_path: Path, how: str) -> None:
    options: dict[str, Any] = {"step": {"every": 11}, "epoch": {"every": 0}, "limit": {"every": 7, "limit": 7}}[how]
    resumed_exactly(runs, tmp_path, 7 if how == "limit" else 11, 3, **options)


def test_at_the_end_of_an_epoch_lightning_alone_loses_one(runs: Server, tmp_path: Path) -> None:
    """Why there is a bridge. If this fails, Lightning has learned it, and that half of the bridge can go."""
    with pytest.raises(AssertionError, match="rank 0"):
        resumed_exactly(runs, tmp_path, 11, 0, every=11, bridge=False)


@pytest.mark.parametrize(("data", "workers"), [("stream", 0), ("stream", 2), ("plain", 0)])
def test_a_loader_without_a_length(runs: Server, tmp_path: Path, data: str, workers: int) -> None:
    """Lightning reads a batch ahead: the state is that of the batch that was trained on."""
    resumed_exactly(runs, tmp_path, 4, 2, data=data, workers=workers, epochs=1)


@pytest.mark.parametrize("every", [11, 0])
def test_a_loader_without_a_length_at_the_end_of_an_epoch(runs: Server, tmp_path: Path, every: int) -> None:
    resumed_exactly(runs, tmp_path, 11, 2, data="stream", every=every, epochs=2)


@pytest.mark.parametrize("order", ["sampler", "ranks"])
@pytest.mark.parametrize(("cut", "extra"), [(4, 0), (8, 1)])
def test_two_ranks(runs: Server, tmp_path: Path, order: str, cut: int, extra: int) -> None:
    """With the sampler that Lightning puts in, and with our own ranks; rank 0 alone saves."""
    resumed_exactly(runs, tmp_path, cut, extra, world=2, order=order)


def test_two_ranks_at_the_end_of_an_epoch(runs: Server, tmp_path: Path) -> None:
    resumed_exactly(runs, tmp_path, 6, 1, world=2, order="ranks", every=6)
