"""Errors that feedrate raises, and users' exceptions on their way from a worker to the training loop."""

from __future__ import annotations

import contextlib
import pickle
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from feedrate import _native

Error = _native.Error
PipelineError = _native.PipelineError


class WorkerDied(Error, RuntimeError):
    """A worker ended and its work could not be done again.

    ``worker`` is its number, ``pid`` its process, ``exit_code`` or ``signal`` how it ended, ``indices`` the index objects of the
    tasks that were with it (the one that it was doing first), ``delivered`` the number of batches delivered before.
    """

    def __init__(
        self,
        message: str,
        *,
        worker: int = -1,
        pid: int | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        indices: Sequence[Any] = (),
        delivered: int = 0,
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.pid = pid
        self.exit_code = exit_code
        self.signal = signal
        self.indices = list(indices)
        self.delivered = delivered


class ImageError(Error, ValueError):
    """An image could not be decoded.

    ``name`` is the file or sample, if it has one, ``format`` what it is by its content (``"JPEG"`` and so on, or None), ``reason`` what
    is wrong, and ``flaw`` of which kind that is: ``"unknown"`` (no image), ``"unsupported"``, ``"truncated"``, ``"damaged"``,
    ``"too large"``, ``"no frame"`` or ``"decoder"``.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        format: str | None = None,
        reason: str | None = None,
        flaw: str = "damaged",
    ) -> None:
        super().__init__(message)
        self.name = name
        self.format = format
        self.reason = message if reason is None else reason
        self.flaw = flaw


class _KeyErrorMessage(str):
    """A string whose repr is itself: KeyError shows the repr of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def short(value: Any, limit: int = 200) -> str:
    """``repr(value)``, cut in the middle when it is long; never raises."""
    try:
        text = repr(value)
    except Exception as error:  # a user's __repr__
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    if len(text) > limit:
        text = f"{text[: limit // 2]} … {text[-limit // 2 :]}"
    return text


def annotate(error: BaseException, text: str) -> None:
    """``add_note``, for exceptions that take one: frozen ones do not, and some have other ideas."""
    with contextlib.suppress(Exception):
        error.add_note(text)


def _notes(error: BaseException) -> list[str]:
    try:
        found = getattr(error, "__notes__", None)
        return list(map(str, found)) if isinstance(found, list | tuple) else []
    except Exception:
        return []


def capture(error: BaseException, where: str, place: str | None) -> dict[str, Any]:
    """What travels for ``error``: plain data, and the exception itself where it can be pickled."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    notes = _notes(error)
    if place is not None and place not in notes:
        annotate(error, place)
        notes.append(place)
    found: dict[str, Any] = {"name": type(error).__name__, "where": where, "text": text, "notes": notes}
    try:
        found["type"] = pickle.dumps(type(error))
    except Exception:
        found["type"] = None
    try:
        blob = pickle.dumps(error)
        # Many exceptions pickle and then cannot be put together again: try here, where it does no harm.
        pickle.loads(blob)
        found["error"] = blob
    except Exception:
        found["error"] = None
    return found


def _loads(blob: bytes | None) -> Any:
    if blob is None:
        return None
    try:
        return pickle.loads(blob)
    except Exception:
        return None


def reraise(payload: dict[str, Any]) -> NoReturn:
    """Raises what ``capture`` took, in the way of torch's loader: the same type, whose message holds the worker and the original
    traceback. Where that type takes no single message, the exception itself, with the traceback as a note; where it cannot
    travel at all, a ``RuntimeError`` with the text."""
    message = f"Caught {payload['name']} {payload['where']}.\nOriginal {payload['text']}"
    kind = _loads(payload["type"])
    error: BaseException | None = None
    if isinstance(kind, type) and issubclass(kind, BaseException):
        if kind is KeyError:
            error = KeyError(_KeyErrorMessage(message))
        else:
            try:
                make: Any = kind
                error = make(message=message) if getattr(kind, "message", None) else make(message)
            except Exception:
                error = None
    if not isinstance(error, BaseException):
        error = _loads(payload["error"])
        if isinstance(error, BaseException):
            annotate(error, message)
        else:
            error = RuntimeError(message)
    known = _notes(error)
    for text in payload["notes"]:
        if text not in known:
            annotate(error, text)
    raise error from None


class _Unsent:
    """Stands for an index that cannot be pickled. Unpickled, where its batch is to be made, it raises why."""

    def __init__(self, kind: type[Exception], why: str) -> None:
        self._why = kind, why

    def __reduce__(self) -> Any:
        return _refuse, self._why


def _refuse(kind: type[Exception], why: str) -> NoReturn:
    raise kind(why)


def pickled_index(index: Any) -> bytes:
    """The pickle of a batch's index, on its way to a worker. One that cannot be pickled is an error of that batch, and of no other."""
    try:
        return pickle.dumps(index)
    except Exception:
        try:
            pickle.dumps(index)
        except Exception as again:
            kind = type(again) if type(again) in (TypeError, AttributeError, RecursionError) else pickle.PicklingError
            why = f'{again}: the index {short(index)} cannot be sent to a worker process. Yield what pickles, or use workers="thread"'
            return pickle.dumps(_Unsent(kind, why))
        # It was none of the index's: a signal's handler raised meanwhile. The index is sent with the next call.
        raise


def describe_tasks(indices: Sequence[Any]) -> str:
    """The tasks of a worker, for a message."""
    if not indices:
        return "it had no task"
    first = f"it was loading indices {short(indices[0])}"
    if len(indices) > 1:
        first += f"; {len(indices) - 1} more task(s) were waiting for it"
    return first


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; the number itself when it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def memory_hint(before: int | None) -> str:
    """What the kernel's counters say about a SIGKILL; ``before`` is the out-of-memory count when the loader started."""
    limit, kills = _native.memory_limit(), _native.oom_kills()
    if kills is not None and before is not None and kills > before:
        size = "" if limit is None else f" of {limit / 2**20:,.0f} MiB"
        return (
            f" The kernel has killed {kills - before} process(es) here for lack of memory since this loader started: the memory "
            f"limit{size} is the likely cause. Fewer workers, a smaller prefetch_factor or a smaller batch need less."
        )
    if limit is not None:
        return f" If the memory limit of {limit / 2**20:,.0f} MiB is the cause, the kernel's log says so."
    return ""


def died(args: tuple[Any, ...], *, indices: Sequence[Any], redo: bool, iterable: bool, oom_before: int | None) -> Exception:
    """The exception for a worker that is gone for good, from what the engine knows of it and the indices of its tasks."""
    worker, pid, code, number, ready, _, twice, delivered = args
    if number is not None:
        how = f"was killed by {signal_name(number)}"
    elif code is not None:
        how = f"exited with code {code}"
    else:
        how = "exited"
    facts = {
        "worker": worker,
        "pid": pid,
        "exit_code": code,
        "signal": number,
        "indices": indices,
        "delivered": delivered,
    }
    hint = memory_hint(oom_before) if number == signal.SIGKILL else ""
    if not redo and not iterable:
        # torch's words; the cause holds what its SIGCHLD handler would have said.
        error = WorkerDied(f"DataLoader worker (pid(s) {pid}) exited unexpectedly", **facts)
        if number is not None:
            cause = RuntimeError(f"DataLoader worker (pid {pid}) is killed by signal: {signal.strsignal(number)}. {hint}")
        else:
            cause = RuntimeError(
                f"DataLoader worker (pid {pid}) exited unexpectedly with exit code {code}. Details are lost due to "
                "multiprocessing. Rerunning with num_workers=0 may give better error trace."
            )
        error.__cause__ = cause
        error.add_note(f"feedrate: worker {worker} {how}; {describe_tasks(indices)}. With redo=True it would be replaced.")
        return error
    if not ready and twice:
        text = (
            f"DataLoader worker {worker} (pid {pid}) {how} during its start, twice. If it could not import or unpickle "
            f"something, its own traceback stands above on stderr.{hint}"
        )
    elif iterable:
        text = (
            f"DataLoader worker {worker} (pid {pid}) {how} after {delivered} batches of this epoch had been delivered. The stream "
            f"of an iterable dataset cannot be taken up in the middle, so its work cannot be done again.{hint}"
        )
    else:
        text = (
            f"DataLoader worker {worker} (pid {pid}) {how} while {describe_tasks(indices).removeprefix('it was ')}. The same task "
            f"had ended another worker before, so it is not tried again; the next batch is one call away.{hint}"
        )
    return WorkerDied(text, **facts)


def exiting() -> bool:
    """Whether the interpreter is shutting down."""
    return sys.is_finalizing()
