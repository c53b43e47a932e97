"""States of random generators, as plain data that JSON can hold."""

from __future__ import annotations

import base64
import random
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from feedrate._state_errors import ResumeError

# torch's CPU generator: a head of 24 bytes, 624 words of which each takes 8 bytes, 40 bytes of cached normals.
_HEAD, _WORDS, _TAIL = 24, 624, 40


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _plain(value: Any) -> Any:
    """NumPy's state dictionaries without arrays."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "data": _text(value.tobytes())}
    return value.item() if isinstance(value, np.generic) else value


def _rich(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"dtype", "data"}:
            return np.frombuffer(base64.b64decode(value["data"]), value["dtype"]).copy()
        return {k: _rich(v) for k, v in value.items()}
    return value


def _torch() -> Any:
    return sys.modules.get("torch")


def is_generator(value: Any) -> bool:
    """Whether ``value`` is a generator of torch, NumPy or Python whose state can be read and put back."""
    torch = _torch()
    if isinstance(value, random.SystemRandom):
        return False
    return isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)) or (
        torch is not None and isinstance(value, torch.Generator)
    )


def read(generator: Any) -> Any:
    """A snapshot of a generator's state, cheap to take; :func:`pack` makes plain data of it."""
    kind = kind_of(generator)
    if kind == "numpy":
        return kind, generator.bit_generator.state
    if kind == "numpy-legacy":
        return kind, generator.get_state(legacy=False)
    return kind, generator.getstate() if kind == "python" else bytes(generator.get_state().numpy())


def pack(snapshot: Any) -> dict[str, Any]:
    """A snapshot as JSON-safe data: about 3.4 kB for a Mersenne Twister, 0.2 kB for NumPy's default generator."""
    kind, state = snapshot
    if kind == "python":
        version, words, gauss = state
        return {"kind": kind, "version": version, "words": _text(struct.pack(f"<{len(words)}I", *words)), "gauss": gauss}
    if kind != "torch":
        return {"kind": kind, "state": _plain(state)}
    if len(state) != _HEAD + 8 * _WORDS + _TAIL:
        return {"kind": kind, "raw": _text(state)}
    words = np.frombuffer(state, "<u8", _WORDS, _HEAD).astype("<u4").tobytes()
    return {"kind": kind, "packed": _text(state[:_HEAD] + words + state[-_TAIL:])}


def torch_bytes(packed: dict[str, Any]) -> bytes:
    """What ``torch.Generator.get_state()`` gave."""
    if "raw" in packed:
        return base64.b64decode(packed["raw"])
    raw = base64.b64decode(packed["packed"])
    words = np.frombuffer(raw, "<u4", _WORDS, _HEAD).astype("<u8").tobytes()
    return raw[:_HEAD] + words + raw[-_TAIL:]


def check(generator: Any, packed: Any, owner: str) -> None:
    """That a packed state is of a generator of this kind. Raises :class:`feedrate.ResumeError`."""
    theirs, mine = _kind(packed), _kind({"kind": kind_of(generator), "state": getattr(generator, "bit_generator", None)})
    if theirs != mine:
        raise ResumeError(
            f"the state is of a {theirs} generator, the {owner} has a {type(generator).__module__}.{type(generator).__name__} "
            f"({mine}): give it a generator of the kind that it was saved with"
        )


def kind_of(generator: Any) -> str:
    """How :func:`pack` calls its kind."""
    if isinstance(generator, np.random.Generator):
        return "numpy"
    if isinstance(generator, np.random.RandomState):
        return "numpy-legacy"
    return "python" if isinstance(generator, random.Random) else "torch"


def _kind(packed: Any) -> str:
    """In words: NumPy has several bit generators."""
    kind = packed.get("kind") if isinstance(packed, dict) else None
    state = packed.get("state") if isinstance(packed, dict) else None
    if kind != "numpy":
        return str(kind)
    return f"numpy {state.get('bit_generator') if isinstance(state, dict) else type(state).__name__}"


def restore(generator: Any, packed: dict[str, Any], owner: str = "loader") -> None:
    """Puts a packed state into a generator of its kind. Raises :class:`feedrate.ResumeError` for another kind."""
    check(generator, packed, owner)
    try:
        _set(generator, packed)
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError, struct.error) as error:
        raise ResumeError(
            f"the state of the {owner}'s {_kind(packed)} generator cannot be read: {type(error).__name__}: {error}. Load what "
            "state_dict() gave, unchanged"
        ) from error


def _set(generator: Any, packed: dict[str, Any]) -> None:
    kind = packed["kind"]
    if kind == "python":
        raw = base64.b64decode(packed["words"])
        gauss = packed["gauss"]
        generator.setstate((packed["version"], struct.unpack(f"<{len(raw) // 4}I", raw), gauss))
    elif kind == "numpy":
        generator.bit_generator.state = _rich(packed["state"])
    elif kind == "numpy-legacy":
        generator.set_state(_rich(packed["state"]))
    else:
        torch = _torch()
        generator.set_state(torch.frombuffer(bytearray(torch_bytes(packed)), dtype=torch.uint8))


def process_wide() -> dict[str, Any]:
    """The process-wide generators, by name: Python's, NumPy's, and torch's if it is imported."""
    found: dict[str, Any] = {"python": random._inst, "numpy": np.random.mtrand._rand}
    torch = _torch()
    if torch is not None:
        found["torch"] = torch.default_generator
    return found


@contextmanager
def preserved() -> Iterator[None]:
    """Whatever is drawn from the process-wide generators inside is undone at the end."""
    generators = process_wide()
    before = {name: pack(read(generator)) for name, generator in generators.items()}
    try:
        yield
    finally:
        for name, state in before.items():
            restore(generators[name], state)


def owned_by(parts: dict[str, Any]) -> dict[str, Any]:
    """Generators that are, or are attributes of, the given objects, by path; each object once."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for path, part in parts.items():
        candidates = (
            {path: part} if is_generator(part) else {f"{path}.{k}": v for k, v in (getattr(part, "__dict__", None) or {}).items()}
        )
        for name, value in candidates.items():
            if is_generator(value) and id(value) not in seen and not any(value is g for g in process_wide().values()):
                seen.add(id(value))
                found[name] = value
    return found
