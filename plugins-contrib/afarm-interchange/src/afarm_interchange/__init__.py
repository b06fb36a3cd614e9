"""Results for other tools, and theirs for afarm: `afarm interchange`."""

from __future__ import annotations

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm interchange export` and `afarm interchange read`."""
    from afarm_interchange.command import add_commands

    add_commands(app)
