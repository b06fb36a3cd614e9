"""Diff: what sets two runs apart."""

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm diff`."""
    from afarm_plugins.diff.command import add_commands

    add_commands(app)
