"""The arguments that both loaders have beyond torch's: their checks and meaning, in one place."""

from __future__ import annotations

import numbers
import operator
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from feedrate import _lanes, _ranks
from feedrate._coordinator import Coordinator
from feedrate._iterate import attribute, has_state
from feedrate._progress import Options, options, progress

WORKERS = ("process", "thread", "auto")
SEEDING = ("worker", "sample")
NAMES = tuple(field.name for field in fields(Options))


def _checked(name: str, value: Any) -> Any:
    """An option that means something, as it is used. Raises ``ValueError`` or ``TypeError``."""
    if name == "workers" and not (isinstance(value, str) and value in WORKERS):
        raise ValueError(f"workers option should be one of {WORKERS}, but got workers={value!r}")
    if name == "seeding" and not (isinstance(value, str) and value in SEEDING):
        raise ValueError(f"seeding option should be one of {SEEDING}, but got seeding={value!r}")
    if name == "items_in_flight" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"items_in_flight option should be a positive integer, but got items_in_flight={value!r}")
    if name == "coordinator" and not (value is None or isinstance(value, Coordinator)):
        raise TypeError(f"coordinator option should be a feedrate.Coordinator or None, but got coordinator={value!r}")
    if name == "redo" and not isinstance(value, (bool, np.bool_, int)):
        raise TypeError(f"redo option should be True or False, but got redo={value!r}")
    if name in ("seed", "snapshot_every_n_steps") and value is not None:
        try:
            if isinstance(value, (bool, np.bool_)):
                raise TypeError
            return operator.index(value)
        except TypeError:
            raise TypeError(f"{name} option should be an integer or None, but got {name}={value!r}") from None
    return value


def give(loader: Any, given: Options, *, iterable: bool) -> None:
    """Gives a loader that is being made its options. Refuses values that mean nothing, and combinations that cannot be kept."""
    for name in NAMES:
        setattr(given, name, _checked(name, getattr(given, name)))
    mine = progress(loader)
    mine.options = given
    try:
        _check_together(loader, given, iterable=iterable)
        mine.ranks = _ranks.check(loader, given.distributed, given.remainder)
    except BaseException:
        mine.options = None
        raise
    for name in NAMES:
        # What a subclass has of that name is its own.
        if name not in loader.__dict__ and not hasattr(type(loader), name):
            loader.__dict__[name] = getattr(given, name)


def change(loader: Any, name: str, value: Any, put: Callable[[str, Any], None], fixed: tuple[str, ...] = ()) -> None:
    """Sets an attribute with ``put``: the options of a loader that was made change with theirs. Refuses, as torch's loader does, to
    change what was settled. Subclasses may have attributes of these names: what cannot be an option is not taken for one."""
    given = progress(loader).options if name in NAMES or name in fixed else None
    if given is None:
        put(name, value)
        return
    own = not type(loader).__module__.startswith("feedrate.")
    settled = {"distributed": _ranks.is_option, "remainder": _ranks.is_remainder}.get(name)
    if name in fixed or (settled is not None and not (own and not settled(value))):
        raise ValueError(f"{name} attribute should not be set after {type(loader).__name__} is initialized")
    changed = replace(given)
    try:
        if settled is None:
            setattr(changed, name, _checked(name, value))
        if changed != given and loader._iterator is not None and name != "coordinator":
            raise ValueError(
                f"{name} attribute should not be set while persistent workers run, which were started with another one"
            )
    except (TypeError, ValueError):
        if not own:
            raise
        changed = given
    put(name, value)
    progress(loader).options = changed


def _check_together(loader: Any, given: Options, *, iterable: bool) -> None:
    items = given.items_in_flight
    if not iterable or _lanes.is_laned(loader.dataset):
        if iterable and items > 1:
            raise ValueError(
                f"items_in_flight={items} fetches several samples by their index at once, and a pipeline is read in lanes: use more "
                "workers, and lanes(rows=...) for more than 8 of them"
            )
        return
    if given.seeding == "sample":
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


def use_threads(loader: Any) -> bool:
    """Whether the loader's workers are threads."""
    workers = options(loader).workers
    if workers == "auto":
        if attribute(loader.dataset, "native") is True:
            # Nearly all of its work is done without the GIL.
            return True
        return not getattr(sys, "_is_gil_enabled", lambda: True)()
    return workers == "thread"


def check_ranks(loader: Any) -> None:
    """Refuses an epoch of a loader that was made as the only one, and that is now one of several ranks."""
    ranks = progress(loader).ranks
    if options(loader).distributed != "auto" or ranks is None or ranks.world > 1:
        return
    rank, world = _ranks.find()
    if world > 1:
        raise RuntimeError(
            f'distributed="auto" found 1 rank when this loader was made, and this process is rank {rank} of {world} now: each rank would '
            "read everything. Make the loader behind init_process_group(), or give distributed=(rank, world size)"
        )


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
    seed = options(loader).seed
    if seed is not None:
        return seed
    mine = progress(loader)
    if mine.drawn_seed is None:
        mine.drawn_seed = drawn
    return int(mine.drawn_seed)


class Told:
    """As ``property``, but a subclass may have an attribute of that name, as subclasses of torch's loader do."""

    def __init__(self, get: Callable[[Any], Any]) -> None:
        self._get = get
        self.__doc__ = get.__doc__

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else self._get(owner)
