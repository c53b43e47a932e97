"""The command ``feedrate``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import feedrate
from feedrate.testing import verify


class _Usage(Exception):
    """An argument that cannot be."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 for a loader that is exact, 1 for one that is not, 2 for a call that cannot be."""
    parser = argparse.ArgumentParser(prog="feedrate", description="Feedrate: a data loader for machine-learning training.")
    parser.add_argument("--version", action="version", version=f"feedrate {feedrate.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "verify",
        help="stop a loader at its steps, take it up elsewhere, compare",
        description="Stops a loader at its steps, takes its state up in fresh loaders with other numbers of workers and ranks, and "
        "compares the samples with those of a run without a stop. Exit code 0: exact. 1: a difference, which is printed. 2: it could not "
        "be tried.",
    )
    command.add_argument(
        "make_loader",
        metavar="MODULE:FUNCTION",
        help="makes a fresh loader; a module, or a path ending in .py. Parameters called num_workers, rank and world, or distributed are "
        "given",
    )
    command.add_argument("--cuts", type=_cuts, default="all", help="all, or steps behind which to cut, as 1,5,9 (default: all)")
    command.add_argument(
        "--workers",
        type=_workers,
        default=None,
        help='numbers of workers, as 0,2, or "own" (default: 0,2, or own if it has to be)',
    )
    command.add_argument(
        "--worlds", type=_numbers(1), default=None, help="numbers of ranks, as 1,2 (default: 1,2 if a rank is taken)"
    )
    command.add_argument("--epochs", type=_positive, default=2, help="epochs to run (default: 2)")
    command.add_argument("--steps", type=_positive, default=None, help="look at no more than so many batches, of one epoch")
    command.add_argument(
        "--ids", metavar="MODULE:FUNCTION", help="makes a list of sample ids out of a batch (default: by content)"
    )
    command.add_argument(
        "--allow-refused", action="store_true", help="a state that is refused elsewhere, with a reason, is no failure"
    )
    command.add_argument("--quiet", action="store_true", help="no progress")
    return _verify(parser.parse_args(argv))


def _verify(options: argparse.Namespace) -> int:
    out, err = sys.stdout, sys.stderr
    try:
        make_loader = _function(options.make_loader)
        ids = None if options.ids is None else _function(options.ids)
        progress = _Progress(options.quiet)
        try:
            report = verify(
                make_loader,
                cuts=options.cuts,
                workers=_chosen_workers(options.workers, make_loader),
                worlds=options.worlds,
                epochs=options.epochs,
                ids=ids,
                steps=options.steps,
                allow_refused=options.allow_refused,
                progress=progress,
            )
        finally:
            progress.close()
    except (_Usage, TypeError, ValueError) as error:
        if not isinstance(error, _Usage) and _from_elsewhere(error):
            raise
        err.write(f"feedrate verify: {error}\n")
        return 2
    out.write(f"{report}\n")
    return 0 if report.ok else 1


def _from_elsewhere(error: BaseException) -> bool:
    """Whether an error was raised by the user's code, whose traceback is wanted then."""
    traceback = error.__traceback__
    here = Path(__file__).parent
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is None or here not in Path(traceback.tb_frame.f_code.co_filename).parents


def _chosen_workers(workers: Any, make_loader: Callable[..., Any]) -> Any:
    from feedrate._verify import Maker

    if workers is not None:
        return None if workers == "own" else workers
    return (0, 2) if Maker(make_loader).can_set_workers() else None


def _function(name: str) -> Callable[..., Any]:
    """What ``module:function`` or ``path/to/file.py:function`` names."""
    where, colon, path = name.rpartition(":")
    if not colon or not where or not path:
        raise _Usage(f"{name!r} should be MODULE:FUNCTION or PATH.py:FUNCTION, such as train:make_loader")
    if str(Path.cwd()) not in sys.path:
        # As `python -m` and scripts have it; a command that was installed has not.
        sys.path.insert(0, str(Path.cwd()))
    if where.endswith(".py"):
        file = Path(where)
        if not file.is_file():
            raise _Usage(f"there is no file {where}")
        # Workers that are spawned have to find it by its name.
        sys.path.insert(0, str(file.resolve().parent))
        where = file.stem
    try:
        found: Any = importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise _Usage(f"there is no module {error.name!r} in {Path.cwd()} or on Python's path") from error
        raise
    for part in path.split("."):
        if not hasattr(found, part):
            raise _Usage(f"{where} has no {path}")
        found = getattr(found, part)
    if not callable(found):
        raise _Usage(f"{name} is a {type(found).__name__} and no function: write one that makes a fresh loader each time")
    result: Callable[..., Any] = found
    return result


def _numbers(least: int) -> Callable[[str], list[int]]:
    def parse(text: str) -> list[int]:
        try:
            values = [int(part) for part in text.split(",")]
        except ValueError:
            values = []
        if not values or min(values) < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} should be whole numbers from {least}, with commas between them, such as 1,2"
            )
        return values

    return parse


def _cuts(text: str) -> Literal["all"] | list[int]:
    return "all" if text == "all" else _numbers(0)(text)


def _workers(text: str) -> Literal["own"] | list[int]:
    return "own" if text == "own" else _numbers(0)(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} should be a whole number from 1")
    return int(text)


class _Progress:
    """A line on standard error: rewritten on a terminal, a new one each five seconds elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._every = 0.1 if self._terminal else 5.0
        self._next = 0.0
        self._open = False

    def __call__(self, done: int, total: int, text: str) -> None:
        now = time.monotonic()
        if self._quiet or (now < self._next and done < total):
            return
        self._next = now + self._every
        line = f"{done} of {total} restores; {text}"
        sys.stderr.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        sys.stderr.flush()
        self._open = self._terminal

    def close(self) -> None:
        """Ends the line."""
        if self._open:
            sys.stderr.write("\n")
            self._open = False
