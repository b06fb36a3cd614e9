"""Tuning: `afarm tune`, which chooses the settings of methods by trials on the validation split."""

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm tune`."""
    from afarm_plugins.tuning.command import add_commands

    add_commands(app)
