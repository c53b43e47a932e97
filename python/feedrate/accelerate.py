"""Keeps feedrate's engine at work under Hugging Face Accelerate, and so under transformers' ``Trainer``.

Accelerate's ``prepare`` builds every loader anew, by the name ``DataLoader`` in ``accelerate.data_loader``, whatever class came in.
:func:`install` puts :class:`feedrate.torch.DataLoader` behind that name.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from feedrate.torch import DataLoader

__all__ = ["Installed", "install"]

# Accelerate copies the arguments that it knows from the old loader to the new one.
_ARGUMENTS: dict[str, Any] = {"workers": "process", "seeding": "worker", "redo": True, "items_in_flight": 1, "seed": None}


class Installed:
    """What :func:`install` did. :meth:`uninstall`, or leaving a ``with`` block, undoes it."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._stock = module.DataLoader
        self._added = [name for name in _ARGUMENTS if name not in module._PYTORCH_DATALOADER_KWARGS]
        module.DataLoader = DataLoader
        module._PYTORCH_DATALOADER_KWARGS.update(_ARGUMENTS)

    def uninstall(self) -> None:
        """Puts Accelerate's loader class back. Loaders that were prepared before stay as they are."""
        if self._module.DataLoader is DataLoader:
            self._module.DataLoader = self._stock
        for name in self._added:
            self._module._PYTORCH_DATALOADER_KWARGS.pop(name, None)
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
    import accelerate.data_loader

    return Installed(accelerate.data_loader)
