"""The exceptions afarm raises. Each message names what is wrong, where, and the fix."""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from afarm.core.hooks import GROUP, KINDS


class AfarmError(Exception):
    """Any failure that a user can act on. The command line prints it without a traceback and exits with 1."""


class ConfigError(AfarmError):
    """One or more settings are wrong. `problems` lists them all, before a model is loaded."""

    def __init__(self, problems: str | Iterable[str]):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        many = f"{len(self.problems)} problems in the configuration:\n" if len(self.problems) > 1 else ""
        super().__init__(many + "\n".join(f"- {p}" if many else p for p in self.problems))


class PluginError(AfarmError):
    """A plugin could not be loaded, or a name it should provide is unknown or ambiguous."""


class DataError(AfarmError):
    """A file or a data set has wrong contents. The message names the file, the row and the field."""


class ModelError(AfarmError):
    """A model cannot be loaded, or lacks what the run needs (a chat template, an end-of-sequence token …)."""


class TrainingError(AfarmError):
    """Training cannot go on (a NaN loss, say). The message names the step and the checkpoint that is kept."""


class JudgeError(AfarmError):
    """A judge LLM could not be reached or refused the request. Never stored as an answer.

    `charged` says whether the request may have been charged for all the same: the ledger then goes on counting it.
    """

    def __init__(self, message: str, *, charged: bool = True):
        super().__init__(message)
        self.charged = charged


class BudgetError(AfarmError):
    """The next request could exceed the budget. Everything paid for is kept."""


class StoreError(AfarmError):
    """The output directory cannot be read or written (a full disk, missing rights)."""


def did_you_mean(name: str, known: Iterable[str], lists: str = "") -> str:
    """Suggest the nearest of the `known` names; without one, the command that `lists` them, else all."""
    known = sorted(set(known))
    if near := get_close_matches(name, known, n=3, cutoff=0.5):
        return f" Did you mean {' or '.join(repr(n) for n in near)}?"
    if lists:
        return f" {lists} lists them."
    return f" Known: {', '.join(known)}." if known else ""


NOT_A_PLUGIN = (f"{Path(__file__).parents[1]}/", contextlib.__file__)


@contextlib.contextmanager
def attribute_failures(kind: str, name: str, owner: object = None) -> Iterator[None]:
    """Raise any failure inside as a `PluginError` that names the component and the line of its code.

    `kind` is a key of `KINDS`, or another noun; `owner` is the component or its class. The original exception is the
    cause; `sys.exit` counts as a failure. `AfarmError`, which a user can act on, and interrupts pass unchanged.
    """
    try:
        yield
    except AfarmError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        which = f"{KINDS.get(kind, kind)} {name!r}{_name_plugin(owner)}"
        raise PluginError(f"{which} failed: {what} ({_place(error, owner)})") from error


def require_promise(kept: bool, kind: str, name: str, broken: str, owner: object = None) -> None:
    """Raise `PluginError` that the component has `broken` a promise of its interface, unless it is `kept`."""
    if not kept:
        raise PluginError(f"{KINDS.get(kind, kind)} {name!r}{_name_plugin(owner)}: {broken}")


def _name_plugin(owner: object) -> str:
    """Name the third-party plugin that defines a class or an instance, or else its distribution."""
    package = (owner if isinstance(owner, type) else type(owner)).__module__.partition(".")[0]
    if package in ("afarm", "afarm_plugins", "builtins"):
        return ""
    import importlib.metadata  # only now: it is a tenth of the start

    for point in importlib.metadata.entry_points(group=GROUP):
        if point.dist and re.split("[.:]", point.value)[0] == package:
            return f" of plugin {point.name!r} ({point.dist.name} {point.dist.version})"
    distributions = _read_once(importlib.metadata.packages_distributions, tuple(sys.path)).get(package)
    return f" of {distributions[0]}" if distributions else ""


@lru_cache(maxsize=1)  # it takes a quarter of a second
def _read_once(read: Callable[[], Mapping[str, list[str]]], path: tuple[str, ...]) -> Mapping[str, list[str]]:
    return read()


def type_name(value: object) -> str:
    """Name the type of a value that something else was promised for, as a message says it."""
    return "None" if value is None else type(value).__name__


def _place(error: BaseException, owner: object) -> str:
    """Find `folder/file.py:line` of the innermost frame in the component's folder."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    module = sys.modules.get((owner if isinstance(owner, type) else type(owner)).__module__)
    home = Path(str(getattr(module, "__file__", None))).parent
    others = [frame for frame in frames if not str(frame[0]).startswith(NOT_A_PLUGIN)]
    first = next((frame for frame in others if frame[0].parent == home), others[0] if others else None)
    own = [frame for frame in others if first and frame[0].parent == first[0].parent]
    file, line = (own or frames)[-1]
    return f"{file.parent.name}/{file.name}:{line}"
