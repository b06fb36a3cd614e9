"""Evaluators: from outputs and judgements to numbers. See docs/guides/evaluators.md."""

from typing import Any

from afarm import Config, Register, hookimpl, setting


class LengthControlledConfig(Config):
    """The win rate as it would be if both outputs were equally long, after AlpacaEval 2.

    The three files are AlpacaEval's own, or yours of that kind; without them the model is fitted and the result says
    what it lacks.
    """

    weights: str = setting(
        "", "a CSV file of fitted coefficients by model: systems that are in it are predicted, not fitted"
    )
    difficulty: str = setting("", "a file of instructions with the difficulty of each (.json, .jsonl, .csv, also .gz)")
    gamed: str = setting("", "a CSV file of regularising rows: the reference's outputs made short or long on purpose")
    gamed_weight: float = setting(0.2, "what all versions of an instruction in `gamed` count together", ge=0)

    def result_fields(self) -> dict[str, Any]:
        """The contents of the files count, not where they lie."""
        from afarm_plugins.evaluators.data_files import digest_file

        files = {name: digest_file(getattr(self, name)) for name in ("weights", "difficulty", "gamed")}
        return {**super().result_fields(), **files}


class BradleyTerryConfig(Config):
    """Strengths of all systems of a board, fitted to their judgements at once."""

    reference: str = setting(
        "", "the system that has strength 0; unless given, the one that most judgements have as their first"
    )
    prior: float = setting(
        1.0, "draws added to pairs of systems where strengths would not be finite: one won all comparisons, say", gt=0
    )


class EloConfig(Config):
    """Online Elo ratings of all systems of a board, as the mean over random orders of their judgements."""

    reference: str = setting(
        "", "the system that is put at 1000; unless given, the one that most judgements have as their first"
    )
    k: float = setting(8.0, "the most points that one judgement moves a system by", gt=0)
    orders: int = setting(100, "random orders that the rating is the mean of, and draws for its interval", ge=1)
    seed: int = setting(0, "the seed of orders and draws", ge=0)


@hookimpl
def register_evaluators(register: Register) -> None:
    """Win rates (plain, length-controlled, by people), strengths on a board, mean reward and rating."""
    register(
        "win_rate",
        "afarm_plugins.evaluators.win_rate:WinRate",
        summary="percent of comparisons won, draws as half, with its standard error",
    )
    register(
        "length_controlled",
        "afarm_plugins.evaluators.length_controlled:LengthControlled",
        config=LengthControlledConfig,
        summary="the win rate if both outputs were equally long, after AlpacaEval 2",
    )
    register(
        "bradley_terry",
        "afarm_plugins.evaluators.bradley_terry:BradleyTerry",
        config=BradleyTerryConfig,
        summary="strengths of all systems of a board, with intervals, also on Elo's scale",
    )
    register(
        "elo",
        "afarm_plugins.evaluators.elo:Elo",
        config=EloConfig,
        summary="online Elo ratings of all systems of a board, the mean over random orders",
    )
    register(
        "prediction_powered",
        "afarm_plugins.evaluators.prediction_powered:PredictionPowered",
        summary="the win rate by people, from labels of theirs on some instructions and the judge's on more",
    )
    register(
        "pointwise",
        "afarm_plugins.evaluators.pointwise:Pointwise",
        summary="mean rating where an annotator rated each output alone, and the paired difference from the reference",
    )
    register(
        "reward",
        "afarm_plugins.evaluators.reward:MeanReward",
        summary="mean reward-model score of the outputs, and the paired difference from the reference",
    )
