"""Orders without random numbers from outside: in sequence, and the keyed shuffle."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from feedrate._native import Order
from feedrate.samplers._base import EpochSampler, OrderRun, Run, Sampler, check_seed, within
from feedrate.samplers._streams import fresh_seed, seed_of


class SequentialSampler(Sampler):
    """The indices of ``data_source`` in order. Takes no memory."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __len__(self) -> int:
        return len(self.data_source)

    def _prepare(self) -> int:
        return len(self.data_source)

    def _begin(self, known: Any, pending: dict[str, Any] | None) -> Run:
        return OrderRun(Order.sequential(known), known, pending["position"] if pending else 0)

    def _describe(self) -> dict[str, Any]:
        return {"size": len(self.data_source)}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        return within(state, len(self), type(self).__name__)


class ShuffleSampler(EpochSampler):
    """The indices of ``data_source`` in a random order that is a function of (size, seed, epoch).

    A keyed permutation: it takes no memory, starts at once, also in the middle, and any size will do. Torch's random orders are
    those of :class:`RandomSampler`. Without a seed it takes a fresh one, readable as ``seed``.
    """

    def __init__(self, data_source: Sized, seed: int | None = None) -> None:
        self.data_source = data_source
        self.seed_given = seed is not None
        self.seed = fresh_seed() if seed is None else seed_of(seed, "seed", "an integer or None")

    def __len__(self) -> int:
        return len(self.data_source)

    def order(self, epoch: int) -> Order:
        """The whole order of an epoch, without memory; it can be asked for any position."""
        return Order.keyed(len(self.data_source), self.seed, epoch % 2**64)

    def _begin(self, known: Any, pending: dict[str, Any] | None) -> Run:
        epoch = self._begin_epoch()
        facts = {"epoch": epoch, "seed": self.seed}
        return OrderRun(self.order(epoch), len(self.data_source), pending["position"] if pending else 0, facts)

    def _fresh(self) -> dict[str, Any]:
        return {**super()._fresh(), "seed": self.seed}

    def _describe(self) -> dict[str, Any]:
        return {"size": len(self.data_source)}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        check_seed(state, self.seed if self.seed_given else None, type(self).__name__)
        return within(super()._check(state), len(self), type(self).__name__)

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.seed = state["seed"]
