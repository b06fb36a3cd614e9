"""The mean rating of a system, where an annotator rated each output alone (`ratings`, `criteria`)."""

from __future__ import annotations

import math
import statistics

from afarm.errors import DataError
from afarm.interfaces import EvaluationInputs, Evaluator
from afarm.records import Evaluation
from afarm_plugins.evaluators.win_rate import matched


class Pointwise(Evaluator):
    """The mean rating of the outputs and of the reference's, on the annotator's scale, and their paired difference.

    Errors are s / √n with n − 1 in s. Identical outputs, which nobody rates, are a difference of 0 and count in it only
    (`n_identical`); pairs in which an output has no rating are left out and counted (`n_unrated`).
    """

    needs = frozenset({"judgements"})

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raises `DataError` where no pair has ratings, or judgements and outputs do not belong together."""
        rated: list[tuple[float, float]] = []
        identical = unrated = 0
        for row in matched(inputs):
            if row.preference.scores is not None:
                rated.append(row.preference.scores)
            elif row.pair.identical:
                identical += 1
            else:
                unrated += 1
        if not rated:
            judged = identical + unrated
            raise DataError(
                f"{inputs.system}: none of {judged} judgements has ratings (score_1, score_2): they come from an "
                "annotator that rates each output alone; judge with --annotator ratings or --annotator criteria"
            )
        gaps = [mine - theirs for theirs, mine in rated] + [0.0] * identical
        return Evaluation(
            "pointwise",
            inputs.system,
            {
                "rating": statistics.fmean(mine for _, mine in rated),
                "rating_se": _error([mine for _, mine in rated]),
                "rating_reference": statistics.fmean(theirs for theirs, _ in rated),
                "rating_difference": statistics.fmean(gaps),
                "rating_difference_se": _error(gaps),
                "n_total": len(gaps),
                "n_identical": identical,
                "n_unrated": unrated,
            },
        )


def _error(values: list[float]) -> float | None:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
