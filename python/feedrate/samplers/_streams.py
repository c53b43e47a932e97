"""Where samplers take their random numbers from: torch's stream, with or without torch."""

from __future__ import annotations

import base64
import binascii
import secrets
import struct
import sys
import zlib
from abc import ABC, abstractmethod
from operator import index
from typing import Any

import numpy as np

from feedrate._errors import short
from feedrate._native import Order
from feedrate._state_errors import ResumeError

_STATE_BYTES = 5056  # of torch's CPU generator

# Where a stream stands: a seed when nothing was drawn since, else the bytes of torch.Generator.get_state().
Mark = int | bytes


class Stream(ABC):
    """A stream of random numbers as torch's CPU generator gives them. Long draws release the GIL."""

    @abstractmethod
    def mark(self) -> Mark:
        """Where it stands. Draws nothing."""

    @abstractmethod
    def restore(self, mark: Mark) -> None:
        """Goes there."""

    def randperm(self, n: int, keep: int | None = None, start: int = 0) -> Order:
        """``torch.randperm(n)``; only its first ``keep`` when given. The stream moves as for all of it. Positions before ``start`` are not
        expected to be asked for."""
        state = as_bytes(self.mark())
        # A whole order by torch_random would draw torch's extra permutation.
        if keep in (None, n):
            order, after = Order.torch_randperm(n, state, start=start)
        else:
            order, after = Order.torch_random(n, state, num_samples=keep)
        self.restore(after)
        return order

    def randint(self, high: int, count: int) -> Order:
        """``torch.randint(high, (count,))``."""
        if high <= 0:
            raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from=0 >= to={high}")
        order, after = Order.torch_random(high, as_bytes(self.mark()), replacement=True, num_samples=count)
        self.restore(after)
        return order

    def multinomial(self, weights: Any, count: int, replacement: bool) -> Order:
        """``torch.multinomial`` of float64 weights."""
        order, after = Order.torch_multinomial(weights, count, replacement, as_bytes(self.mark()))
        self.restore(after)
        return order


class PrivateStream(Stream):
    """A stream of our own: what ``torch.Generator().manual_seed(seed)`` gives, without torch."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark

    def mark(self) -> Mark:
        """The seed or the state."""
        return self._mark

    def restore(self, mark: Mark) -> None:
        """Takes another one."""
        self._mark = mark


class GeneratorStream(Stream):
    """The stream of a ``torch.Generator``, which others may draw from as well. Draws that torch makes in one call are torch's own."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def _cpu(self) -> Any:
        kind = self._generator.device.type
        if kind != "cpu":
            raise RuntimeError(f"Expected a 'cpu' device type for generator but found '{kind}'")
        return self._generator

    def mark(self) -> bytes:
        """The generator's state."""
        state: bytes = self._cpu().get_state().numpy().tobytes()
        return state

    def restore(self, mark: Mark) -> None:
        """Seeds the generator or sets its state."""
        if isinstance(mark, int):
            self._cpu().manual_seed(mark)
        else:
            torch = sys.modules["torch"]
            self._cpu().set_state(torch.frombuffer(bytearray(mark), dtype=torch.uint8))

    def randint(self, high: int, count: int) -> Order:
        """By torch."""
        torch = sys.modules["torch"]
        return Order.of(torch.randint(high=high, size=(count,), dtype=torch.int64, generator=self._generator).numpy())

    def multinomial(self, weights: Any, count: int, replacement: bool) -> Order:
        """By torch, whose releases differ in it."""
        torch = sys.modules["torch"]
        return Order.of(torch.multinomial(torch.from_numpy(weights), count, replacement, generator=self._generator).numpy())


def stream_of(generator: Any) -> Stream | None:
    """The stream of a sampler's ``generator`` argument: a ``torch.Generator``, a seed, or ``None``."""
    if generator is None:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(generator, torch.Generator):
        return GeneratorStream(generator)
    return PrivateStream(seed_of(generator, "generator", "a torch.Generator, an integer seed or None"))


def seed_of(value: Any, argument: str, expected: str) -> int:
    """A seed as torch takes them, -2**63 to 2**64 - 1; a negative one counts from 2**64."""
    try:
        if isinstance(value, bool):
            raise TypeError
        seed = index(value)
    except TypeError:
        raise TypeError(f"{argument} should be {expected}, but got {argument}={short(value)}") from None
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"a seed lies between -2**63 and 2**64 - 1, but got {argument}={seed}")
    return seed % 2**64


def fresh_seed() -> int:
    """A seed that nobody has seen."""
    return secrets.randbits(63)


def torch_seed() -> int:
    """A seed from torch's global generator, as torch's samplers draw it; a fresh one when torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return fresh_seed()
    return int(torch.empty((), dtype=torch.int64).random_().item())


def global_stream() -> Stream:
    """The stream of torch's global generator; a fresh one when torch is not imported."""
    torch = sys.modules.get("torch")
    return PrivateStream(fresh_seed()) if torch is None else GeneratorStream(torch.default_generator)


def as_bytes(mark: Mark) -> bytes:
    """The state of torch's generator at a mark."""
    if isinstance(mark, bytes):
        return mark
    # NumPy's older seeding is the original one of MT19937, as torch's is; both take the low 32 bits.
    key = np.random.RandomState(mark & 0xFFFFFFFF).get_state(legacy=False)["state"]["key"]
    # Seed, words left before the next twist, seeded, next word, the words, no cached normals.
    words: bytes = key.astype("<u8").tobytes()
    return struct.pack("<Qiiq", mark, 1, 1, 0) + words + bytes(40)


def encode(mark: Mark) -> int | str:
    """A mark for a state: JSON-safe, about 4 kB when it is not a seed."""
    if isinstance(mark, int):
        return mark
    return base64.b64encode(zlib.compress(mark, 1)).decode("ascii")


def decode(value: Any, name: str) -> Mark:
    """What ``encode`` made. Raises :class:`feedrate.ResumeError` for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64:
        return value
    if isinstance(value, str):
        try:
            # Bounded: what is read may come from anywhere.
            mark = zlib.decompressobj().decompress(base64.b64decode(value, validate=True), _STATE_BYTES + 1)
        except (binascii.Error, zlib.error):
            mark = b""
        if len(mark) == _STATE_BYTES:
            return mark
    raise ResumeError(
        f"the state of the {name} has generator={short(value)}, which is none: load what state_dict() gave, unchanged"
    )
