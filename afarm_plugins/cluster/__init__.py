"""Cluster: a launcher's machines looked at before anything runs on them."""

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm cluster check`."""
    from afarm_plugins.cluster.command import add_commands

    add_commands(app)
