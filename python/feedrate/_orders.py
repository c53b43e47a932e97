"""The orders of samplers that feedrate knows, without iterating them: random access, no list of indices."""

from __future__ import annotations

import sys
import zlib
from abc import ABC, abstractmethod
from itertools import chain
from typing import Any

import numpy as np

from feedrate import _randoms, _sampler
from feedrate._native import Order
from feedrate._state_errors import ResumeError

#: From this many elements on torch's randperm draws 64 bits for each.
_LARGE = 4294967295 // 20


class Known(ABC):
    """The order of one sampler. ``facts`` says what it depends on, but for random generators: plain data that must be the same when
    a state is loaded."""

    kind: str
    #: A sampler that takes every ``world``-th position of a common order.
    rank = 0
    world = 1
    #: What :attr:`fixed` is in the first epoch.
    common: int | None = None
    _fixed: int | None = None

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    @property
    def fixed(self) -> int | None:
        """Seed of this epoch's order, the same on all ranks; ``None`` for a sampler that has a generator of its own."""
        return None if self.own() else self._fixed

    @fixed.setter
    def fixed(self, seed: int) -> None:
        self._fixed = seed

    def own(self) -> bool:
        """Whether the order is drawn from a generator of the user's."""
        return getattr(self.sampler, "generator", None) is not None

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What must not change between saving and loading."""

    def all_facts(self) -> dict[str, Any]:
        """With the seed that ranks have in common."""
        return self.facts() if self.common is None else {**self.facts(), "seed": self.common}

    @abstractmethod
    def draw(self, seed: Any, start: int = 0) -> tuple[Order, Any]:
        """Draws the order of one epoch as iterating the sampler would. ``seed`` is what a former call returned with the order, to
        get that order again without touching a generator of the user's; else ``None``. Positions before ``start`` are not expected to
        be asked for, and cost more then."""

    def global_draws(self) -> int:
        """How many seeds it draws from torch's process-wide generator, and nothing else from there."""
        return 0

    def finish(self) -> None:  # noqa: B027 - most draw nothing then
        """The order has run out: draws what the sampler draws then."""

    def upcoming(self) -> Any:
        """The seed that :meth:`draw` would use if it were called now, where it comes from the process-wide generator; nothing is
        drawn."""
        return None

    def pass_over_draws(self) -> None:
        """Draws what :meth:`draw` would from the process-wide generator, for an order that is known already."""
        for _ in range(self.global_draws()):
            torch_seed()

    def extent(self) -> int | None:
        """Positions of the common order that are given in an epoch, if padding or cutting makes it another number than its length."""
        return None


class _Sequential(Known):
    kind = "sequential"

    def facts(self) -> dict[str, Any]:
        return {"size": len(_source(self.sampler))}

    def draw(self, seed: Any, start: int = 0) -> tuple[Order, Any]:
        return Order.sequential(len(_source(self.sampler))), None


class _Numpy(Known):
    """The shuffle of the loader without torch."""

    kind = "numpy"

    def facts(self) -> dict[str, Any]:
        return {"size": len(self.sampler.source)}

    def all_facts(self) -> dict[str, Any]:
        return super().all_facts() if self.common is None else {**super().all_facts(), "generator": self.own()}

    def own(self) -> bool:
        return bool(self.sampler.given)

    def draw(self, seed: Any, start: int = 0) -> tuple[Order, Any]:
        if self.fixed is None:
            return self.sampler.order(), None
        n = len(self.sampler.source)
        if n >= _sampler.KEYED_FROM:
            return Order.keyed(n, self.fixed, 0), None
        return Order.torch_distributed(n, self.fixed, True, start=start), None


def _source(sampler: Any) -> Any:
    return sampler.data_source if hasattr(sampler, "data_source") else sampler.source


def torch_seed(generator: Any = None) -> int:
    """Draws a seed as torch's loader and samplers do, from the process-wide generator if none is given."""
    torch: Any = sys.modules["torch"]
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def torch_clone() -> Any:
    """A generator in the state of torch's process-wide one."""
    torch: Any = sys.modules["torch"]
    clone = torch.Generator()
    clone.set_state(torch.default_generator.get_state())
    return clone


class _Torch(Known):
    """With torch's generators."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler)
        self.torch: Any = sys.modules["torch"]

    def upcoming(self) -> Any:
        if getattr(self.sampler, "generator", 0) is not None or self.fixed is not None:
            return None
        if self.global_draws():
            return torch_seed(torch_clone())
        return _randoms.pack(_randoms.read(self.torch.default_generator))

    def _generator(self, seed: Any) -> tuple[Any, Any]:
        """For samplers that draw from the process-wide generator when they have none: the generator to use, and the state that it
        has now, for the next time."""
        if self.sampler.generator is not None:
            return self.sampler.generator, None
        if self.fixed is not None:
            return self.torch.Generator().manual_seed(self.fixed), None
        shared = self.torch.default_generator
        if seed is None:
            return shared, _randoms.pack(_randoms.read(shared))
        generator = self.torch.Generator()
        _randoms.restore(generator, seed)
        return generator, seed

    def _with(self, generator: Any, draw: Any) -> Any:
        """Calls ``draw(state)``, which gives an order and the state after it."""
        order, after = draw(bytes(generator.get_state().numpy()))
        generator.set_state(self.torch.frombuffer(bytearray(after), dtype=self.torch.uint8))
        return order


class _Random(_Torch):
    kind = "random"
    _unfinished = False

    def facts(self) -> dict[str, Any]:
        s = self.sampler
        return {"size": len(s.data_source), "replacement": s.replacement, "num_samples": s.num_samples, "generator": self.own()}

    def global_draws(self) -> int:
        return 1 if self.sampler.generator is None and self.fixed is None else 0

    def draw(self, seed: Any, start: int = 0) -> tuple[Order, Any]:
        s = self.sampler
        generator = s.generator
        if generator is None:
            if self.fixed is not None:
                seed = self.fixed
            elif seed is None:
                seed = torch_seed()
            generator = self.torch.Generator().manual_seed(seed)
        n, replacement, count = len(s.data_source), s.replacement, s.num_samples
        if s.generator is not None:
            # One permutation (see known()); another one, of which nothing is used, is drawn when it has run out.
            self._unfinished = True
            return self._with(generator, lambda state: Order.torch_randperm(n, state, start=start)), seed

        def drawn(state: bytes) -> tuple[Order, bytes]:
            return Order.torch_random(n, state, replacement=replacement, num_samples=count, start=start)

        return self._with(generator, drawn), seed

    def finish(self) -> None:
        if not self._unfinished:
            return
        self._unfinished = False
        n = len(self.sampler.data_source)
        # As many 32-bit words as torch's randperm takes for it.
        words = n - 1 if n < _LARGE else 2 * n
        if words > 0:
            self._with(self.sampler.generator, lambda state: Order.torch_random(2, state, replacement=True, num_samples=words))


class _Weighted(_Torch):
    kind = "weighted"

    def facts(self) -> dict[str, Any]:
        s = self.sampler
        return {
            "weights": zlib.crc32(np.ascontiguousarray(s.weights.numpy()).tobytes()),
            "num_samples": s.num_samples,
            "replacement": s.replacement,
            "generator": self.own(),
        }

    def draw(self, seed: Any, start: int = 0) -> tuple[Order, Any]:
        s = self.sampler
        generator, seed = self._generator(seed)
        weights = np.ascontiguousarray(s.weights.numpy(), np.float64).data
        return self._with(generator, lambda state: Order.torch_multinomial(weights, s.num_samples, s.replacement, state)), seed


class _Subset(_Torch):
    kind = "subset"

    def _indices(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.ascontiguousarray(np.asarray(self.sampler.indices), np.int64)

    def facts(self) -> dict[str, Any]:
        return {"indices": zlib.crc32(self._indices().tobytes()), "size": len(self.sampler.indices), "generator": self.own()}

    def draw(self, seed: Any, start: int = 0) -> tuple[Order, Any]:
        generator, seed = self._generator(seed)
        n = len(self.sampler.indices)
        permutation = self._with(generator, lambda state: Order.torch_randperm(n, state))
        positions = np.fromiter(chain.from_iterable(permutation.batches(0, 1024, False)), np.int64, n)
        return Order.of(self._indices()[positions].data), seed


class _Distributed(_Torch):
    kind = "distributed"

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler)
        self.rank = sampler.rank
        self.world = sampler.num_replicas

    def facts(self) -> dict[str, Any]:
        s = self.sampler
        return {"size": len(s.dataset), "shuffle": s.shuffle, "sampler seed": s.seed}

    def extent(self) -> int:
        total: int = self.sampler.total_size
        return total

    def draw(self, seed: Any, start: int = 0) -> tuple[Order, Any]:
        s = self.sampler
        if seed is not None:
            s.set_epoch(seed)
        epoch, size, total = s.epoch, len(s.dataset), s.total_size
        if total == size:
            return Order.torch_distributed(size, s.seed + epoch, s.shuffle, start=start), epoch
        # Padded by repeating it from the front, as often as it takes, or cut.
        generator = self.torch.Generator().manual_seed(s.seed + epoch)
        indices = self.torch.randperm(size, generator=generator).numpy() if s.shuffle else np.arange(size)
        return Order.of(np.resize(indices, total).data), epoch


def known(sampler: Any) -> Known | None:
    """The order of a sampler whose class is exactly one that is known here; ``None`` for others, which are iterated."""
    kind = type(sampler)
    if kind is _sampler.SequentialSampler:
        return _Sequential(sampler)
    if kind is _sampler.RandomSampler:
        return _Numpy(sampler)
    data = sys.modules.get("torch.utils.data")
    if data is None:
        return None
    if kind is data.SequentialSampler:
        return _Sequential(sampler)
    if kind is data.RandomSampler:
        # With a generator of the user's, what is drawn later must be drawn later: known is only a plain shuffle.
        plain = sampler.generator is None or (not sampler.replacement and sampler.num_samples == len(sampler.data_source))
        # Without samples, torch says so.
        return _Random(sampler) if plain and _drawable(sampler) and len(sampler.data_source) else None
    if kind is data.WeightedRandomSampler:
        return _Weighted(sampler) if _drawable(sampler) and _plain_weights(sampler.weights) else None
    if kind is data.SubsetRandomSampler:
        return _Subset(sampler) if _drawable(sampler) and _integers(sampler.indices) else None
    if kind is data.distributed.DistributedSampler:
        return _Distributed(sampler) if _consistent(sampler) else None
    return None


def _plain_weights(weights: Any) -> bool:
    """As the constructor makes them; others may be put in their place, and are drawn in their own type."""
    torch: Any = sys.modules["torch"]
    return (
        type(weights) is torch.Tensor
        and weights.dtype is torch.float64
        and weights.dim() == 1
        and weights.device.type == "cpu"
        and not weights.requires_grad
    )


def _consistent(sampler: Any) -> bool:
    """Whether the numbers of a ``DistributedSampler`` are those of its dataset as it is now; it complains itself otherwise."""
    try:
        size, world = len(sampler.dataset), sampler.num_replicas
        share = -(-(size - world) // world) if sampler.drop_last and size % world else -(-size // world)
        told = sampler.num_samples == share and sampler.total_size == share * world and 0 <= sampler.rank < world
        return size > 0 and bool(told) and type(sampler.epoch) is int
    except Exception:
        return False


def _drawable(sampler: Any) -> bool:
    """A generator on the CPU, or none."""
    return sampler.generator is None or (_randoms.is_generator(sampler.generator) and sampler.generator.device.type == "cpu")


def _integers(indices: Any) -> bool:
    """Whether the items of a subset are plain integers, which come back as such."""
    return isinstance(indices, range) or (
        isinstance(indices, (list, tuple)) and all(type(i) is int and -(1 << 63) <= i < 1 << 63 for i in indices)
    )


def check_same(saved: dict[str, Any], now: dict[str, Any], what: str) -> None:
    """Raises :class:`ResumeError` for the first fact that differs."""
    for name in {**saved, **now}:
        if saved.get(name) != now.get(name):
            if name == "generator":
                with_one, without = (
                    ("the state was", "this loader is") if saved.get(name) else ("this loader is", "the state was")
                )
                raise ResumeError(
                    f"{with_one} made with a generator, {without} made without: the order would not go on where it stopped. Give both "
                    "a generator (generator=torch.Generator(), whose state comes with the loader's), or none"
                )
            raise ResumeError(
                f"the state was saved with {what}: {name} = {saved.get(name)!r}, this loader has {name} = {now.get(name)!r}. The order "
                f"would not go on where it stopped: load it into a loader with the same {name}"
            )
