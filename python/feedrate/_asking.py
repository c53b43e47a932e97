"""Asking for the next batch without waiting."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_END = object()


class Asked:
    """What both loaders' iterators can do beside ``next()``. Used from one thread at a time."""

    _executor: ThreadPoolExecutor | None = None
    _coming: Future[Any] | None = None

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
        task was cancelled comes with the next call."""
        if self._coming is None:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="feedrate_anext")
            self._coming = self._executor.submit(self._next_or_end)
        coming = self._coming
        try:
            batch = await asyncio.shield(asyncio.wrap_future(coming))
        finally:
            if coming.done():
                self._coming = None
        if batch is _END:
            executor = self._executor
            self._executor = None
            if executor is not None:
                executor.shutdown(wait=False)
            raise StopAsyncIteration
        return batch

    def _next_or_end(self) -> Any:
        # A future cannot hold a StopIteration.
        return next(self, _END)
