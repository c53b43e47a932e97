"""Resuming exactly under Lightning's ``Trainer``.

In the middle of an epoch, with a loader that has a length, nothing is needed: Lightning saves and loads our state. Two things it gets
wrong for every loader that keeps a state, and :class:`ExactResume` sets them right:

- a checkpoint made at the end of an epoch: the next epoch is lost, or starts with the first epoch's order;
- a loader without a length: Lightning reads one batch ahead, and its checkpoint says so, so that a batch is lost.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    class Callback:
        """What the class derives from at run time."""

else:
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback

__all__ = ["ExactResume"]


class ExactResume(Callback):
    """``Trainer(callbacks=[ExactResume()])``: a run that is resumed from a checkpoint trains on exactly the batches that the whole
    run would have trained on after it. Tested with Lightning 2.6.

    It concerns training loaders that have ``state_dict`` and ``load_state_dict``. Checkpoints that were made without the callback
    resume exactly too, when the loaders have a length. Not exact, and told by a warning, is a checkpoint from the end of an epoch with
    ``reload_dataloaders_every_n_epochs``, where the state of the old loader is put over a new one; nor is a ``CombinedLoader`` of the mode
    ``"max_size"`` while a shorter loader is at its end, which Lightning begins again.
    """

    def __init__(self) -> None:
        self._states: list[Any] = []
        self._over = False
        self._epochs = 0
        self._batches: _Batches | None = None  # kept behind the end of a run, after which a checkpoint can be made as well

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keeps what Lightning forgets when the epoch had ended."""
        loop = checkpoint.get("loops", {}).get("fit_loop", {})
        self._states = loop.get("state_dict", {}).get("combined_loader", [])
        self._over = bool(loop.get("epoch_loop.batch_progress", {}).get("is_last_batch"))
        self._epochs = loop.get("epoch_progress", {}).get("current", {}).get("processed", 0)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Takes its place between Lightning and the loaders, before the first batch."""
        fetcher = trainer.fit_loop._data_fetcher
        self._batches = batches = _Batches(fetcher, trainer.fit_loop)
        if self._over and self._states:
            if getattr(trainer, "reload_dataloaders_every_n_epochs", 0):
                warnings.warn(
                    "reload_dataloaders_every_n_epochs makes new loaders at the ends of epochs, and this checkpoint, from the end of one, "
                    "has the state of the old loader: the order of the next epoch is not that of the whole run. Use one from the middle",
                    stacklevel=2,
                )
            batches.combined._load_state_dicts(self._states)
            iter(fetcher)
            fetcher.done = False
            batches.over, batches.epochs = True, self._epochs
        self._states, self._over = [], False

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """The state after the batch that was trained on last."""
        state = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
        if "combined_loader" in state and self._batches is not None and self._batches.ahead:
            state["combined_loader"] = self._batches.before


class _Batches:
    """What Lightning's fetcher reads from, instead of its ``CombinedLoader``."""

    def __init__(self, fetcher: Any, loop: Any) -> None:
        self.combined = fetcher.combined_loader
        self.before: list[Any] = []  # the loaders' states before the latest attempt to read a batch
        self.over = False  # the loaders are at the end of an epoch
        self.epochs = 0  # those that Lightning had counted by then
        self._fetcher = fetcher
        self._loop = loop
        fetcher._combined_loader = fetcher.iterator = self

    def __iter__(self) -> _Batches:
        iter(self.combined)
        self.over = False
        self.before = []
        return self

    def __next__(self) -> Any:
        if self.over and self._new_epoch():
            return self._first_of_next_epoch()
        if self.ahead:
            self.before = self.combined._state_dicts()
        return next(self.combined)

    @property
    def ahead(self) -> bool:
        """Whether Lightning reads ahead."""
        return self._fetcher.length is None

    def _new_epoch(self) -> bool:
        """Depending on where in the end of an epoch the checkpoint was made, Lightning now ends that epoch or begins another. It tells
        neither its loaders nor us, but it counts.
        """
        progress = self._loop.epoch_loop.batch_progress
        if progress.current.ready == 0:
            return True
        if self.ahead and self._loop.epoch_progress.current.processed > self.epochs:
            progress.reset_on_run()  # which Lightning does for loaders with a length only
            return True
        return False

    def _first_of_next_epoch(self) -> Any:
        fetcher = self._fetcher
        iter(fetcher)
        if fetcher.length is not None:
            return next(self)
        if not fetcher.batches:
            raise StopIteration
        batch = fetcher.batches.pop(0)
        try:
            fetcher.batches.append(next(self))
        except StopIteration:
            fetcher.done = True
        return batch

    def __len__(self) -> int:
        return len(self.combined)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.combined, name)
