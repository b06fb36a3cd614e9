"""Code that a setting names, such as `function:rewards.py:length`: who may let it in.

A recipe, a bundle and a stored policy may be anybody's. So a process loads only what its own command line, or a Python
call in it, has named; the settings of a launcher's task count, since the command that sent it has checked them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from afarm.core.errors import ConfigError, ModelError

_given: list[str] = []
"""The texts that this process's command line and Python calls gave."""


def name_code(given: object) -> None:
    """Let code in that `given` names: words of a command line, or settings of a Python call."""
    if isinstance(given, str) and ":" in given and given not in _given:
        _given.append(given)
    for one in given.items() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else ():
        name_code(one)


def require_named(spec: str) -> None:
    """Raise `ConfigError` for code that neither the command line nor a Python call named.

    Call it before code is loaded that a setting names. Raises `ModelError` inside `close_files`.
    """
    from afarm.storage.user_files import why_closed  # not at every start of the command line

    if problem := why_closed(None):
        raise ModelError(f"code {spec!r:.80}: {problem}")
    whole = re.compile(rf"(?<![\w./-]){re.escape(spec)}(?![\w./-])")
    if not any(whole.search(text) for text in _given):
        raise ConfigError(
            f"{spec!r} names code, and a recipe or a stored file may be anybody's: it is loaded only if the command "
            "line names it too (such as --reward-model function:FILE.py:NAME), or the Python call"
        )
