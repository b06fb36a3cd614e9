"""Evaluators: from outputs and judgements to numbers."""

from afarm.hookspecs import Register, hookimpl


@hookimpl
def register_evaluators(register: Register) -> None:
    """The win rate over the reference, and the mean reward."""
    register(
        "win_rate",
        "afarm_plugins.evaluators.win_rate:WinRate",
        summary="percent of comparisons won, draws as half, with its standard error",
    )
    register(
        "reward",
        "afarm_plugins.evaluators.reward:MeanReward",
        summary="mean reward-model score of the outputs, and the paired difference from the reference",
    )
