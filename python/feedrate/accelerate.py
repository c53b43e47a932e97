"""Keeps feedrate's engine at work under Hugging Face Accelerate, and so under transformers' ``Trainer``, and its state exact.

Accelerate's ``prepare`` builds every loader anew, by the name ``DataLoader`` in ``accelerate.data_loader``, whatever class came in.
:func:`install` puts :class:`feedrate.torch.DataLoader` behind that name.

With ``DataLoaderConfiguration(use_stateful_dataloader=True)``, ``save_state`` and ``load_state`` keep the position of the loader, as they
do for torchdata's, which is not needed. What differs: the number of the epoch is kept too; a state that is saved while the last batch is
trained on, says that nothing of this epoch is left; one process writes the file, with the states of all.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from feedrate._state_errors import ResumeError
from feedrate.torch import DataLoader

__all__ = ["Installed", "install"]

# Accelerate copies the arguments that it knows from the old loader to the new one.
_ARGUMENTS: dict[str, Any] = {
    "workers": "process",
    "seeding": "worker",
    "redo": True,
    "items_in_flight": 1,
    "seed": None,
    "snapshot_every_n_steps": 1,
}
_KEY = "accelerate"  # of what is added to the loader's state
_RANKS = "ranks"  # of the states of all processes, in the file of ``save_state``


class _Exact:
    """Beside Accelerate's wrapper of a loader, which reads ahead of what the user has received."""

    reads_for_all = False
    base_dataloader: DataLoader[Any]
    iteration: int
    end_of_dataloader: bool

    def __init__(self, *args: Any, use_stateful_dataloader: bool = False, **kwargs: Any) -> None:
        self._received: dict[str, Any] | None = None  # the state after the batch that the user has received last
        self._last = False  # that batch was the last of the epoch
        self._nothing_left = False  # the next pass is the rest of an epoch of which nothing is left
        # True would take torchdata's class.
        super().__init__(*args, use_stateful_dataloader=False, **kwargs)  # type: ignore[call-arg]
        self.use_stateful_dataloader = use_stateful_dataloader

    def state_dict(self) -> dict[str, Any]:
        """The loader's state, and the number of the epoch."""
        if not self.use_stateful_dataloader:
            raise RuntimeError("the loader was prepared without DataLoaderConfiguration(use_stateful_dataloader=True)")
        state = self.base_dataloader.state_dict() if self._received is None else self._received
        return {**state, _KEY: {"iteration": self.iteration, "last": self._last}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up a state of :meth:`state_dict`, or out of a file of ``save_state`` that of this process."""
        ranks = state_dict.get(_RANKS)
        if ranks is not None:
            from accelerate.state import PartialState

            here = PartialState()
            if len(ranks) != here.num_processes:
                raise ResumeError(
                    f"the state was saved by {len(ranks)} processes, now there are {here.num_processes}: Accelerate gives each its share "
                    "of the order, so use the same number"
                )
            state_dict = ranks[here.process_index]
        state = dict(state_dict)
        mine = state.pop(_KEY, None)
        self.base_dataloader.load_state_dict(state)
        self._received = state
        if mine is not None:
            self.iteration = mine["iteration"]
            self._last = self._nothing_left = mine["last"]

    def _update_state_dict(self) -> None:
        """Accelerate calls this before each time that it reads a batch, and when there was none."""
        if not self.use_stateful_dataloader:
            return
        if not self.end_of_dataloader:
            self._received = self.base_dataloader.state_dict()
        self._last = self.end_of_dataloader

    def __iter__(self) -> Iterator[Any]:
        epoch = self.iteration
        if self._nothing_left:
            self._nothing_left = False
            self.set_epoch(epoch)
            for _ in self.base_dataloader:
                raise RuntimeError("the loaded state says that nothing is left of its epoch, but there is a batch: other data?")
        else:
            yield from super().__iter__()  # type: ignore[misc]
        self.iteration = epoch + 1
        self._received, self._last = None, False

    def set_epoch(self, epoch: int) -> None:
        """Accelerate's."""
        super().set_epoch(epoch)  # type: ignore[misc]

    def __reduce__(self) -> Any:
        # As Accelerate does it, which names a class that can be found by its name: a copy is of its own class.
        return (type(self).__bases__[1], *super().__reduce__()[1:])


@functools.cache
def _classes(module: Any) -> tuple[type, type]:
    """Accelerate's two wrappers, with the exact state."""

    class Meta(type):
        """Accelerate asks for the class of loaders that may have been prepared before :func:`install`."""

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, cls.__bases__[1])

    class Shard(_Exact, module.DataLoaderShard, metaclass=Meta):  # type: ignore[misc]
        pass

    class Dispatcher(_Exact, module.DataLoaderDispatcher, metaclass=Meta):  # type: ignore[misc]
        """One process reads a batch for each process at a time, and sends them."""

        reads_for_all = True
        _ahead: dict[str, Any] | None = None
        _first = False

        def _fetch_batches(self, iterator: Any) -> Any:
            self._first = True
            return super()._fetch_batches(iterator)

        def _update_state_dict(self) -> None:
            if not self.use_stateful_dataloader:
                return
            if self.end_of_dataloader:
                self._received = self._ahead
            else:
                self._ahead = self.base_dataloader.state_dict()
                if self._first:
                    self._received, self._first = self._ahead, False
            self._last = self.end_of_dataloader

    return Shard, Dispatcher


def _save(stock: Any, *args: Any, **kwargs: Any) -> Any:
    """Accelerate's ``save_accelerator_state``, in which all processes write the states of loaders to one file at the same time."""
    import torch
    from accelerate.state import PartialState
    from accelerate.utils import gather_object

    names = ("output_dir", "model_states", "optimizers", "schedulers", "dataloaders")
    dataloaders = {**dict(zip(names, args, strict=False)), **kwargs}["dataloaders"]
    exact = {
        i: loader for i, loader in enumerate(dataloaders) if issubclass(type(loader), _Exact) and loader.use_stateful_dataloader
    }
    for loader in exact.values():
        loader.use_stateful_dataloader = False
    try:
        folder = stock(*args, **kwargs)
    finally:
        for loader in exact.values():
            loader.use_stateful_dataloader = True
    if not exact:
        return folder
    # Of each process: its share of the order is its own. Of a dispatcher's, the first one has read for all.
    ranks = gather_object([[loader.state_dict() for loader in exact.values()]])
    if PartialState().is_local_main_process:
        for k, (i, loader) in enumerate(exact.items()):
            states = [states[k] for states in (ranks[:1] * len(ranks) if loader.reads_for_all else ranks)]
            path = Path(folder) / ("dl_state_dict.bin" if i == 0 else f"dl_state_dict_{i}.bin")
            partial = path.with_name(f"{path.name}.{os.getpid()}")
            torch.save({_RANKS: states}, partial)
            partial.replace(path)
    return folder


class Installed:
    """What :func:`install` did. :meth:`uninstall`, or leaving a ``with`` block, undoes it."""

    def __init__(self, module: Any, accelerator: Any) -> None:
        shard, dispatcher = _classes(module)
        save = functools.partial(_save, accelerator.save_accelerator_state)
        self._put: list[tuple[Any, str, Any, Any]] = [
            (place, name, getattr(place, name), ours)
            for place, name, ours in (
                (module, "DataLoader", DataLoader),
                (module, "DataLoaderShard", shard),
                (module, "DataLoaderDispatcher", dispatcher),
                (accelerator, "save_accelerator_state", save),
            )
        ]
        for place, name, _, ours in self._put:
            setattr(place, name, ours)
        self._arguments = module._PYTORCH_DATALOADER_KWARGS
        self._added = [name for name in _ARGUMENTS if name not in self._arguments]
        self._arguments.update(_ARGUMENTS)

    def uninstall(self) -> None:
        """Puts Accelerate's names back. Loaders that were prepared before stay as they are, but for how their states are saved."""
        for place, name, stock, ours in self._put:
            if getattr(place, name) is ours:
                setattr(place, name, stock)
        for name in self._added:
            self._arguments.pop(name, None)
        self._added = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.uninstall()


def install() -> Installed:
    """Makes loaders that Accelerate prepares from now on in this process feedrate's, with the arguments of the loader they are made
    from. Call it before ``Accelerator.prepare`` or before ``Trainer.train``; works as a context manager too.

    Raises ``ImportError`` without Accelerate.
    """
    import accelerate.accelerator
    import accelerate.data_loader

    return Installed(accelerate.data_loader, accelerate.accelerator)
