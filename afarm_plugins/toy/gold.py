"""The gold reward as a reward model (the judge's utility, an upper bound) and as an evaluator."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from afarm import (
    DataError,
    Evaluation,
    EvaluationInputs,
    Evaluator,
    Instruction,
    Output,
    RewardModel,
    Row,
    Score,
    standard_error,
)
from afarm_plugins.toy.world import gold


class GoldReward(RewardModel):
    """The true reward of the toy world. Raises `DataError` for an instruction that is not of it."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(gold(i, output)) for i, output in zip(instructions, outputs, strict=True)]


class GoldEvaluator(Evaluator):
    """Mean gold reward of a system and its reference, their paired difference and the win rate.

    Standard errors are over instructions (sample standard deviation / sqrt(n)). In `gold_win_rate` an equal reward
    counts as half a win; in percent, like the judges' win rates.
    """

    def check(self, instructions: Sequence[Instruction]) -> Sequence[str]:
        try:
            for instruction in instructions:
                gold(instruction, "")
        except DataError:
            return [
                f"the toy world does not know the instruction {instruction.instruction[:60]!r}, and only its own have "
                "a gold reward: leave it out, with --set evaluate.evaluators=[win_rate], say"
            ]
        return ()

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Compute metrics. Raises `DataError` if there are no outputs, or a reference is of another row."""
        if not inputs.outputs:
            raise DataError(f"evaluator 'gold': there are no outputs of {inputs.system!r} to evaluate")
        ours = [gold(row.instruction, row.output) for row in inputs.outputs]
        mean, error = _mean_and_error(ours)
        metrics: dict[str, float | int | str | None] = {"n": len(ours), "gold": mean, "gold_se": error}
        rows: list[Row] = [{"gold": value} for value in ours]
        if inputs.reference:
            _check_matching(inputs.outputs, inputs.reference)
            theirs = [gold(row.instruction, row.output) for row in inputs.reference]
            differences = [a - b for a, b in zip(ours, theirs, strict=True)]
            wins = [50.0 * (1 + (d > 0) - (d < 0)) for d in differences]
            metrics["gold_reference"] = statistics.fmean(theirs)
            metrics["gold_difference"], metrics["gold_difference_se"] = _mean_and_error(differences)
            metrics["gold_win_rate"], metrics["gold_win_rate_se"] = _mean_and_error(wins)
            rows = [{"gold": a, "gold_reference": b} for a, b in zip(ours, theirs, strict=True)]
        return Evaluation("gold", inputs.system, metrics, tuple(rows))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    return statistics.fmean(values), standard_error(values)


def _check_matching(outputs: Sequence[Output], reference: Sequence[Output]) -> None:
    if len(outputs) != len(reference):
        raise DataError(f"evaluator 'gold': {len(outputs)} outputs but {len(reference)} reference outputs")
    for row, (ours, theirs) in enumerate(zip(outputs, reference, strict=True), start=1):
        if ours.instruction.id != theirs.instruction.id:
            raise DataError(
                f"evaluator 'gold': row {row}: the reference answers {theirs.instruction.instruction[:60]!r}, the "
                f"output {ours.instruction.instruction[:60]!r}; both must be for the same instructions in one order"
            )
