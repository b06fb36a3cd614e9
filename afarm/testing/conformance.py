"""How a check says that a promise is broken."""

from __future__ import annotations


class ConformanceError(AssertionError):
    """A component does not keep what its interface promises. The message says which promise, and how it showed."""


def require(kept: bool, broken: str) -> None:
    """Raise `ConformanceError(broken)` unless the promise is `kept`: an `assert` that `python -O` leaves in."""
    if not kept:
        raise ConformanceError(broken)
