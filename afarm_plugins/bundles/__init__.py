"""Bundles: runs and studies in one file, replayed without a key, a model or a network."""

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm bundle` and `afarm replay`."""
    from afarm_plugins.bundles.command import add_commands

    add_commands(app)
