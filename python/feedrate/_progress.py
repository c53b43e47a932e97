"""What a loader keeps about itself beside what torch's loader has: in one attribute, so that subclasses may use all other names."""

from __future__ import annotations

import copy
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedrate._coordinator import Coordinator
    from feedrate._ranks import Ranks
    from feedrate._state import Epoch

#: The attribute.
_NAME = "_feedrate"


@dataclass(slots=True)
class Options:
    """The arguments of a loader beyond torch's, as they are in force. The loader's attributes of the same names show them, unless a
    subclass has attributes of its own there."""

    workers: str
    seeding: str
    redo: bool
    items_in_flight: int
    seed: int | None
    snapshot_every_n_steps: int | None
    distributed: Any
    remainder: str
    coordinator: Coordinator | None


class Progress:
    """How a loader was made, and how far it has come."""

    def __init__(self, owner: Any = None) -> None:
        #: The loader; copies of its ``__dict__`` hold this too, until they are asked for their own. ``None``: whoever asks first.
        self.owner: weakref.ref[Any] | None = None if owner is None else weakref.ref(owner)
        self.options: Options | None = None
        self.ranks: Ranks | None = None
        #: Whether the dataset is a stream, where nobody else knows.
        self.iterable: bool | None = None
        #: The number of the next epoch, and the one under way or behind.
        self.epochs = 0
        self.epoch: Epoch | None = None
        #: A state, and batches to pass over, for the next ``iter()``.
        self.loaded: dict[str, Any] | None = None
        self.skip = 0
        #: What pipelines draw by, of a state that was loaded.
        self.pipeline_seed: int | None = None
        #: The key of ``seeding="sample"`` that was drawn.
        self.drawn_seed: int | None = None
        #: Where ranks agree on the steps of a stream.
        self.meeting: Coordinator | None = None
        #: The iterator that ``try_next`` asks.
        self.asked: Any = None
        #: Moved by what makes older epochs none of the loader's business.
        self.turn = 0
        #: Bad elements that were left out.
        self.skipped: list[dict[str, Any]] = []
        #: Of torch's DistributedSampler at the last ``iter()``.
        self.sampler_epoch: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins with the next epoch."""
        state = {**vars(self), "owner": None, "epoch": None, "asked": None}
        state["skipped"] = list(self.skipped)
        state["options"] = copy.copy(self.options)
        return state

    def count(self, epoch: Epoch) -> None:
        """This epoch counts: the next ``iter()`` is the next one."""
        if epoch.turn == self.turn:
            self.epochs = max(self.epochs, epoch.number + 1)

    def told(self, epoch: Epoch) -> None:
        """A batch of it was handed over: warns where the user must think that it is another one."""
        if epoch.turn != self.turn and self.loaded is not None:
            warnings.warn(
                "a state was loaded into this loader, and an iterator that was made before goes on as it was: the state is taken up by the "
                "next iter(loader)",
                stacklevel=5,
            )

    def leave_epochs(self) -> None:
        """Iterators that were made before do not move the loader any more."""
        self.turn += 1
        self.asked = None


def progress(loader: Any) -> Progress:
    """That of a loader, also of one whose constructor did not run."""
    own: dict[str, Any] = loader.__dict__
    found: Progress | None = own.get(_NAME)
    if found is None:
        found = own.setdefault(_NAME, Progress(loader))
    elif found.owner is None:
        found.owner = weakref.ref(loader)
    elif found.owner() is not loader:
        found = own[_NAME] = copy.copy(found)
        found.owner = weakref.ref(loader)
    return found


def options(loader: Any) -> Options:
    """Those of a loader that was made."""
    found = progress(loader).options
    if found is None:
        raise RuntimeError(
            f"the constructor of {type(loader).__name__} did not run to its end: call super().__init__(dataset, ...)"
        )
    return found


def pickled(loader: Any) -> dict[str, Any]:
    """What ``__getstate__`` of a loader gives."""
    return {**loader.__dict__, _NAME: copy.copy(progress(loader))}
