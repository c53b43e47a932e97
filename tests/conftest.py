"""Shared fixtures and the watchdog.

Every test runs under a watchdog: after `watchdog(seconds)` (240 by default) an alarm raises in the main thread; if
that does not get through (native code that never looks at signals), all stacks are dumped and the process ends a
little later. Bounds are there to turn a hang into a report; no test asserts that something was fast.

`FEEDRATE_TEST_STOCK=1` puts PyTorch's own loader in place of ours: a test of behaviour that both share must pass with
it too. Tests of our extras are marked `ours` and are skipped then.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from helpers import STOCK, procs

DEFAULT_WATCHDOG = 240.0
SCALE = float(os.environ.get("FEEDRATE_WATCHDOG_SCALE", "1"))  # for busy machines
FAILED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "watchdog(seconds): end the test after this long (default 240)")
    config.addinivalue_line("markers", "ours: concerns something that the stock loader does not have or does wrong")
    config.addinivalue_line("markers", "long: takes minutes; left out of `make test`")
    config.addinivalue_line("markers", "slow: runs only with FEEDRATE_SLOW=1 (soak)")
    config.addinivalue_line("markers", "nocheck: does not look for leftovers after the test")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts its background jobs so, and all that they start inherits it: tests of Ctrl-C would wait for ever.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A forkserver that has imported torch already: its workers start in milliseconds instead of seconds.
    multiprocessing.set_forkserver_preload(["torch", "numpy", "helpers.datasets"])


QUICK_PARITY_CASES = 400  # of the generated comparison in `make test`; all of them in `make check`


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        # Each spawned worker imports torch anew, which costs seconds.
        if "spawn" in params.values() or item.name.startswith("test_spawn_case") or "/chaos/" in str(item.path):
            item.add_marker(pytest.mark.long)
        if item.name.startswith("test_case[") and params.get("number", 0) >= QUICK_PARITY_CASES:
            item.add_marker(pytest.mark.long)
        if STOCK and item.get_closest_marker("ours"):
            item.add_marker(pytest.mark.skip(reason="about our own behaviour; stock loader in place"))
        if item.get_closest_marker("slow") and not os.environ.get("FEEDRATE_SLOW"):
            item.add_marker(pytest.mark.skip(reason="long version: set FEEDRATE_SLOW=1"))


class WatchdogFired(BaseException):
    """Raised in the main thread when a test exceeds its watchdog."""


def _on_alarm(_signum: int, _frame: Any) -> None:
    raise WatchdogFired("the test exceeded its watchdog")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    mark = item.get_closest_marker("watchdog")
    seconds = (float(mark.args[0]) if mark else DEFAULT_WATCHDOG) * SCALE
    old = signal.signal(signal.SIGALRM, _on_alarm)
    faulthandler.dump_traceback_later(seconds + 20, exit=True, file=sys.__stderr__)
    signal.setitimer(signal.ITIMER_REAL, seconds, 2.0)
    try:
        outcome = yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, old)
    excinfo = outcome.excinfo
    item.stash[FAILED] = excinfo is not None
    if excinfo is not None and excinfo[0] is WatchdogFired:
        outcome.force_exception(AssertionError(f"watchdog: still running after {seconds:g} s").with_traceback(excinfo[2]))


@pytest.fixture(scope="module", autouse=True)
def what_is_there_stays() -> None:
    """Takes what the imports of torch and the trainers left (half a million objects) out of every later collection. Each test
    ends with one, which took longer than most tests: a quarter of an hour over all of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def leftovers(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test may leave a process of ours behind, nor an entry in /dev/shm."""
    if STOCK or request.node.get_closest_marker("nocheck"):
        yield
        return
    before = procs.child_pids()
    shm = procs.shm_entries()
    yield
    if request.node.stash.get(FAILED, False):
        return  # its traceback keeps iterators alive
    gc.collect()
    left = procs.wait_until(lambda: procs.child_pids() - before - procs.helper_pids() or None, gone=True, timeout=10)
    assert not left, f"processes left behind: {procs.describe(left)}"
    new = procs.new_shm_entries(shm)
    assert not new, f"entries left in /dev/shm: {sorted(new)}"


@pytest.fixture
def Loader() -> Any:
    """The loader class under test: ours, or the stock one with FEEDRATE_TEST_STOCK=1."""
    from helpers import loader_class

    return loader_class()


@pytest.fixture(autouse=True)
def seeds() -> None:
    """The same global random state at the start of every test."""
    import numpy as np
    import torch

    random.seed(12345)
    np.random.seed(12345)
    torch.manual_seed(12345)
