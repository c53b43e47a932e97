"""Whether a state is of the pipeline that is to go on, and what a state holds to tell."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from feedrate._state_errors import ResumeError

if TYPE_CHECKING:
    from feedrate._pipeline import Pipeline

#: Characters of a line of a definition, and lines, that states hold and messages show: sources may list thousands of files.
_LINE = 300
_LINES = 60


def identity(pipeline: Pipeline) -> dict[str, Any]:
    """What a state holds of its pipeline: fingerprints of the definition and the files, and the steps, for messages."""
    return {"pipeline": pipeline.fingerprint, "data": pipeline.data_fingerprint, "steps": pipeline._steps}


def steps(pipeline: Pipeline) -> list[str]:
    """A line for each step, none of them long."""
    lines = str(pipeline).splitlines()
    cut = [line if len(line) <= _LINE else f"{line[:_LINE]}…" for line in lines[:_LINES]]
    return cut if len(lines) <= _LINES else [*cut, f"… ({len(lines) - _LINES} steps more)"]


def check_same(pipeline: Pipeline, saved: dict[str, Any], *, over: bool = False) -> None:
    """Refuses the state of another pipeline, and of one over other data, where that counts: not between epochs (``over``)."""
    if saved["pipeline"] != pipeline.fingerprint:
        raise ResumeError(f"the state was saved with another pipeline {_difference(saved, pipeline)}")
    data = saved.get("data")
    if not over and data is not None and data != pipeline.data_fingerprint:
        raise ResumeError(
            f"the state was saved over other data (fingerprint {data}, now {pipeline.data_fingerprint}): since then a file was added, "
            "taken away or changed in size, and places in it would mean other elements. Use the files as they were, or begin an epoch "
            f"anew:\n{pipeline}"
        )


def _difference(saved: dict[str, Any], pipeline: Pipeline) -> str:
    fix = "Use the same steps, options and data"
    prints = f"(fingerprint {saved['pipeline']}, this one has {pipeline.fingerprint})"
    there, here = saved.get("steps"), pipeline._steps
    if there is None or there == here:
        return f"{prints}:\n{pipeline}{fix}"
    # "- " is the state's, "+ " is this pipeline's.
    lines = [line for line in difflib.ndiff(there, here) if not line.startswith("?")]
    return "\n".join([f"{prints}; - is the state's step, + is this pipeline's:", *lines, fix])
