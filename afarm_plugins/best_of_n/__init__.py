"""Best-of-n: sample n times, keep what the reward model likes best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afarm import Register, hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def register_methods(register: Register) -> None:
    from afarm_plugins.best_of_n.method import BestOfN, BestOfNConfig  # the help needs the command alone

    register(
        "best_of_n",
        BestOfN,
        config=BestOfNConfig,
        summary="the best of n samples by the reward model; trains nothing",
    )


@hookimpl
def register_commands(app: typer.Typer) -> None:
    from afarm_plugins.best_of_n.command import add_commands

    add_commands(app)
