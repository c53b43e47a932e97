"""What happens to bad elements of a pipeline: ``on_error()``."""

from __future__ import annotations

import warnings
from typing import Any

from feedrate._errors import annotate


class Skipper:
    """What happens to bad elements, and which there were."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.policy = options.get("on_error") or "raise"
        self.at_most = options.get("at_most")
        self.log = options.get("log")
        self.count = 0
        #: Those since they were last looked at: shard, key, step and reason.
        self.fresh: list[dict[str, Any]] = []

    def skips(self, error: Exception) -> bool:
        """Whether the stream goes on behind this error, which is then noted."""
        if self.policy == "raise" or not getattr(error, "may_continue", False):
            return False
        if callable(self.policy) and not self.policy(error):
            return False
        self.count += 1
        if self.at_most is not None and self.count > self.at_most:
            annotate(
                error, f"feedrate: this is bad element {self.count} of the epoch, and on_error() allows at_most={self.at_most}"
            )
            return False
        entry = {name: getattr(error, name, None) for name in ("shard", "key", "step")}
        self.fresh.append({**entry, "reason": f"{type(error).__name__}: {error}"})
        if self.log is not None:
            append(self.log, self.fresh[-1])
        return True


def append(path: Any, entry: dict[str, Any]) -> None:
    """A line of JSON behind a file's end. Where it cannot be written, a warning: training goes on, and ``skipped`` has the elements."""
    import json

    try:
        # One write of one line: lines of several processes do not mix.
        with open(path, "ab", buffering=0) as file:
            file.write(json.dumps(entry).encode() + b"\n")
    except OSError as error:
        warnings.warn(f"on_error(log={path!r}): bad elements are not written down: {error}", RuntimeWarning, stacklevel=2)
