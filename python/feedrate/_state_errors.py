"""The error of a state that cannot be taken up exactly."""

from __future__ import annotations

from feedrate._errors import Error


class ResumeError(Error, ValueError):
    """A state does not fit what it is loaded into, so that the rest of the stream could not be exactly the rest.

    The message names both values that differ and what to change. Nothing has been changed when it is raised by
    ``load_state_dict()``.
    """
