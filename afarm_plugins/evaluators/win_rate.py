"""The win rate over a reference (paper, section 3.3), as AlpacaEval counts it."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from afarm.errors import DataError
from afarm.interfaces import EvaluationInputs, Evaluator
from afarm.records import Evaluation, JudgedPair, Output


class WinRate(Evaluator):
    """100 × the mean of p2 over the judged pairs, draws as one half; standard error 100 × s / √n with n − 1 in s.

    Unparsed and refused pairs are counted and left out of n, never taken for losses: `coverage` is what is left.
    `n_identical` of the draws are identical outputs, which nobody judged. Lengths are mean characters.
    """

    needs = frozenset({"judgements"})

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raises `DataError` where nothing was judged, or judgements and outputs do not belong together."""
        judged = list(inputs.judgements)
        if len(judged) != len(inputs.outputs):
            raise DataError(f"{inputs.system}: {len(judged)} judgements for {len(inputs.outputs)} outputs")
        for number, (row, output) in enumerate(zip(judged, inputs.outputs, strict=True)):
            if row.pair.output_2 != output.output or row.pair.instruction.id != output.instruction.id:
                raise DataError(f"{inputs.system}: judgement {number} is not about output {number}")
        wins = [value for row in judged if (value := win(row)) is not None]
        outcomes = [row.preference.outcome for row in judged]
        if not wins:
            found = ", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(outcomes).items()))
            raise DataError(f"{inputs.system}: none of {len(judged)} pairs has a usable judgement ({found})")
        n = len(wins)
        return Evaluation(
            "win_rate",
            inputs.system,
            {
                "win_rate": 100 * statistics.fmean(wins),
                "standard_error": 100 * statistics.stdev(wins) / math.sqrt(n) if n > 1 else None,
                "n_wins": sum(w > 0.5 for w in wins),
                "n_wins_base": sum(w < 0.5 for w in wins),
                "n_draws": sum(w == 0.5 for w in wins),
                "n_identical": sum(row.pair.identical for row in judged),
                "n_unparsed": outcomes.count("unparsed"),
                "n_refused": outcomes.count("refused"),
                "n_total": n,
                "coverage": n / len(judged),
                "avg_length": mean_length(inputs.outputs),
                "avg_length_reference": statistics.fmean(len(row.pair.output_1) for row in judged),
            },
        )


def win(row: JudgedPair) -> float | None:
    """How much of a win `output_2` has: p2, one half for a draw, None without an answer."""
    return 0.5 if row.preference.outcome == "draw" else row.p2


def mean_length(outputs: Sequence[Output]) -> float:
    """Mean characters of the outputs."""
    return statistics.fmean(len(row.output) for row in outputs)
