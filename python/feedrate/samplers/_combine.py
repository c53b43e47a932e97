"""Orders made of orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from feedrate._errors import short
from feedrate._state_errors import ResumeError
from feedrate.samplers import _inner
from feedrate.samplers._base import EpochSampler, Run, Sampler, count, field, positive
from feedrate.samplers._inner import Inner


class _Parts(Run):
    """Iterations one after the other."""

    def __init__(self, position: int, part: int) -> None:
        super().__init__(position)
        self.part = part
        self.inner: Inner | None = None

    def begin(self, part: int) -> Inner | None:
        """The iteration of this part; ``None`` behind the last one."""
        raise NotImplementedError

    def convert(self, items: list[Any]) -> list[Any]:
        """Items of the present part as they are given."""
        return items

    def page(self) -> list[Any]:
        """One item, so that the inner state is that of what was given."""
        return self._pull(1, 0, 1)

    def take(self, total: int, offset: int = 0, step: int = 1) -> list[Any]:
        """In bulk from the parts."""
        return self._pull(total, offset, step)

    def _pull(self, total: int, offset: int, step: int) -> list[Any]:
        items: list[Any] = []
        left = total
        while left:
            if self.inner is None and (inner := self.begin(self.part)) is not None:
                self.inner = inner
            if self.inner is None:
                break
            before = self.inner.given
            # The next item wanted is at a position that is `offset` modulo `step`, counted from the start of this call.
            items += self.convert(self.inner.take(left, (offset - (total - left)) % step, step))
            passed = self.inner.given - before
            self.position += passed
            if passed < left:
                self.inner = None
                self.part += 1
            left -= passed
        return items


class RepeatSampler(EpochSampler):
    """The iterations of ``sampler`` one after the other, ``times`` of them or, with ``None``, without end.

    A sampler that has epochs gets a new one each time: ``epoch * times + number of the repetition``.
    """

    def __init__(self, sampler: Iterable[Any], times: int | None) -> None:
        if times is not None and not positive(times):
            raise ValueError(f"times should be a positive integer or None, but got times={times!r}")
        self.sampler = sampler
        self.times = times

    def __len__(self) -> int:
        if self.times is None:
            raise TypeError("a RepeatSampler with times=None has no length: it does not end")
        return len(self.sampler) * self.times  # type: ignore[arg-type]

    def _begin(self, known: Any, pending: dict[str, Any] | None) -> Run:
        return _Repeats(self, self._begin_epoch(), pending)

    def _describe(self) -> dict[str, Any]:
        return {"times": self.times}

    def _fresh(self) -> dict[str, Any]:
        return {**super()._fresh(), "part": 0, "sampler": _inner.fresh(self.sampler)}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        name = type(self).__name__
        count(state, "part", name)
        return {**super()._check(state), "sampler": _inner.check(self.sampler, state, name)}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        _inner.load(self.sampler, state["sampler"])

    def _forget(self) -> None:
        super()._forget()
        _inner.forget(self.sampler)


class _Repeats(_Parts):
    def __init__(self, sampler: RepeatSampler, epoch: int, pending: dict[str, Any] | None) -> None:
        super().__init__(pending["position"] if pending else 0, pending["part"] if pending else 0)
        self._sampler = sampler.sampler
        self._times = sampler.times
        self._epoch = epoch
        if pending and (self._times is None or self.part < self._times):
            self.inner = Inner(self._sampler, pending["sampler"])

    def begin(self, part: int) -> Inner | None:
        if self._times is not None and part >= self._times:
            return None
        if self._times is None and part > 0 and self.position == 0:
            raise ValueError("a RepeatSampler with times=None around a sampler that gives nothing would never come back")
        _inner.set_epoch(self._sampler, self._epoch * (self._times or 1) + part)
        return Inner(self._sampler)

    def state(self) -> dict[str, Any]:
        """The repetition, and the state of what is repeated."""
        inner = _inner.fresh(self._sampler) if self.inner is None else self.inner.state()
        return {"position": self.given, "epoch": self._epoch, "part": self.part, "sampler": inner}


class ConcatSampler(Sampler):
    """The iterations of several samplers one after the other, with ``offsets[i]`` added to the indices of sampler ``i``.

    For a ``ConcatDataset`` the offsets are ``[0, *dataset.cumulative_sizes[:-1]]``. ``set_epoch`` is passed on to all.
    """

    def __init__(self, samplers: Sequence[Iterable[Any]], offsets: Sequence[int]) -> None:
        self.samplers = list(samplers)
        self.offsets = list(offsets)
        if len(self.samplers) != len(self.offsets):
            raise ValueError(
                f"each sampler needs an offset: {len(self.samplers)} samplers, {len(self.offsets)} offsets (the first one is usually 0)"
            )

    def __len__(self) -> int:
        lengths: list[int] = [len(sampler) for sampler in self.samplers]  # type: ignore[arg-type]
        return sum(lengths)

    def set_epoch(self, epoch: int) -> None:
        """Passed on to the samplers that have epochs."""
        kept = [_inner.set_epoch(sampler, epoch) for sampler in self.samplers]
        if not all(kept):
            self._forget()

    def _forget(self) -> None:
        super()._forget()
        for sampler in self.samplers:
            _inner.forget(sampler)

    def _begin(self, known: Any, pending: dict[str, Any] | None) -> Run:
        return _Concatenated(self, pending)

    def _describe(self) -> dict[str, Any]:
        return {"samplers": len(self.samplers), "offsets": [int(offset) for offset in self.offsets]}

    def _fresh(self) -> dict[str, Any]:
        return {"position": 0, "part": 0, "parts": [_inner.fresh(sampler) for sampler in self.samplers]}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        name = type(self).__name__
        count(state, "part", name)
        parts = field(state, "parts", name)
        if not isinstance(parts, list) or len(parts) != len(self.samplers):
            raise ResumeError(f"the state of the {name} has parts={short(parts)}, which should be {len(self.samplers)} states")
        pairs = zip(self.samplers, parts, strict=True)
        return {**state, "parts": [_inner.check(sampler, {"sampler": part}, name) for sampler, part in pairs]}

    def _restore(self, state: dict[str, Any]) -> None:
        for sampler, part in zip(self.samplers, state["parts"], strict=True):
            _inner.load(sampler, part)


class _Concatenated(_Parts):
    def __init__(self, sampler: ConcatSampler, pending: dict[str, Any] | None) -> None:
        super().__init__(pending["position"] if pending else 0, pending["part"] if pending else 0)
        self._samplers = sampler.samplers
        self._offsets = sampler.offsets
        if pending and self.part < len(self._samplers):
            self.inner = Inner(self._samplers[self.part], pending["parts"][self.part])

    def begin(self, part: int) -> Inner | None:
        return Inner(self._samplers[part]) if part < len(self._samplers) else None

    def convert(self, items: list[Any]) -> list[Any]:
        offset = self._offsets[self.part]
        return [item + offset for item in items] if offset else items

    def state(self) -> dict[str, Any]:
        """The part, and the states of all of them: those that are done or still to come may hold generators."""
        current = self._samplers[self.part] if self.inner is not None else None
        parts = [
            self.inner.state() if self.inner is not None and sampler is current else _inner.fresh(sampler)
            for sampler in self._samplers
        ]
        return {"position": self.given, "part": self.part, "parts": parts}
