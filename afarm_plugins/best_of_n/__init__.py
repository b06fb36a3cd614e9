"""Best-of-n: sample n times, keep what the reward model likes best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afarm import Config, Register, hookimpl, setting

if TYPE_CHECKING:
    import typer


class BestOfNConfig(Config):
    """Best-of-n sampling. The paper reports n up to 1024 and an optimum near 16 (section 4)."""

    n: int = setting(16, "samples per instruction, of which the one with the highest reward is kept", ge=1)
    temperature: float = setting(1.0, "temperature of those samples, also where evaluation asks for another", gt=0)
    keep_scores: bool = setting(
        False, "keep with each output the rewards of all n samples, and the winner of every smaller n"
    )


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "best_of_n",
        "afarm_plugins.best_of_n.best_of_n:BestOfN",
        config=BestOfNConfig,
        summary="the best of n samples by the reward model; trains nothing",
    )


@hookimpl
def register_commands(app: typer.Typer) -> None:
    from afarm_plugins.best_of_n.command import add_to

    add_to(app)
