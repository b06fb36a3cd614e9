"""Grids of runs: `afarm study`, which prices, runs and reports the studies that plugins register."""

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm study`."""
    from afarm_plugins.grids.command import add_commands

    add_commands(app)
