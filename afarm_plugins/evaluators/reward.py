"""The mean reward of a system: its training objective, which is not the judge's criterion."""

from __future__ import annotations

import statistics

from afarm import DataError, Evaluation, EvaluationInputs, Evaluator, standard_error


class MeanReward(Evaluator):
    """The mean reward-model scores of outputs and reference, and their paired difference.

    Its rows are the scores of each output and of the reference's to the same instruction, in the order of the outputs.
    """

    needs = frozenset({"reward_model"})

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raise `DataError` if there is not one score per output, or if an output has no reference."""
        scores = [s.value for s in inputs.scores]
        if not scores or len(scores) != len(inputs.outputs):
            raise DataError(f"{inputs.system}: {len(scores)} reward scores for {len(inputs.outputs)} outputs")
        metrics: dict[str, float | int | str | None] = {"reward": statistics.fmean(scores)}
        if len(inputs.reference_scores) != len(inputs.reference):
            raise DataError(
                f"{inputs.system}: {len(inputs.reference_scores)} reward scores for {len(inputs.reference)} references"
            )
        rows = [{"reward": score} for score in scores]
        reference = {
            row.instruction.id: score.value
            for row, score in zip(inputs.reference, inputs.reference_scores, strict=True)
        }
        if reference:
            if missing := [row for row in inputs.outputs if row.instruction.id not in reference]:
                asked = missing[0].instruction.instruction[:60]
                raise DataError(f"{inputs.system}: {len(missing)} outputs have no reference, such as {asked!r}")
            theirs = [reference[row.instruction.id] for row in inputs.outputs]
            gains = [ours - other for ours, other in zip(scores, theirs, strict=True)]
            rows = [{**row, "reward_reference": other} for row, other in zip(rows, theirs, strict=True)]
            metrics |= {
                "reward_reference": statistics.fmean(reference.values()),
                "reward_difference": statistics.fmean(gains),
                "reward_difference_se": standard_error(gains),
            }
        return Evaluation("reward", inputs.system, metrics, tuple(rows))
