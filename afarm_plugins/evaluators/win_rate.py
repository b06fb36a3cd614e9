"""The win rate over a reference (paper, section 3.3), as AlpacaEval counts it."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence

from afarm.errors import DataError
from afarm.interfaces import EvaluationInputs, Evaluator
from afarm.records import Evaluation, Instruction, JudgedPair, Output, Row


class WinRate(Evaluator):
    """100 × the mean of p2 over the judged pairs, draws as one half; standard error 100 × s / √n with n − 1 in s, and
    clustered by instruction where there are several labels of one (`n_instructions` counts them).

    Unparsed and refused pairs are counted and left out of n, never taken for losses: `coverage` is what is left.
    `n_identical` of the draws are identical outputs, which nobody judged. Lengths are mean characters.
    `discrete_win_rate` takes each preference for a whole win or loss, and an exactly even one for a draw. Where data
    sets are named there is a row for each: `dataset`, `win_rate`, `standard_error` and `n_total`.
    """

    needs = frozenset({"judgements"})

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raises `DataError` where nothing was judged, or judgements and outputs do not belong together."""
        judged = list(inputs.judgements)
        require_matching(inputs)
        wins = [value for row in judged if (value := row.win) is not None]
        asked = [row.pair.instruction for row in judged if row.win is not None]
        outcomes = [row.preference.outcome for row in judged]
        if not wins:
            found = ", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(outcomes).items()))
            raise DataError(f"{inputs.system}: none of {len(judged)} pairs has a usable judgement ({found})")
        return Evaluation(
            "win_rate",
            inputs.system,
            {
                **_figures(wins, asked),
                "n_instructions": len(set(asked)),
                "discrete_win_rate": 100 * statistics.fmean((w > 0.5) + 0.5 * (w == 0.5) for w in wins),
                "n_wins": sum(w > 0.5 for w in wins),
                "n_wins_base": sum(w < 0.5 for w in wins),
                "n_draws": sum(w == 0.5 for w in wins),
                "n_identical": sum(row.pair.identical and row.win == 0.5 for row in judged),
                "n_unparsed": outcomes.count("unparsed"),
                "n_refused": outcomes.count("refused"),
                "coverage": len(wins) / len(judged),
                "avg_length": mean_length(inputs.outputs),
                "avg_length_reference": statistics.fmean(len(row.pair.output_1) for row in judged),
            },
            _by_dataset(judged),
        )


def _figures(wins: Sequence[float], asked: Sequence[Instruction]) -> dict[str, float | None]:
    """Of the win for each label, and its instruction."""
    return {
        "win_rate": 100 * statistics.fmean(wins) if wins else None,
        "standard_error": _error(wins, asked),
        "n_total": len(wins),
    }


def _error(wins: Sequence[float], asked: Sequence[Instruction]) -> float | None:
    """Over instructions: several labels of one, by annotators or seeds, are not independent (Liang and Zeger 1986)."""
    n, clusters = len(wins), len(set(asked))
    if clusters < 2:
        return None
    if clusters == n:
        return 100 * statistics.stdev(wins) / math.sqrt(n)
    mean = statistics.fmean(wins)
    residuals: dict[Instruction, float] = defaultdict(float)
    for win, instruction in zip(wins, asked, strict=True):
        residuals[instruction] += win - mean
    return 100 * math.sqrt(sum(r**2 for r in residuals.values()) * clusters / (clusters - 1)) / n


def _by_dataset(judged: Sequence[JudgedPair]) -> tuple[Row, ...]:
    """The figures of each data set, by name; none where no data set is named."""
    rows: dict[str, list[tuple[float, Instruction]]] = {}
    for row in judged:
        found = rows.setdefault(row.pair.instruction.dataset, [])
        if row.win is not None:
            found.append((row.win, row.pair.instruction))
    if not any(rows):
        return ()
    return tuple(
        {"dataset": name, **_figures([win for win, _ in rows[name]], [asked for _, asked in rows[name]])}
        for name in sorted(rows)
    )


def require_matching(inputs: EvaluationInputs) -> None:
    """Raises `DataError` naming the row where judgements are not about the outputs, row by row."""
    if len(inputs.judgements) != len(inputs.outputs):
        raise DataError(f"{inputs.system}: {len(inputs.judgements)} judgements for {len(inputs.outputs)} outputs")
    for number, (row, output) in enumerate(zip(inputs.judgements, inputs.outputs, strict=True)):
        here, there = row.pair.instruction, output.instruction
        # Those that are equal throughout have equal ids, which take much longer to make.
        if row.pair.output_2 != output.output or (here != there and here.id != there.id):
            raise DataError(f"{inputs.system}: judgement {number} is not about output {number}")


def mean_length(outputs: Sequence[Output]) -> float:
    """Mean characters of the outputs."""
    return statistics.fmean(len(row.output) for row in outputs)
