"""Threads of ours that run Python, and their end before the interpreter's."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from feedrate import _native

#: For how long the end of the process waits for a function of the user's, in seconds: as long again when it was told to exit.
PATIENCE = 1.0

#: The threads that may run, with what ends each of them where closing its engine does not.
_started: weakref.WeakKeyDictionary[threading.Thread, Callable[[], None] | None] = weakref.WeakKeyDictionary()


def start(target: Callable[..., None], *args: Any, name: str, end: Callable[[], None] | None = None) -> threading.Thread:
    """Starts a daemon thread: one that is stuck in a user's code must not keep the interpreter from ending. ``end`` is called at the end of
    the process, from its main thread."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    _started[thread] = end
    thread.start()
    return thread


@atexit.register
def _end_all() -> None:
    """Waits until no thread of ours runs a function any more. CPython before 3.14 ends a daemon thread in the middle of the function that
    asks for the GIL, which is the end of the process, by SIGABRT, where that is a function of C++, as torch's are."""
    # First those that others may wait for.
    _native.stop_ahead()
    alive = [(thread, end) for thread, end in list(_started.items()) if thread.is_alive()]
    for _, end in alive:
        if end is not None:
            end()
    _join(thread for thread, _ in alive)
    stuck = [thread for thread, _ in alive if thread.is_alive()]
    for thread in stuck:
        if thread.ident is not None:
            _native.exit_thread(thread.ident)
    _join(stuck)


def _join(threads: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


__all__ = ["PATIENCE", "start"]
