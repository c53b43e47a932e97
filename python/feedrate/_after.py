"""A step between the engine and the user, on one thread of its own: pinning."""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable
from typing import Any

from feedrate import _threads
from feedrate._engine import END, Engine
from feedrate._fetch import NOT_READY


class AfterThread:
    """Runs ``step(batch)`` on a named daemon thread for each batch that has arrived, in the order of delivery.

    A batch in the step still counts for the window: the next task is planned, on the user's thread, when the user gets the batch.
    All methods are called from one thread. Exceptions of the step come out of :meth:`next`, in their batch's place.
    """

    def __init__(self, engine: Engine, step: Callable[[Any], Any], begin: Callable[[], None], name: str) -> None:
        self._engine = engine
        self._in: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[tuple[Any, BaseException | None, Any]] = queue.SimpleQueue()
        self._pending = 0
        #: Ctrl-C came in front of it: the next call gives it.
        self._kept: Any = None
        self._mark: tuple[int, int] | None = None
        self._over = False
        self.thread = _threads.start(_run, self._in, self._out, step, begin, name=name, end=functools.partial(self._in.put, None))

    def begin(self) -> None:
        """A new epoch: forgets what is left of the old one."""
        while self._pending:
            self._receive()
        self._kept = None
        self._over = False
        self._mark = None

    def mark(self) -> tuple[int, int] | None:
        """As the engine's, for what :meth:`next` gave or raised."""
        return self._mark

    def next(self, timeout: float | None) -> Any:
        """The next batch after the step, or ``END``. Blocks; ``timeout`` holds for the batch's arrival, not for the step. With a timeout
        of 0 neither is waited for: ``NOT_READY``."""
        while not self._over and self._take(0.0):
            pass
        if not self._pending and self._kept is None:
            if self._over:
                return END
            if timeout == 0:
                return NOT_READY
            try:
                arrived = self._take(timeout)
            except BaseException:
                # A batch that failed had its place as well; a timeout took none, and gives none back.
                self._mark = self._engine.mark()
                self._engine.feed.refill()
                raise
            if not arrived:
                return END
        if timeout == 0 and self._out.empty() and self._kept is None:
            return NOT_READY
        found, self._kept = self._kept, None
        if found is None:
            found = self._receive()
            try:
                self._engine.feed.refill()
            except BaseException:
                self._kept = found
                raise
        batch, error, self._mark = found
        if error is not None:
            raise error
        return batch

    def close(self) -> None:
        """Ends the thread when it has finished what it is at."""
        self._in.put(None)
        self.thread.join(1.0)

    def _take(self, timeout: float | None) -> bool:
        before = self._engine.mark()
        try:
            found = self._engine.take(timeout)
        except BaseException as error:
            # Ctrl-C while it waits has no place.
            if timeout != 0.0 or not (isinstance(error, Exception) or self._engine.mark() != before):
                raise
            self._in.put((None, error, self._engine.mark()))
            self._pending += 1
            # Said once for each call: a feed that is broken for good would say it for ever.
            return False
        if found is None:
            return False
        (batch,) = found
        if batch is END:
            self._over = True
            return False
        self._in.put((batch, None, self._engine.mark()))
        self._pending += 1
        return True

    def _receive(self) -> tuple[Any, BaseException | None, Any]:
        while True:
            try:
                found = self._out.get(timeout=0.5)
            except queue.Empty:
                if not self.thread.is_alive():
                    raise RuntimeError("Pin memory thread exited unexpectedly") from None
                continue
            self._pending -= 1
            return found


def _run(source: Any, sink: Any, step: Callable[[Any], Any], begin: Callable[[], None]) -> None:
    begin()
    while (item := source.get()) is not None:
        batch, error, mark = item
        if error is None:
            try:
                batch = step(batch)
            except Exception as raised:
                batch, error = None, raised
        sink.put((batch, error, mark))
        del item, batch, error
