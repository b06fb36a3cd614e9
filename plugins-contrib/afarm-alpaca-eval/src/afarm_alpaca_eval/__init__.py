"""`afarm alpaca-eval`: AlpacaEval of one's own model, beside the published board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afarm import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def register_commands(app: typer.Typer) -> None:
    from afarm_alpaca_eval.command import add_commands

    add_commands(app)
