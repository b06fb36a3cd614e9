"""Logs of Inspect, read and written: `afarm inspect read` and `afarm inspect write`."""

from __future__ import annotations

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add the group `inspect`."""
    from afarm_inspect.command import add_commands

    add_commands(app)
