"""Feedrate: a data loader for machine-learning training with a Rust core.

* :class:`feedrate.torch.DataLoader` takes the place of ``torch.utils.data.DataLoader``.
* :class:`feedrate.DataLoader` is the same loader without torch, for NumPy and JAX.
"""

from feedrate import image, samplers
from feedrate._collate import default_collate, default_convert
from feedrate._context import Rng, WorkerInfo, get_worker_info, rng
from feedrate._coordinator import Coordinator, RankMissing
from feedrate._errors import Error, ImageError, PipelineError, WorkerDied
from feedrate._fetch import END, NOT_READY
from feedrate._folder import ImageFolder
from feedrate._loader import DataLoader, IterableDataset
from feedrate._packed import PackedList
from feedrate._pipeline import Mix, Pipeline, from_items, from_iterable, mix, open  # noqa: A004
from feedrate._queue import Queue, QueueClosed
from feedrate._state_errors import ResumeError

__version__ = "0.1.0"

__all__ = [
    "END",
    "NOT_READY",
    "Coordinator",
    "DataLoader",
    "Error",
    "ImageError",
    "ImageFolder",
    "IterableDataset",
    "Mix",
    "PackedList",
    "Pipeline",
    "PipelineError",
    "Queue",
    "QueueClosed",
    "RankMissing",
    "ResumeError",
    "Rng",
    "WorkerDied",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "from_items",
    "from_iterable",
    "get_worker_info",
    "image",
    "mix",
    "open",
    "rng",
    "samplers",
]
