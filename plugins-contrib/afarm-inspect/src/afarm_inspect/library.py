"""The library inspect_ai, imported when a command needs it: that takes seconds."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from afarm import ConfigError

LIBRARY = "inspect_ai"


def load_part(name: str) -> Any:
    """Import a part of inspect_ai, such as "log". Raises `ConfigError` if inspect_ai is not installed."""
    try:
        return importlib.import_module(f"{LIBRARY}.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != LIBRARY:
            raise
        raise ConfigError(
            [f"logs are read and written by {LIBRARY}, which is not installed: pip install {LIBRARY}"]
        ) from error


def describe_library() -> str:
    """Return the library's name and version."""
    return f"{LIBRARY} {version(LIBRARY)}"
