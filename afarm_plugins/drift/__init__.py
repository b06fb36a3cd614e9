"""Judge drift: ask a judge again about pairs it has labelled, and test if its answers have changed."""

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm drift`."""
    from afarm_plugins.drift.command import add_commands

    add_commands(app)
