"""`afarm memory`: what each stage holds on a GPU, and what to change if it does not fit."""

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm memory`."""
    from afarm_plugins.memory.command import add_commands

    add_commands(app)
