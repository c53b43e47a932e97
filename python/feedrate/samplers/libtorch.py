"""The samplers of PyTorch's C++ API (``torch::data::samplers``), equal to libtorch's bit for bit.

Each has ``reset(new_size)``, ``next(batch_size)``, ``index()``, ``save()`` and ``load(state)``; states are plain data. They belong to
one thread at a time.
"""

from feedrate._native import (
    DistributedRandomSampler,
    DistributedSequentialSampler,
    RandomSampler,
    SequentialSampler,
    StreamSampler,
)

__all__ = [
    "DistributedRandomSampler",
    "DistributedSequentialSampler",
    "RandomSampler",
    "SequentialSampler",
    "StreamSampler",
]
