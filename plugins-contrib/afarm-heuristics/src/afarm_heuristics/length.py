"""An annotator that only looks at length, and an evaluator of how much a judge does."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from afarm import (
    AnnotateContext,
    Annotator,
    DataError,
    Evaluation,
    EvaluationInputs,
    Evaluator,
    Pair,
    Preference,
    match_judgements,
)
from afarm_heuristics import LengthConfig


class Longer(Annotator):
    """Prefers the output with more characters; a draw if they are within the margin. Asks no judge."""

    def __init__(self, config: LengthConfig):
        self.config = config

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        return [self._prefer(pair) for pair in pairs]

    def _prefer(self, pair: Pair) -> Preference:
        difference = len(pair.output_2) - len(pair.output_1)
        if abs(difference) <= self.config.margin:
            return Preference(pair.id, None, "draw")
        return Preference(pair.id, float(difference > 0))


class LengthBalance(Evaluator):
    """Win rates (percent, draws as half) and counts by which output is longer, beyond the margin.

    `longer_preferred` is the percentage of the unequal pairs in which the judge preferred the longer output; None
    if there is no such pair. Pairs without a usable judgement are left out.
    """

    needs = frozenset({"judgements"})

    def __init__(self, config: LengthConfig):
        self.config = config

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Count wins by length. Raises `DataError` unless there is one judgement per output."""
        if not inputs.judgements:
            raise DataError(f"{inputs.system}: nothing was judged")
        wins: dict[str, list[float]] = {"longer": [], "similar": [], "shorter": []}
        for judged in match_judgements(inputs):
            if (win := judged.win) is not None:
                wins[self._compare(judged.pair)].append(win)
        metrics: dict[str, float | int | str | None] = {}
        for name, values in wins.items():
            metrics[f"win_rate_{name}"] = 100 * fmean(values) if values else None
            metrics[f"n_{name}"] = len(values)
        for_longer = wins["longer"] + [1 - win for win in wins["shorter"]]
        metrics["longer_preferred"] = 100 * fmean(for_longer) if for_longer else None
        return Evaluation("length_balance", inputs.system, metrics)

    def _compare(self, pair: Pair) -> str:
        difference = len(pair.output_2) - len(pair.output_1)
        if abs(difference) <= self.config.margin:
            return "similar"
        return "longer" if difference > 0 else "shorter"
