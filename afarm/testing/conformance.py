"""The error by which a check names a broken promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from afarm.core.errors import DataError

T = TypeVar("T")


class ConformanceError(AssertionError):
    """A component breaks a promise of its interface. The message names the promise, and how it showed."""


def require(kept: bool, broken: str) -> None:
    """Raise `ConformanceError(broken)` unless the promise is `kept`: an `assert` that `python -O` keeps."""
    if not kept:
        raise ConformanceError(broken)


def unless_refused(call: Callable[[], T], what: str) -> T | None:
    """Return the result of `call`, None if it raises the `DataError` that `what` must be."""
    try:
        return call()
    except DataError:
        return None
    except Exception as error:
        raise ConformanceError(f"{what} must be a DataError that explains it, not {error!r}") from error


@contextmanager
def naming(component: str) -> Iterator[None]:
    """Put the component before the message of a `ConformanceError` inside; an empty text adds nothing."""
    try:
        yield
    except ConformanceError as error:
        raise ConformanceError(f"{component}: {error}" if component else str(error)) from error
