"""Asking for the next batch without waiting."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from feedrate._fetch import NOT_READY

_END = object()


class Coming:
    """What was asked for by ``async for``, in the place of where batches come from: it is received when it is handed over, and not when it
    arrives, for the task may be cancelled by then."""

    def __init__(self, owner: Asked, executor: ThreadPoolExecutor) -> None:
        self._owner = owner
        self._source = owner._batches
        self._mark: Any = None
        self.future: Future[tuple[Any, BaseException | None]] = executor.submit(self._fetch, owner._timeout or None)

    def _fetch(self, timeout: float | None) -> tuple[Any, BaseException | None]:
        try:
            return self._source.next(timeout), None
        except BaseException as error:
            return None, error

    def next(self, timeout: float | None) -> Any:
        """As of the engine."""
        if timeout == 0 and not self.future.done():
            return NOT_READY
        wait([self.future])
        self._owner._coming = None
        self._mark = self._source.mark()
        batch, error = self.future.result()
        if error is not None:
            raise error
        return batch

    def mark(self) -> Any:
        """As of the engine; ``None`` before it is handed over."""
        return self._mark


class Asked:
    """What both loaders' iterators can do beside ``next()``. Used from one thread at a time."""

    _executor: ThreadPoolExecutor | None = None
    _coming: Coming | None = None
    _batches: Any = None
    _timeout: Any = None
    _over: bool = False

    @abstractmethod
    def _ask(self) -> Any:
        """The next batch or ``NOT_READY``; raises ``StopIteration`` at the end."""

    @abstractmethod
    def __next__(self) -> Any: ...

    def try_next(self) -> Any:
        """The next batch if it is there, else ``feedrate.NOT_READY`` at once. Raises ``StopIteration`` at the end of the epoch, and
        whatever ``next()`` would raise. Without workers the batch is made in the call."""
        return self._ask()

    def __aiter__(self) -> Asked:
        return self

    async def __anext__(self) -> Any:
        """The next batch; other tasks run while it is waited for, on a thread of this iterator's own. A batch that was on its way when the
        task was cancelled comes with the next call, and counts as received then."""
        if self._coming is None and not self._over:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="feedrate_anext")
            self._coming = Coming(self, self._executor)
        if self._coming is not None:
            await asyncio.shield(asyncio.wrap_future(self._coming.future))
        batch = next(self, _END)
        if batch is _END:
            executor = self._executor
            self._executor = None
            if executor is not None:
                executor.shutdown(wait=False)
            raise StopAsyncIteration
        return batch

    def _leave_coming(self) -> None:
        """Before the next epoch: what is on its way belongs to this one."""
        if self._coming is not None:
            wait([self._coming.future])
            self._coming = None
