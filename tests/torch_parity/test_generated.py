"""Generated comparison with the installed torch: what one loader shows, the other must show.

`FEEDRATE_PARITY_CASES` (1500), `FEEDRATE_PARITY_SEED` (0) and `FEEDRATE_PARITY_METHOD_CASES` (30 for each of
forkserver and spawn) choose how many and which. One case: `pytest 'tests/torch_parity/test_generated.py::test_case[17]'`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from parity_generate import generate
from parity_run import difference, oracle_case, run
from torch.utils.data import DataLoader as Stock

CASES = int(os.environ.get("FEEDRATE_PARITY_CASES", "1500"))
SEED = int(os.environ.get("FEEDRATE_PARITY_SEED", "0"))
METHOD_CASES = int(os.environ.get("FEEDRATE_PARITY_METHOD_CASES", "30"))


def _compare(number: int, method: str | None, loader: Any) -> None:
    case = generate(number, SEED, method)
    stock = run(oracle_case(case), Stock)
    ours = run(case, loader)
    found = difference(case, stock, ours)
    if found:
        pytest.fail(f"{case}\n{found}", pytrace=False)


@pytest.mark.parametrize("number", range(CASES))
def test_case(number: int, Loader: Any) -> None:
    """Inline and forked workers."""
    _compare(number, None, Loader)


@pytest.mark.parametrize("number", range(METHOD_CASES))
def test_forkserver_case(number: int, Loader: Any) -> None:
    """The same through forkserver."""
    _compare(number, "forkserver", Loader)


@pytest.mark.watchdog(120)
@pytest.mark.parametrize("number", range(METHOD_CASES // 5))
def test_spawn_case(number: int, Loader: Any) -> None:
    """The same through spawn; few, since every worker imports torch."""
    _compare(number, "spawn", Loader)


def test_the_comparison_notices(Loader: Any) -> None:
    """The comparison itself: a loader that changes one value, or drops one batch, is caught."""

    class Wrong(Loader):  # type: ignore[misc]
        def __iter__(self) -> Any:
            for k, batch in enumerate(super().__iter__()):
                if k != 1:
                    yield batch

    caught = 0
    for number in range(60):
        case = generate(number, 4321)
        if case.workers == 0 and difference(case, run(case, Stock), run(case, Wrong)):
            caught += 1
    assert caught > 5
