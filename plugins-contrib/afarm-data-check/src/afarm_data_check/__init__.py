"""`afarm data check FILE`: what is wrong with preference data before something is trained on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afarm import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def register_commands(app: typer.Typer) -> None:
    from afarm_data_check.command import add_commands

    add_commands(app)
