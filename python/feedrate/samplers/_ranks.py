"""Each rank's share of an order."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterable, Sized
from operator import length_hint
from typing import Any, Literal

from feedrate._errors import short
from feedrate._native import Order
from feedrate._state_errors import ResumeError
from feedrate.samplers._base import EpochSampler, OrderRun, Run, count, within
from feedrate.samplers._batch import Wrapper
from feedrate.samplers._inner import Inner
from feedrate.samplers._random import RandomSource

REMAINDERS = ("pad", "drop", "exact")


class DistributedSampler(EpochSampler):
    """``torch.utils.data.DistributedSampler``: a rank's share of a sequence or of torch's permutation for ``seed + epoch``.

    The order is padded from its front, or cut with ``drop_last``, to the same length for all ranks. As in torch it is the same in
    every iteration unless ``set_epoch()`` is called. :class:`Distributed` shares out any order.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None:
            num_replicas = _torch_distributed().get_world_size()
        if rank is None:
            rank = _torch_distributed().get_rank()
        self.num_replicas, self.rank = _check_rank(num_replicas, rank)
        self.dataset = dataset
        self.drop_last = drop_last
        n = len(dataset)
        if drop_last and n % num_replicas:
            self.num_samples = math.ceil((n - num_replicas) / num_replicas)
        else:
            self.num_samples = math.ceil(n / num_replicas)
        self.total_size = self.num_samples * num_replicas
        self.shuffle = shuffle
        self.seed = seed

    def __len__(self) -> int:
        return self.num_samples

    def _prepare(self) -> tuple[int, int]:
        n, total = len(self.dataset), self.total_size
        if (n < total) if self.drop_last else (n > total):
            raise AssertionError(
                f"the dataset has {n} samples, and had another number when the sampler was made for {total}: make a new sampler"
            )
        return n, self.epoch

    def _begin(self, known: Any, pending: dict[str, Any] | None) -> Run:
        n, epoch = known
        order = Order.torch_distributed(n, self.seed + epoch, bool(self.shuffle))
        return _Share(order, self, epoch, pending["position"] if pending else 0)

    def _fresh(self) -> dict[str, Any]:
        return {"position": 0, "epoch": self.epoch, "num_replicas": self.num_replicas}

    def _describe(self) -> dict[str, Any]:
        facts = {"size": len(self.dataset), "shuffle": bool(self.shuffle), "seed": self.seed, "drop_last": bool(self.drop_last)}
        return facts if self.shuffle else {**facts, "seed": None}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        name = type(self).__name__
        theirs, mine, position = count(state, "num_replicas", name), self.num_replicas, count(state, "position", name)
        super()._check(state)
        if theirs == mine:
            return within(state, self.num_samples, name)
        n, done = len(self.dataset), position * theirs
        if not done or done >= n:
            return {**state, "num_replicas": mine, "position": self.num_samples if done else 0}
        if n % max(theirs, 1) or n % mine or done % mine:
            raise ResumeError(
                f"the state of the {name} is of num_replicas={theirs}, here it is {mine}, and {done} of {n} samples were delivered: it "
                f"pads or cuts its order for the number of ranks, so the rest is exact only when {n} and {done} divide by both. Resume "
                f"on {theirs} ranks, or use feedrate.samplers.Distributed, which any number of ranks can take up"
            )
        return {**state, "num_replicas": mine, "position": done // mine}


class _Share(OrderRun):
    """Every ``num_replicas``-th position of an order; behind its end it starts again."""

    def __init__(self, order: Order, sampler: DistributedSampler, epoch: int, position: int) -> None:
        super().__init__(order, sampler.num_samples, position, {"epoch": epoch, "num_replicas": sampler.num_replicas})
        self._rank = sampler.rank
        self._ranks = sampler.num_replicas

    def pick(self, start: int, stop: int, step: int) -> list[Any]:
        """Positions of this rank."""
        every = self._ranks * step
        first = start * self._ranks + self._rank
        end = stop * self._ranks
        items = self.order.take(first, end, every)
        n = len(self.order)
        for position in range(first + len(items) * every, end, every):
            items.append(self.order[position % n])
        return items


class Distributed(Wrapper):
    """A rank's share of the order of any sampler: every ``num_replicas``-th item, the first one at ``rank``.

    Each rank has the whole sampler, which must give the same order on all of them: a random one needs a seed. Works for lists of
    indices too, as batch samplers give them. ``remainder`` says what happens to the items that do not suffice for all ranks:

    * ``"pad"``: ranks without one repeat items from the front of the order, so that all have equally many. ``padding`` tells
      how many at the end of this rank's order are such repetitions.
    * ``"drop"``: nobody gets them.
    * ``"exact"``: they go to the first ranks; the others have one item less.

    A state counts what all ranks were given, and any number of ranks can take up the rest.

    Args:
        sampler: the global order.
        num_replicas: how many ranks; ``None`` asks torch.distributed, then the environment (``WORLD_SIZE``).
        rank: which one this is; ``None`` asks torch.distributed, then the environment (``RANK``).
        remainder: ``"pad"``, ``"drop"`` or ``"exact"``.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        remainder: Literal["pad", "drop", "exact"] = "pad",
    ) -> None:
        if remainder not in REMAINDERS:
            raise ValueError(f"remainder should be one of {REMAINDERS}, but got remainder={remainder!r}")
        self.num_replicas, self.rank = _check_rank(
            _from_surroundings("num_replicas", "WORLD_SIZE") if num_replicas is None else num_replicas,
            _from_surroundings("rank", "RANK") if rank is None else rank,
        )
        self.sampler = sampler
        self.remainder = remainder
        _check_shareable(sampler, self.num_replicas)
        if length_hint(sampler, 1) == 0:
            raise ValueError(
                f"nothing to share out: the {type(sampler).__name__} is empty, often because a path or pattern matched nothing"
            )

    def __len__(self) -> int:
        """Items of this rank."""
        full, rest = divmod(self._total(), self.num_replicas)
        if self.remainder == "drop" or not rest:
            return full
        return full + (self.remainder == "pad" or self.rank < rest)

    def _total(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    @property
    def padding(self) -> int:
        """How many items at the end of this rank's order are there for the second time, of this iteration or the next: 0 or 1.

        A run that was taken up on another number of ranks pads what was left for these.
        """
        if self.remainder != "pad":
            return 0
        start = self._pending["position"] if self._pending else self._run.start if isinstance(self._run, _Strided) else 0
        rest = (self._total() - start) % self.num_replicas
        return int(0 < rest <= self.rank)

    def _begin(self, known: Any, pending: dict[str, Any] | None) -> Run:
        return _Strided(self, pending)

    def _describe(self) -> dict[str, Any]:
        return {"remainder": self.remainder}

    def _fresh(self) -> dict[str, Any]:
        return {**super()._fresh(), "num_replicas": self.num_replicas}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        head, theirs = state.get("head"), count(state, "num_replicas", type(self).__name__)
        state = super()._check(state)
        if head is None:
            return state
        if not isinstance(head, list):
            raise ResumeError(f"the state of the {type(self).__name__} has head={short(head)}, which should be a list")
        # One that a first step did not fill is the whole order; others are as long as the run had ranks that began it.
        whole = state["position"] <= len(head) < theirs
        if not whole and len(head) < self.num_replicas - 1:
            raise ResumeError(
                f"the state is of num_replicas={theirs}, here it is {self.num_replicas}: padding could need more items from the front of "
                f"the order than the {len(head)} that the state holds, and the {type(self.sampler).__name__} cannot go back for them. "
                f'Resume on {len(head) + 1} ranks at most, or use remainder="drop" or "exact"'
            )
        return state


class _Strided(Run):
    """``given`` counts the items of all ranks, up to the last group of which this rank was given its own.

    The inner sampler is asked for whole groups, one item for each rank, so that its state is the same on all of them.
    """

    def __init__(self, sampler: Distributed, pending: dict[str, Any] | None) -> None:
        super().__init__()
        self.start = pending["position"] if pending else 0
        self._inner = Inner(sampler.sampler, pending["sampler"] if pending else None)
        self._ranks = sampler.num_replicas
        self._rank = sampler.rank
        self._remainder = sampler.remainder
        self._over = False
        # The front of the order, for padding; only kept when the inner iteration cannot be asked for it.
        self._head: list[Any] | None = pending.get("head") if pending else None
        self._first = pending is None

    def page(self) -> list[Any]:
        """One item."""
        items = self._pull(1)
        self.position += len(items)
        return items

    def take(self, total: int, offset: int = 0, step: int = 1) -> list[Any]:
        """In bulk; nothing is kept ready."""
        items = self._pull(total)
        self.position += len(items)
        return items[offset::step] if offset or step > 1 else items

    def _pull(self, total: int) -> list[Any]:
        if self._over or total == 0:
            return []
        items: list[Any] = []
        if self._first:
            self._first = False
            if self._remainder == "pad" and self._inner.front(1) is None:
                self._head = self._inner.take(self._ranks)
                items = self._finish(self._head[self._rank :][:1], len(self._head), 1)
                if total == 1 or len(self._head) < self._ranks:
                    return items
        groups = total - len(items)
        before = self._inner.given
        share = self._inner.take(groups * self._ranks, self._rank, self._ranks)
        return items + self._finish(share, self._inner.given - before, groups)

    def _finish(self, items: list[Any], passed: int, groups: int) -> list[Any]:
        """This rank's items of ``groups`` groups, of which ``passed`` global items were there."""
        if passed == groups * self._ranks:
            return items
        self._over = True
        full, rest = divmod(passed, self._ranks)
        if self._remainder == "drop":
            return items[:full]
        if self._remainder == "pad" and 0 < rest <= self._rank:
            items.append(self._repeated(self._rank - rest))
        return items

    def _repeated(self, position: int) -> Any:
        head = self._head if self._head is not None else self._inner.front(self._ranks)
        assert head, "the front is kept when it cannot be asked for"
        return head[position % self._inner.given]

    def state(self) -> dict[str, Any]:
        """Global items that were given, and the state of the order."""
        state = {"position": self._inner.given, "num_replicas": self._ranks, "sampler": self._inner.state()}
        return state if self._head is None else {**state, "head": self._head}


def _check_rank(num_replicas: int, rank: int) -> tuple[int, int]:
    if rank >= num_replicas or rank < 0:
        raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
    return num_replicas, rank


def _torch_distributed() -> Any:
    """As torch's sampler asks for it."""
    with contextlib.suppress(ImportError):
        import torch.distributed as dist

        if dist.is_available():
            return dist
    raise RuntimeError("Requires distributed package to be available")


def _from_surroundings(argument: str, variable: str) -> int:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size() if argument == "num_replicas" else dist.get_rank())
    value = os.environ.get(variable, "")
    if value.isdecimal():
        return int(value)
    raise ValueError(
        f"{argument} is not known: torch.distributed is not initialised, and the environment has no {variable}. Give it as an argument, or "
        "make the sampler after init_process_group()"
    )


def _check_shareable(sampler: Any, ranks: int) -> None:
    """Refuses what can be seen to differ between ranks, or to be a share already."""
    data = sys.modules.get("torch.utils.data")
    seen = [sampler]
    for inner in seen:
        name = type(inner).__name__
        if isinstance(inner, DistributedSampler | Distributed) or (data and isinstance(inner, data.DistributedSampler)):
            raise ValueError(
                f"the {name} gives a rank's share already, and Distributed would take a share of that: use only one of the two"
            )
        random = isinstance(inner, RandomSource) or (
            data and isinstance(inner, data.RandomSampler | data.SubsetRandomSampler | data.WeightedRandomSampler)
        )
        if ranks > 1 and ((random and inner.generator is None) or getattr(inner, "seed_given", True) is False):
            raise ValueError(
                f"the {name} has no seed, so its order would differ between the {ranks} ranks: give it one, the same on all of them "
                f"({'generator' if random else 'seed'}=0)"
            )
        within = [getattr(inner, "sampler", None), *(getattr(inner, "samplers", None) or ())]
        seen += [i for i in within if i is not None and not any(i is s for s in seen)]
