"""The form of a loader's states: what stands where. Users' own parts of them are theirs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from feedrate._errors import short
from feedrate._state_errors import ResumeError

_Check = Callable[[Any, str], None]


def _wrong(value: Any, path: str, what: str) -> NoReturn:
    raise ResumeError(f"state{path} is {short(value, 60)}, where {what} belongs: load what state_dict() gave, unchanged")


def _of(kind: type | tuple[type, ...], what: str) -> _Check:
    def check(value: Any, path: str) -> None:
        if not isinstance(value, kind):
            _wrong(value, path, what)

    return check


def _whole(value: Any) -> int | None:
    """A number as checkpoints give it back, which may be one of NumPy's."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _drawn(value: Any, path: str) -> None:
    """As torch draws seeds, or takes them."""
    number = _whole(value)
    if number is None or not -(1 << 63) <= number < 1 << 64:
        _wrong(value, path, "a whole number of 64 bits")


def _seeded(value: Any, path: str) -> None:
    """As the user gave it."""
    if _whole(value) is None:
        _wrong(value, path, "a whole number")


def _count(value: Any, path: str) -> None:
    number = _whole(value)
    if number is None or not 0 <= number < 1 << 62:
        _wrong(value, path, "a count")


def _or_none(inner: _Check) -> _Check:
    return lambda value, path: None if value is None else inner(value, path)


def _each(inner: _Check) -> _Check:
    def check(value: Any, path: str) -> None:
        if not isinstance(value, (list, tuple)):
            _wrong(value, path, "a list")
        for at, item in enumerate(value):
            inner(item, f"{path}[{at}]")

    return check


def _named(inner: _Check) -> _Check:
    def check(value: Any, path: str) -> None:
        _dict(value, path)
        for name, item in value.items():
            inner(item, f"{path}[{name!r}]")

    return check


def _form(parts: dict[str, _Check]) -> _Check:
    """A dict with these parts; a ``?`` is behind the name of one that may be missing. What else it holds is passed over."""

    def check(value: Any, path: str) -> None:
        _dict(value, path)
        for key, inner in parts.items():
            name = key.rstrip("?")
            if name in value:
                inner(value[name], f"{path}[{name!r}]")
            elif name == key:
                raise ResumeError(f"state{path} has no {name!r}: load what state_dict() gave, unchanged")

    return check


def _any(value: Any, path: str) -> None:
    pass


def _seed(value: Any, path: str) -> None:
    """A number, or the state of the generator that an order is drawn from."""
    if isinstance(value, dict):
        _GENERATOR(value, path)
    elif value is not None:
        _drawn(value, path)


_dict = _of(dict, "a dict")
_flag = _of((bool, np.bool_), "True or False")
_text = _of(str, "text")
_GENERATOR = _form({"kind": _text})

_SAMPLER = _form({"sampler": _any, "iterator": _any})

_STREAM = _form({"facts": _dict})
_ORDER = _form(
    {
        "facts": _dict,
        "samples?": _count,
        "seed?": _seed,
        "batch_size?": _or_none(_count),
        "peeked?": _flag,
        "finished?": _flag,
        "ranks?": _form({"world": _count, "total": _count}),
        # Of a sampler that is iterated.
        "passed?": _count,
        "hash?": _text,
        "ended?": _flag,
        "sampler?": _SAMPLER,
        "globals?": _or_none(_named(_GENERATOR)),
        "unseeded?": _flag,
    }
)


def _lane(value: Any, path: str) -> None:
    _LANE(value, path)
    if value["since"] > value["units"]:
        _wrong(value["since"], f"{path}['since']", f"at most its 'units', {value['units']},")


_LANE = _form({"units": _count, "since": _count, "cursor": _or_none(_dict), "old?": _flag})
_LANES = _form(
    {
        "facts": _form(
            {
                "pipeline": _text,
                "data?": _or_none(_text),
                "steps?": _each(_text),
                "rows": _count,
                "units": _count,
                "samples": _count,
            }
        ),
        "turns": _count,
        "lanes": _named(_lane),
        "dry?": _each(_count),
        "skipped?": _count,
        "tail?": _count,
        "world?": _count,
    }
)


def _plan(value: Any, path: str) -> None:
    _form({"kind": _text})(value, path)
    kind = value["kind"]
    (_LANES if kind == "lanes" else _STREAM if kind == "stream" else _ORDER)(value, path)
    if kind == "lanes":
        for name, lane in value["lanes"].items():
            if lane["units"] > value["turns"]:
                _wrong(lane["units"], f"{path}['lanes'][{name!r}]['units']", f"at most the plan's 'turns', {value['turns']},")


def _workers(value: Any, path: str) -> None:
    _WORKERS(value, path)
    if len(value["each"]) != max(1, value["count"]):
        _wrong(value["each"], f"{path}['each']", f"one for each of {value['count']} workers")


#: Of a stream.
_PLACE = _form({"iterator": _any, "dataset": _any})
_STAND = _form({"state": _any, "since": _count, "ended": _flag, "over?": _flag, "lost?": _flag})

_WORKERS = _form({"count": _count, "next": _or_none(_count), "each": _each(_or_none(_STAND))})
_WHOLE = _form(
    {
        "epoch": _count,
        "batches": _count,
        "plan": _plan,
        "skip?": _count,
        "seed?": _drawn,
        "key?": _or_none(_seeded),
        "pipeline seed?": _or_none(_drawn),
        "over?": _flag,
        "ahead?": _each(_count),
        "ahead of?": _each(_or_none(_count)),
        "draws?": _form({"seed?": _drawn, "order?": _drawn}),
        "generators?": _named(_GENERATOR),
        "workers?": _workers,
    }
)


def check_form(state: dict[str, Any]) -> None:
    """Raises :class:`feedrate.ResumeError` for the first part that cannot be one of a state's."""
    _WHOLE(state, "")
    if state["plan"]["kind"] == "stream" and "workers" in state:
        for worker, stand in enumerate(state["workers"]["each"]):
            if stand is not None:
                _or_none(_PLACE)(stand["state"], f"['workers']['each'][{worker}]['state']")
