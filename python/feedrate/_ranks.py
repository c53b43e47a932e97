"""Ranks: who this process is among those that train together, and what each gets of the end of an epoch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from feedrate._errors import Error

REMAINDER = ("pad", "drop", "exact")


class Empty(list[Any]):
    """An index object without samples. Holds one index, of the sample whose batch shows what an empty one looks like."""


class Ranks:
    """A rank, the number of them, and the policy for samples that do not fill a step of all of them."""

    def __init__(self, rank: int, world: int, remainder: str) -> None:
        self.rank = rank
        self.world = world
        self.remainder = remainder

    def steps(self, samples: int, batch_size: int, drop_last: bool) -> int:
        """Batches that each rank gets of ``samples`` samples."""
        full, rest = divmod(samples, batch_size * self.world)
        return full + (0 if drop_last or not self.tail(rest)[0] else 1)

    def tail(self, rest: int) -> tuple[bool, int, int]:
        """For a last step of ``rest`` samples for all ranks: whether there is one, how many of them are this rank's, and how many
        others fill up its batch."""
        if rest == 0:
            return False, 0, 0
        own = max(0, -(-(rest - self.rank) // self.world))
        if self.remainder == "drop":
            whole = rest // self.world
            return whole > 0, whole, 0
        if self.remainder == "pad":
            return True, own, -(-rest // self.world) - own
        return True, own, 0


def is_option(value: Any) -> bool:
    """Whether it can be meant as the option ``distributed``, where it says something."""
    if isinstance(value, tuple):
        return len(value) == 2 and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    return isinstance(value, str) and value == "auto"


def is_remainder(value: Any) -> bool:
    """Whether it can be meant as the option ``remainder``."""
    return isinstance(value, str) and value in REMAINDER


def check(loader: Any, option: Any, remainder: str) -> Ranks | None:
    """The ranks of a loader, from its ``distributed`` and ``remainder`` options. Raises ``ValueError`` for what cannot be kept."""
    if remainder not in REMAINDER:
        raise ValueError(f"remainder option should be one of {REMAINDER}, but got remainder={remainder!r}")
    if option is None:
        return None
    if not is_option(option):
        raise ValueError(
            f'distributed option should be None, "auto" or a tuple (rank, world size), but got distributed={option!r}'
        )
    rank, world = find() if option == "auto" else option
    if not 0 <= rank < world:
        raise ValueError(f"distributed={option!r}: the rank should be in the interval [0, {world - 1}]")
    for part in around(loader).values():
        if hasattr(part, "num_replicas"):
            raise ValueError(
                f"distributed={option!r} together with {type(part).__name__}, which gives each rank its share already: leave one of "
                "them out"
            )
    if loader.batch_sampler is None and remainder == "exact":
        raise ValueError('remainder="exact" gives short ranks an empty batch, and with batch_size=None there are no batches')
    return Ranks(rank, world, remainder)


def around(loader: Any) -> dict[str, Any]:
    """The samplers of a loader, and those inside them, as trainers nest them, by path; each object once."""
    return nested({"batch_sampler": loader.batch_sampler, "sampler": loader.sampler})


def nested(samplers: dict[str, Any]) -> dict[str, Any]:
    """The same for samplers by their paths."""
    found: dict[str, Any] = {}
    todo = [*samplers.items()]
    while todo:
        path, part = todo.pop(0)
        if part is None or any(part is other for other in found.values()):
            continue
        found[path] = part
        todo += [(f"{path}.{name}", getattr(part, name, None)) for name in ("batch_sampler", "sampler")]
    return found


def find() -> tuple[int, int]:
    """Rank and world size: of torch.distributed if it is initialised, else from the environment that torchrun sets (``RANK``,
    ``WORLD_SIZE``), else of JAX if it is imported, else ``(0, 1)``."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        raise ValueError(
            f'distributed="auto": WORLD_SIZE is {os.environ["WORLD_SIZE"]} in the environment, and RANK is not set: each rank would read '
            "everything. Set both, as torchrun does, or give distributed=(rank, world size)"
        )
    jax = sys.modules.get("jax")
    if jax is not None:
        return int(jax.process_index()), int(jax.process_count())
    return 0, 1


def emptied(batch: Any) -> Any:
    """A batch of the same form without samples: tensors and arrays keep their type and the rest of their shape.

    Raises :class:`feedrate.Error` for what has no first axis to be cut.
    """
    shape = getattr(batch, "shape", None)
    if isinstance(batch, np.ndarray) or (shape is not None and hasattr(batch, "dtype")):
        if len(shape or ()) > 0:
            return batch[:0]
    elif isinstance(batch, Mapping):
        made: Any = {k: emptied(v) for k, v in batch.items()}
        return made if type(batch) is dict else type(batch)(made)  # type: ignore[call-arg]
    elif isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(emptied(v) for v in batch))
    elif isinstance(batch, (list, tuple)):
        if any(isinstance(v, (str, bytes, int, float)) or v is None for v in batch):
            return type(batch)()
        return type(batch)(emptied(v) for v in batch)
    raise Error(
        f'remainder="exact" gives a rank without samples an empty batch, made by cutting tensors, arrays and lists to length 0, and this '
        f'batch holds a {type(batch).__name__} that cannot be cut: use remainder="pad" or "drop"'
    )
