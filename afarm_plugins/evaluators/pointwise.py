"""The mean rating of a system, if an annotator rated each output alone (`ratings`, `criteria`)."""

from __future__ import annotations

import statistics

from afarm import DataError, Evaluation, EvaluationInputs, Evaluator, match_judgements, standard_error


class Pointwise(Evaluator):
    """The mean ratings of outputs and reference, on the annotator's scale, and their paired difference.

    Errors are s / √n with n − 1 in s, clustered by instruction if there are several labels of one. Identical
    outputs, which nobody rates, are a difference of 0 and count in it only (`n_identical`); pairs in which an output
    has no rating are left out and counted (`n_unrated`).
    """

    needs = frozenset({"judgements", "ratings"})

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raise `DataError` if no pair has ratings, or if judgements and outputs do not belong together."""
        rated: list[tuple[float, float]] = []
        tasks: list[str] = []
        same: list[str] = []
        unrated = 0
        for row in match_judgements(inputs):
            if row.preference.scores is not None:
                rated.append(row.preference.scores)
                tasks.append(row.pair.instruction.id)
            elif row.pair.identical:
                same.append(row.pair.instruction.id)
            else:
                unrated += 1
        if not rated:
            judged = len(same) + unrated
            raise DataError(
                f"{inputs.system}: none of {judged} judgements has ratings (score_1, score_2): they come from an "
                "annotator that rates each output alone; judge with --annotator ratings or --annotator criteria"
            )
        gaps = [mine - theirs for theirs, mine in rated] + [0.0] * len(same)
        return Evaluation(
            "pointwise",
            inputs.system,
            {
                "rating": statistics.fmean(mine for _, mine in rated),
                "rating_se": standard_error([mine for _, mine in rated], tasks),
                "rating_reference": statistics.fmean(theirs for theirs, _ in rated),
                "rating_difference": statistics.fmean(gaps),
                "rating_difference_se": standard_error(gaps, tasks + same),
                "n_total": len(gaps),
                "n_identical": len(same),
                "n_unrated": unrated,
            },
        )
