"""The arguments that both loaders have beyond torch's: their checks and meaning, in one place."""

from __future__ import annotations

import numbers
import operator
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from feedrate import _lanes
from feedrate._iterate import attribute, has_state

WORKERS = ("process", "thread", "auto")
SEEDING = ("worker", "sample")


def check(loader: Any, *, iterable: bool) -> None:
    """Refuses values that mean nothing, and combinations that cannot be kept. Raises ``ValueError`` or ``TypeError``."""
    if loader.workers not in WORKERS:
        raise ValueError(f"workers option should be one of {WORKERS}, but got workers={loader.workers!r}")
    if loader.seeding not in SEEDING:
        raise ValueError(f"seeding option should be one of {SEEDING}, but got seeding={loader.seeding!r}")
    items = loader.items_in_flight
    if not isinstance(items, int) or isinstance(items, bool) or items < 1:
        raise ValueError(f"items_in_flight option should be a positive integer, but got items_in_flight={items!r}")
    if loader.seed is not None:
        try:
            if isinstance(loader.seed, (bool, np.bool_)):
                raise TypeError
            loader.seed = operator.index(loader.seed)
        except TypeError:
            raise TypeError(f"seed option should be an integer or None, but got seed={loader.seed!r}") from None
    if not iterable or _lanes.is_laned(loader.dataset):
        if iterable and items > 1:
            raise ValueError(
                f"items_in_flight={items} fetches several samples by their index at once, and a pipeline is read in lanes: use more "
                "workers, and lanes(rows=...) for more than 8 of them"
            )
        return
    if loader.seeding == "sample":
        raise ValueError(
            'seeding="sample" keys random numbers by the position of a sample in the epoch, and the positions of an iterable '
            'dataset\'s samples are not known to the loader: use seeding="worker", or a map-style dataset'
        )
    if items > 1:
        raise ValueError(
            f"items_in_flight={items} fetches several samples by their index at once, and an iterable dataset has no index: leave it "
            "at 1, or use a map-style dataset"
        )
    if use_threads(loader) and loader.num_workers > 1 and has_state(loader.dataset):
        name = type(loader.dataset).__name__
        raise ValueError(
            f"{name} keeps where it stands in itself (it has state_dict() and load_state_dict()), and {loader.num_workers} threads would "
            f'share it and mix up their places: use workers="process", where each has a copy, or num_workers=1, or give these methods to '
            f"the iterator that its __iter__() makes"
        )
    from feedrate._loader import IterableDataset

    if use_threads(loader) and loader.num_workers > 1 and not isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            f'workers="thread" with num_workers={loader.num_workers} and an iterable dataset: torch.utils.data.get_worker_info() is '
            "one variable for the whole process, so the dataset could not tell which share of the data a thread should give. Use "
            'workers="process" or num_workers=1, or derive it from feedrate.IterableDataset (too) and ask '
            "feedrate.get_worker_info()"
        )


def check_settable(loader: Any, name: str, fixed: tuple[str, ...] = ()) -> None:
    """Refuses, as torch's loader does, to change what was settled when the loader was made."""
    # The ranks are what a constructor finds out last.
    if name in (*fixed, "distributed", "remainder") and "_ranks" in loader.__dict__:
        raise ValueError(f"{name} attribute should not be set after {type(loader).__name__} is initialized")


def use_threads(loader: Any) -> bool:
    """Whether the loader's workers are threads."""
    if loader.workers == "auto":
        if attribute(loader.dataset, "native") is True:
            # Nearly all of its work is done without the GIL.
            return True
        return not getattr(sys, "_is_gil_enabled", lambda: True)()
    return bool(loader.workers == "thread")


def dataset_epoch(dataset: Any) -> Any:
    """The epoch that a dataset was told by ``set_epoch``, if it keeps it as ``epoch``: persistent workers, which have their own
    copies, are told too. Other things than numbers and text reach them by themselves, as a shared value does."""
    epoch = attribute(dataset, "epoch") if callable(attribute(dataset, "set_epoch")) else None
    return epoch if isinstance(epoch, (numbers.Number, np.number, str)) else None


def warn_no_batches(engine: Any, dataset: Any, batch_size: int | None, *, drop_last: bool, plan: Any) -> None:
    """For an epoch that had no batch, not even one that failed, because of ``drop_last``, or because all elements were bad: hardly ever
    meant. ``plan``: of a pipeline's lanes."""
    bad = 0 if plan is None else plan.skipped + len(plan.last_skipped)
    if bad:
        entry = plan.last_skipped[-1] if plan.last_skipped else "see skipped"
        warnings.warn(f"This epoch had no batch: on_error() left out {bad} bad elements. The last: {entry}", stacklevel=4)
        return
    if not drop_last:
        return
    try:
        n = len(dataset)
    except TypeError:
        return
    if batch_size is None or n >= batch_size or engine.feed.counters()[0] > 0:
        return
    warnings.warn(
        f"This epoch had no batch: the dataset's {n} samples do not fill one batch of {batch_size}, and drop_last=True",
        stacklevel=4,
    )


def keyed_seed(loader: Any, drawn: int) -> int:
    """The key of ``seeding="sample"``: the user's, or the one drawn at the first ``iter()``."""
    if loader.seed is not None:
        return int(loader.seed)
    if not hasattr(loader, "_drawn_seed"):
        object.__setattr__(loader, "_drawn_seed", drawn)
    return int(loader._drawn_seed)


class Told:
    """As ``property``, but a subclass may have an attribute of that name, as subclasses of torch's loader do."""

    def __init__(self, get: Callable[[Any], Any]) -> None:
        self._get = get
        self.__doc__ = get.__doc__

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else self._get(owner)
