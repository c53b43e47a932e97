"""The command ``feedrate``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import time
import traceback
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
    command.set_defaults(run=_verify)
    _add_inspect(commands)
    options = parser.parse_args(argv)
    code: int = options.run(options)
    return code


def _add_inspect(commands: Any) -> None:
    command = commands.add_parser(
        "inspect",
        help="what is in a set of images; contact sheets of files and of batches",
        description="Decodes all images at the places, and lists formats, sizes and damaged files; or takes a batch of a loader. Writes a "
        "contact sheet of either. Exit code 0: all is well. 1: files are damaged. 2: it could not be looked at.",
    )
    command.add_argument(
        "what",
        nargs="+",
        metavar="PATH",
        help="files, folders, tars, patterns such as 'train/**/*.jpg'; or one MODULE:FUNCTION (or PATH.py:FUNCTION) that makes a loader",
    )
    command.add_argument("--sheet", metavar="FILE.png", help="write a contact sheet")
    command.add_argument("--images", type=_positive, default=64, help="how many images the sheet shows at most (default: 64)")
    command.add_argument("--columns", type=_positive, default=8, help="images side by side (default: 8)")
    command.add_argument(
        "--size", type=_positive, default=128, help="pixels of an image on the sheet, in each direction (default: 128)"
    )
    command.add_argument("--limit", type=_positive, help="look at no more than so many files")
    command.add_argument(
        "--threads", type=_positive, help="threads that decode (default: as many as there are processors, up to 8)"
    )
    command.add_argument("--batch", type=_positive, default=1, help="which batch of the loader, from 1 (default: 1)")
    command.add_argument("--mean", type=_floats, help="the mean that was subtracted from a batch's images, as 0.485,0.456,0.406")
    command.add_argument("--std", type=_floats, help="what they were divided by, as 0.229,0.224,0.225")
    command.add_argument("--quiet", action="store_true", help="no progress")
    command.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> int:
    from feedrate import _inspect as look

    out, err = sys.stdout, sys.stderr
    try:
        what: list[str] = options.what
        if len(what) == 1 and _is_function(what[0]):
            _inspect_batch(options)
            return 0
        threads = options.threads or min(os.cpu_count() or 1, 8)
        progress = _Progress(options.quiet)
        try:
            report = look.inspect(
                what,
                threads=threads,
                limit=options.limit,
                sheet=options.images if options.sheet else 0,
                size=options.size,
                progress=lambda done: progress.line(f"{done:,} files"),
            )
        finally:
            progress.close()
        report.write(out)
        pictures = [one.thumbnail for one in report.images if one.thumbnail is not None][: options.images]
        if options.sheet and pictures:
            look.write_png(options.sheet, look.contact_sheet(pictures, options.columns, options.size))
            out.write(f"{options.sheet}: the first {len(pictures)} images\n")
    except (_Usage, look.NothingFound, OSError) as error:
        err.write(f"feedrate inspect: {error}\n")
        return 2
    return 1 if report.damaged else 0


def _inspect_batch(options: argparse.Namespace) -> None:
    from feedrate import _inspect as look

    loader = _function(options.what[0])()
    if not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise _Usage(f"{options.what[0]} gave {type(loader).__name__}: it should make a loader, or anything that gives batches")
    batches = iter(loader)
    batch = None
    for number in range(1, options.batch + 1):
        try:
            batch = next(batches)
        except StopIteration:
            raise _Usage(f"the loader has {number - 1} batches, and no batch {options.batch}") from None
    images = list(look.images_of(batch))
    if not images:
        raise _Usage(
            f"there are no images in a batch of type {type(batch).__name__}: arrays of 4 dimensions with 1, 3 or 4 channels, or lists of "
            "arrays of 3 dimensions"
        )
    pictures = []
    for path, found in images:
        rgb, how = look.shown(found, options.mean, options.std)
        shapes = sorted({one.shape for one in found})
        sys.stdout.write(f"{path}: {len(found)} images of {found[0].dtype}, {', '.join(map(str, shapes[:5]))}; shown {how}\n")
        pictures += [look.shrunk(one, options.size) for one in rgb]
    pictures = pictures[: options.images]
    if options.sheet:
        look.write_png(options.sheet, look.contact_sheet(pictures, options.columns, options.size))
        sys.stdout.write(f"{options.sheet}: {len(pictures)} images\n")


def _is_function(name: str) -> bool:
    """Whether an argument names a function rather than a place."""
    where, colon, path = name.rpartition(":")
    return bool(colon and where) and path.replace(".", "_").isidentifier() and not Path(name).exists()


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
    except Exception as error:
        if isinstance(error, _Usage) or (isinstance(error, TypeError | ValueError) and not _from_elsewhere(error)):
            err.write(f"feedrate verify: {error}\n")
        else:
            traceback.print_exc(file=err)
            err.write(f"feedrate verify: nothing could be compared: {type(error).__name__}: {error}\n")
        return 2
    out.write(f"{report}\n")
    return 0 if report.ok else 1


def _from_elsewhere(error: BaseException) -> bool:
    """Whether an error was raised by the user's code, whose traceback is wanted then."""
    last = error.__traceback__
    here = Path(__file__).parent
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is None or here not in Path(last.tb_frame.f_code.co_filename).parents


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


def _floats(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, 3):
        raise argparse.ArgumentTypeError(f"{text!r} should be one number, or three with commas between them, such as 0.5,0.5,0.5")
    return values


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
        self._write(f"{done} of {total} restores; {text}")

    def line(self, text: str) -> None:
        """Shows a line, unless the last one was just now."""
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + self._every
        self._write(text)

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        sys.stderr.flush()
        self._open = self._terminal

    def close(self) -> None:
        """Ends the line."""
        if self._open:
            sys.stderr.write("\n")
            self._open = False
