"""For users' own tests: is a loader exact when it is stopped and taken up again?

>>> from feedrate import DataLoader
>>> from feedrate.testing import assert_resumable
>>> def make_loader(num_workers=0):
...     return DataLoader(range(20), batch_size=3, shuffle=True, generator=7, num_workers=num_workers)
>>> report = assert_resumable(make_loader, workers=(0,))
>>> report.restores > 20
True

``feedrate verify module:function`` does the same from the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from feedrate._ids import sample_ids
from feedrate._verify import Difference, Report, Verifier

__all__ = ["Difference", "Report", "assert_resumable", "sample_ids", "verify"]


def verify(
    make_loader: Callable[..., Any],
    *,
    cuts: Literal["all"] | Sequence[int] = "all",
    workers: Sequence[int] | None = (0, 2),
    worlds: Sequence[int] | None = None,
    epochs: int = 2,
    ids: Callable[[Any], Any] | None = None,
    steps: int | None = None,
    allow_refused: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Stops a loader at its steps, takes its state up in fresh loaders, and compares all that comes with an uninterrupted run.

    Works for both loaders of feedrate and for any other with ``state_dict()`` and ``load_state_dict()``, such as torchdata's. In this
    order: runs without a stop must repeat themselves and be the same with each number of workers, and together the same with each
    number of ranks; asking for states must change nothing, and states must stay as they are; then each state is loaded, after a way
    through JSON (or pickle, if it holds more), into a fresh loader for each number of workers and ranks, and also saved at once, saved
    again behind one batch, and loaded again. While the rest of the epoch comes, ``random``, NumPy's and torch's process-wide
    generators are in another state than they were; at the start of each following epoch they are as in the run without a stop, as
    a training script restores them. They are put back at the end. Takes a time that grows with the square of the number of batches.

    Args:
        make_loader: makes a fresh loader. It is given ``num_workers`` if it has a parameter of that name (or ``workers``), and
            ``rank`` and ``world`` (or ``world_size``, ``num_replicas``), or ``distributed`` as ``(rank, world)``; with ``**kwargs``,
            ``num_workers`` and ``distributed``. In a feedrate loader that it makes without asking, they are set afterwards.
        cuts: numbers of batches behind which each epoch is cut, or ``"all"``. The start and the ends of epochs are always cut.
        workers: numbers of workers to save and load with; ``None`` for the number that ``make_loader`` chooses.
        worlds: numbers of ranks to save and load with; the default is ``(1, 2)`` when ``make_loader`` takes a rank, else no ranks.
            Ranks run one after the other in this process.
        epochs: epochs to run.
        ids: makes a list of sample ids out of a batch; the default tells samples by their content (:func:`sample_ids`).
        steps: look at no more than so many batches of an epoch; then only one epoch is run.
        allow_refused: a :class:`feedrate.ResumeError` in another place than the state was saved in is no failure.
        progress: called with the number of restores done, of all, and what is being done.

    Raises ``TypeError`` and ``ValueError`` for arguments that cannot be; an error of the loader itself without a stop goes through.
    """
    return Verifier(
        make_loader,
        cuts=cuts,
        workers=workers,
        worlds=worlds,
        epochs=epochs,
        ids=ids,
        steps=steps,
        allow_refused=allow_refused,
        progress=progress,
    ).run()


def assert_resumable(
    make_loader: Callable[..., Any],
    *,
    cuts: Literal["all"] | Sequence[int] = "all",
    workers: Sequence[int] | None = (0, 2),
    worlds: Sequence[int] | None = None,
    epochs: int = 2,
    ids: Callable[[Any], Any] | None = None,
    steps: int | None = None,
    allow_refused: bool = False,
) -> Report:
    """:func:`verify` for tests: raises ``AssertionError`` with the first difference, else returns the report."""
    report = verify(
        make_loader,
        cuts=cuts,
        workers=workers,
        worlds=worlds,
        epochs=epochs,
        ids=ids,
        steps=steps,
        allow_refused=allow_refused,
    )
    if not report.ok:
        raise AssertionError(str(report))
    return report
