"""Best-of-n: sample n times, and keep the sample with the highest reward."""

from __future__ import annotations

from typing import Any

from afarm import Register, hookimpl


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
def register_commands(app: Any) -> None:
    from afarm_plugins.best_of_n.command import add_commands

    add_commands(app)
