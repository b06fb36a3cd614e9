"""The error by which a check names a broken promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from afarm.core.errors import AfarmError, DataError, PluginError

T = TypeVar("T")


class ConformanceError(AssertionError, AfarmError):
    """A component breaks a promise of its interface. The message names the promise, and how it was broken."""


def require(kept: bool, broken: str) -> None:
    """Raise `ConformanceError(broken)` unless the promise is `kept`: an `assert` that `python -O` keeps."""
    if not kept:
        raise ConformanceError(broken)


def unless_refused(call: Callable[[], T], what: str) -> T | None:
    """Return the result of `call`; None if it raises a `DataError`, as `what` must."""
    try:
        return call()
    except DataError:
        return None
    except Exception as error:
        raise ConformanceError(f"{what} must be a DataError that explains it, not {error!r}") from error


@contextmanager
def as_in_a_run() -> Iterator[None]:
    """Raise what a run would say of a broken promise as a `ConformanceError`."""
    try:
        yield
    except PluginError as error:
        raise ConformanceError(str(error)) from error


@contextmanager
def naming(component: str) -> Iterator[None]:
    """Prefix a `ConformanceError` with the component; an empty text adds nothing."""
    try:
        yield
    except ConformanceError as error:
        raise ConformanceError(f"{component}: {error}" if component else str(error)) from error
