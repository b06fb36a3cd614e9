"""AlpacaEval's evaluator directories as annotators: see docs/guides/alpaca-eval.md."""

from __future__ import annotations

from typing import Literal

from afarm import Register, hookimpl, setting
from afarm.judging import JudgingConfig


class AlpacaEvalConfig(JudgingConfig):
    """Draws and votes of an evaluator directory. Its prompts and parsers are the directory's."""

    draws: Literal["alpaca_eval", "pair"] = setting(
        "alpaca_eval",
        "who judges and which output is shown first: alpaca_eval draws as that package does, from the instruction "
        "and `seed`, so all pairs of an instruction share their draw; pair draws for each pair apart, from the run's "
        "seed, and swapping the outputs mirrors the label",
    )
    seed: int = setting(0, "the seed of AlpacaEval's draws (0 is that package's own)", ge=0)
    p_label_flip: float = setting(
        0.0,
        "share of labels flipped by AlpacaEval's own draws, which also hang on the instruction alone; apart from "
        "afarm's `label_noise`",
        ge=0,
        le=0.5,
    )


@hookimpl
def register_annotators(register: Register) -> None:
    register(
        "alpaca_eval",
        "afarm_plugins.alpaca_eval.annotator:AlpacaEvalAnnotator",
        config=AlpacaEvalConfig,
        summary="an evaluator directory of AlpacaEval, by its path, or by name where that package is installed",
        spec="DIRECTORY",
    )
