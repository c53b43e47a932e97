"""The pytest plugin of ``tools/suite_runner.py``: one JSON line for each thing that happens.

The lines go to a file, so that they outlive a test that takes the whole process down.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_log = Path(os.environ["FEEDRATE_SUITE_LOG"])
_only = os.environ.get("FEEDRATE_SUITE_ONLY")
_states: dict[str, tuple[str, str]] = {}


def _write(kind: str, **fields: Any) -> None:
    with _log.open("a") as log:
        log.write(json.dumps({"kind": kind, **fields}) + "\n")


def _short(nodeid: str) -> str:
    return nodeid.partition("::")[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _only:
        wanted = set(json.loads(Path(_only).read_text()))
        items[:] = [item for item in items if _short(item.nodeid) in wanted]


def pytest_collection_finish(session: pytest.Session) -> None:
    module, _, name = os.environ["FEEDRATE_SUITE_REPLACES"].partition(":")
    tested = getattr(importlib.import_module(module), name)
    modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
    held = {getattr(module, known, tested) for module in modules for known in ("DataLoader", "StatefulDataLoader")}
    _write(
        "collected",
        tests=[_short(item.nodeid) for item in session.items],
        tested=f"{tested.__module__}:{tested.__qualname__}",
        everywhere=held <= {tested},
    )


@pytest.fixture(autouse=True)
def _start_method_put_back() -> Iterator[None]:
    """One upstream test sets the start method for good, which makes every later one slow."""
    before = multiprocessing.get_start_method(allow_none=True)
    yield
    if multiprocessing.get_start_method(allow_none=True) != before:
        multiprocessing.set_start_method(before, force=True)


def pytest_runtest_logstart(nodeid: str) -> None:
    _states[nodeid] = ("passed", "")
    _write("start", test=_short(nodeid))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        text = [line[1:].strip() for line in str(report.longrepr).splitlines() if line[:2] == "E "]
        why = " | ".join(text)[:600] or str(report.longrepr)[-600:]
        # What workers wrote often tells more.
        errors = [line for line in report.capstderr.splitlines() if line.strip() and "Warning" not in line]
        _states[report.nodeid] = ("failed", " || stderr: ".join([why, *(" | ".join(errors[-12:]) for _ in errors[:1])]))
    elif report.skipped and _states[report.nodeid][0] == "passed":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        _states[report.nodeid] = ("skipped", str(getattr(report, "wasxfail", reason)))
    if report.when == "teardown":
        state, why = _states.pop(report.nodeid)
        _write("end", test=_short(report.nodeid), state=state, why=why)
        sys.stdout.flush()
