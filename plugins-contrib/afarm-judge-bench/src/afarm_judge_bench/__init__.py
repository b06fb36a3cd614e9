"""Judges measured before they are trusted: `afarm judge bench`."""

from __future__ import annotations

from typing import Any

from afarm import hookimpl


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm judge bench` to the group `judge`."""
    from afarm_judge_bench.command import add_commands

    add_commands(app)
