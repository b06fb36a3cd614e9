"""Controls for length: the annotator `longer` and the evaluator `length_balance`."""

from __future__ import annotations

from afarm import Config, Register, hookimpl, setting

MARGIN = 30
"""Characters of difference that AlpacaFarm still calls equally long (Dubois et al. 2023)."""


class LengthConfig(Config):
    """The margin beyond which an output counts as longer."""

    margin: int = setting(MARGIN, "outputs at most this many characters apart count as equally long", ge=0)


@hookimpl
def register_annotators(register: Register) -> None:
    register(
        "longer",
        "afarm_heuristics.length:Longer",
        config=LengthConfig,
        defaults={"margin": 0},
        summary="prefers the longer output: the control for length bias",
    )


@hookimpl
def register_evaluators(register: Register) -> None:
    register(
        "length_balance",
        "afarm_heuristics.length:LengthBalance",
        config=LengthConfig,
        summary="the win rate where outputs are longer, about as long and shorter than the reference's",
    )
