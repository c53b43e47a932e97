"""Torch's random orders."""

from __future__ import annotations

import hashlib
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence, Sized
from typing import Any

import numpy as np

from feedrate._errors import short
from feedrate._native import Order
from feedrate._state_errors import ResumeError
from feedrate.samplers._base import PAGE, Run, Sampler, count, positive, within
from feedrate.samplers._streams import (
    Mark,
    PrivateStream,
    Stream,
    decode,
    encode,
    global_stream,
    stream_of,
    torch_seed,
)

# Torch draws so many indices at a time with replacement. Where nobody else can see the generator, more are drawn at once.
_BLOCK = 32
_PRIVATE_BLOCK = 64 * _BLOCK


class _Draws(Run):
    """Pieces of an order, each drawn from a stream when it is reached, as torch's generator functions draw them.

    ``draw(left, start)`` gives the piece that begins where ``left`` items are left, for who goes on at its item ``start``;
    ``finish()`` is what torch still draws at the end. The state holds where the stream stood before the current piece, and, when
    somebody else has drawn from it since, where it stands.
    """

    def __init__(
        self,
        stream: Stream,
        total: int,
        draw: Callable[[int, int], Order],
        pending: dict[str, Any] | None,
        *,
        shared: bool,
        finish: Callable[[], object] | None = None,
        values: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        self._stream = stream
        self._total = total
        self._draw = draw
        self._finish = finish
        self._values = values
        self._shared = shared
        self._over = False
        self._piece: Order | None = None
        self._start = self._stop = 0  # of the piece
        self._before = self._after = stream.mark()
        self._encoded: int | str | None = None  # of `_before`
        if pending:
            self._go_on(pending)

    def _go_on(self, pending: dict[str, Any]) -> None:
        if "piece" in pending:
            self._stream.restore(decode(pending["generator"], "sampler"))
            self.position = pending["piece"]
            self._next_piece(pending["position"] - pending["piece"])
        else:
            self._over = True
            self._stop = pending["position"]
        if "now" in pending:
            self._stream.restore(decode(pending["now"], "sampler"))
        self.position = pending["position"]

    def _next_piece(self, start: int = 0) -> bool:
        """Draws the next piece, of which what lies before ``start`` was given; whether there was one."""
        if self._over:
            return False
        if self.position >= self._total:
            if self._finish is not None:
                self._finish()
            self._over = True
            return False
        self._piece = None  # its memory is free before more is taken
        self._before = self._stream.mark()
        self._encoded = None
        self._piece = self._draw(self._total - self.position, start)
        self._after = self._stream.mark()
        self._start = self.position
        self._stop = self._start + len(self._piece)
        return True

    def _pick(self, start: int, stop: int, step: int) -> list[Any]:
        assert self._piece is not None
        items = self._piece.take(start - self._start, stop - self._start, step)
        return items if self._values is None else [self._values[i] for i in items]

    def page(self) -> list[Any]:
        """What is left of the piece or the beginning of the next one, up to ``PAGE`` items."""
        if self.position == self._stop and not self._next_piece():
            return []
        start = self.position
        self.position = min(start + PAGE, self._stop)
        return self._pick(start, self.position, 1)

    def take(self, total: int, offset: int = 0, step: int = 1) -> list[Any]:
        """Straight from the pieces."""
        start = self.position = self.given
        self.ready = iter(())
        goal = start + total
        items: list[Any] = []
        while self.position < goal and (self.position < self._stop or self._next_piece()):
            first = self.position + (start + offset - self.position) % step
            self.position = min(goal, self._stop)
            items += self._pick(first, self.position, step)
        return items

    def front(self, count: int) -> list[Any] | None:
        """Known when there is one piece only."""
        if self.position == 0 and self._piece is None:
            self._next_piece()
        if self._piece is None or self._stop - self._start < self._total:
            return None
        return self._pick(0, min(count, self._total), 1)

    def state(self) -> dict[str, Any]:
        """Where it stands."""
        state: dict[str, Any] = {"position": self.given}
        if not self._over:
            if self._encoded is None:
                self._encoded = encode(self._before)
            state.update(piece=self._start, generator=self._encoded)
        now: Mark = self._stream.mark()
        if self._shared and (self._over or now != self._after):
            state["now"] = encode(now)
        return state


class RandomSource(Sampler):
    """Base of the samplers that draw from a generator, as torch's do.

    ``generator`` is a ``torch.Generator``, or an integer seed for one of the sampler's own, with or without torch, or ``None``. With a
    generator each iteration goes on in its stream and so has another order; a state of an iteration holds where the generator
    stood, and loading it sets the generator: at once when no iteration was under way, else at its first ``next()``.
    """

    _stream: Stream | None = None
    _generator: Any = None

    @property
    def generator(self) -> Any:
        """As it was given."""
        return self._generator

    @generator.setter
    def generator(self, generator: Any) -> None:
        self._stream = stream_of(generator)
        self._generator = generator

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _run_on(self, stream: Stream, pending: dict[str, Any] | None) -> Run:
        """An iteration that draws from ``stream``."""

    def _unseeded(self) -> Stream:
        """For one iteration of a sampler without a generator."""
        return global_stream()

    def _begin(self, known: Any, pending: dict[str, Any] | None) -> Run:
        stream = self._stream
        if stream is None:
            # What was drawn from torch's global generator before is drawn from a copy: the global one is not ours to set back.
            stream = PrivateStream(decode(pending.get("generator", 0), type(self).__name__)) if pending else self._unseeded()
        return self._run_on(stream, pending)

    def _describe(self) -> dict[str, Any]:
        return {"generator given": self._stream is not None}

    def _fresh(self) -> dict[str, Any]:
        return {"position": 0} if self._stream is None else {"position": 0, "now": encode(self._stream.mark())}

    def _check(self, state: dict[str, Any]) -> dict[str, Any]:
        name = type(self).__name__
        if "piece" in state:
            if count(state, "piece", name) > state["position"]:
                raise ResumeError(
                    f"the state of the {name} has piece={state['piece']} behind its position: load what state_dict() gave"
                )
            decode(state.get("generator"), name)
        if "now" in state or (self._stream is not None and not (state["begun"] and "piece" in state)):
            decode(state.get("now"), name)
        return within(state, len(self), name)

    def _restore(self, state: dict[str, Any]) -> None:
        if not state["begun"] and self._stream is not None:
            self._stream.restore(decode(state["now"], type(self).__name__))


class RandomSampler(RandomSource):
    """The indices of ``data_source`` in random order: ``torch.utils.data.RandomSampler``, with its arguments and its orders.

    Without replacement it holds one permutation, 4 bytes a sample (8 from 2**32 samples on), and no Python list. Without a generator
    each iteration draws a seed from torch's global generator, as torch's does, or takes a fresh one when torch is not imported.
    """

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None, generator: Any = None
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
        count: Any = self.num_samples
        if not isinstance(count, int) or count <= 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={count}")

    @property
    def num_samples(self) -> int:
        """Indices in an iteration; follows the length of the data unless it was given."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __len__(self) -> int:
        return self.num_samples

    def _unseeded(self) -> Stream:
        return PrivateStream(torch_seed())

    def _run_on(self, stream: Stream, pending: dict[str, Any] | None) -> Run:
        n, total, shared = len(self.data_source), self.num_samples, self._stream is not None
        if self.replacement:
            block = _BLOCK if shared else _PRIVATE_BLOCK
            return _Draws(stream, total, lambda left, _: stream.randint(n, min(block, left)), pending, shared=shared)
        _, rest = divmod(total, n)
        # Torch makes one permutation more than it needs when none has to be cut.
        finish = None if rest else lambda: stream.randperm(n, keep=0)
        return _Draws(
            stream, total, lambda left, start: stream.randperm(n, min(left, n), start), pending, shared=shared, finish=finish
        )

    def _describe(self) -> dict[str, Any]:
        facts = {"size": len(self.data_source), "replacement": self.replacement, "num_samples": self.num_samples}
        return {**facts, **super()._describe()}


class SubsetRandomSampler(RandomSource):
    """The given indices in random order, without replacement: ``torch.utils.data.SubsetRandomSampler``.

    Without a generator it draws from torch's global one, as torch's does, or from a fresh one when torch is not imported.
    """

    def __init__(self, indices: Sequence[Any], generator: Any = None) -> None:
        self.indices = indices
        self.generator = generator
        self._digest: tuple[Any, int, str | None] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def _run_on(self, stream: Stream, pending: dict[str, Any] | None) -> Run:
        n = len(self.indices)

        def draw(left: int, start: int) -> Order:
            return stream.randperm(n, left, start)

        return _Draws(stream, n, draw, pending, shared=self._stream is not None, values=self.indices)

    def _describe(self) -> dict[str, Any]:
        n = len(self.indices)
        known = self._digest
        if known is None or known[0] is not self.indices or known[1] != n:
            try:
                text = digest(np.asarray(self.indices).astype(np.int64, casting="safe"))
            except (TypeError, ValueError, OverflowError):
                text = None  # keys that are no numbers: the length must do
            self._digest = known = (self.indices, n, text)
        return {"size": n, "indices": known[2], **super()._describe()}


class WeightedRandomSampler(RandomSource):
    """Indices drawn with the given chances: ``torch.utils.data.WeightedRandomSampler``. ``weights`` is kept as a float64 array.

    Without a generator it draws from torch's global one, as torch's does, or from a fresh one when torch is not imported.
    """

    def __init__(self, weights: Any, num_samples: int, replacement: bool = True, generator: Any = None) -> None:
        if not positive(num_samples):
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement}")
        self.weights = _weights(weights)
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    @property
    def weights(self) -> np.ndarray[Any, Any]:
        """The chance of each index, in any unit, as float64."""
        return self._weights

    @weights.setter
    def weights(self, weights: Any) -> None:
        self._weights = _weights(weights)
        self._digest: str | None = None

    def __len__(self) -> int:
        return self.num_samples

    def _run_on(self, stream: Stream, pending: dict[str, Any] | None) -> Run:
        def draw(_left: int, _start: int) -> Order:
            return stream.multinomial(self.weights, self.num_samples, self.replacement)

        return _Draws(stream, self.num_samples, draw, pending, shared=self._stream is not None)

    def _describe(self) -> dict[str, Any]:
        if self._digest is None:
            self._digest = digest(self.weights)
        facts = {"weights": self._digest, "num_samples": self.num_samples, "replacement": self.replacement}
        return {**facts, **super()._describe()}


def _weights(weights: Any) -> np.ndarray[Any, Any]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(weights, torch.Tensor):
        weights = weights.detach().to("cpu", torch.double).numpy()
    if isinstance(weights, str | bytes) or not hasattr(weights, "__len__"):
        raise TypeError(f"weights should be a 1d sequence of numbers, but got {type(weights).__name__}")
    array = np.asarray(weights)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"weights should be a 1d sequence of numbers, but got {short(weights)}")
    if array.ndim != 1:
        raise ValueError(f"weights should be a 1d sequence but given weights have shape {array.shape}")
    return array.astype(np.float64)


def digest(array: np.ndarray[Any, Any]) -> str:
    """Tells data apart: 64 bits of BLAKE2 over an array's bytes."""
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=8).hexdigest()
