"""Naming the component that a failure comes from, so that its author or user sees where to look."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from afarm.core.errors import AfarmError, PluginError
from afarm.core.hooks import KINDS

CORE = Path(__file__).parents[1]
CONTEXTLIB = Path(contextlib.__file__)


@contextlib.contextmanager
def blame(kind: str, name: str) -> Iterator[None]:
    """Raise what fails inside as a `PluginError` that names the component of that kind (a plural, as in `KINDS`) and
    the line of its code; the failure itself is its cause.

    What a user can act on (`AfarmError`) passes as it is, and so does an interrupt.
    """
    try:
        yield
    except AfarmError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise PluginError(f"{KINDS[kind]} {name!r} failed: {what} ({_place(error)})") from error


def _place(error: BaseException) -> str:
    """`folder/file.py:line`: the innermost frame in the folder of the component's own code, which is the first that is
    not core's."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    others = [frame for frame in frames if CORE not in frame[0].parents and frame[0] != CONTEXTLIB]
    own = [frame for frame in others if frame[0].parent == others[0][0].parent]
    file, line = (own or frames)[-1]
    return f"{file.parent.name}/{file.name}:{line}"
