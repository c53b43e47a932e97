"""torch.compile, which shall leave our functions alone as it does those of ``torch.utils.data``."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_compiled(function: _Function) -> _Function:
    """Dynamo calls it and does not look inside."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def left_out() -> None:
    """Has Dynamo leave out all of this package, whoever calls it. It is not imported for this, which takes seconds; who compiles something
    that begins an epoch has it."""
    if (rules := sys.modules.get("torch._dynamo.trace_rules")) is not None:
        _leave_out(rules)


@functools.cache
def _leave_out(rules: Any) -> None:
    with contextlib.suppress(AttributeError):
        rules.add("feedrate")


__all__ = ["left_out", "not_compiled"]
