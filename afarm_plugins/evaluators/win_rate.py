"""The win rate over a reference (paper, section 3.3), as AlpacaEval counts it.

Judgements are read once, as they come: memory holds numbers, and no outputs.
"""

from __future__ import annotations

import statistics
from array import array
from collections import Counter

from afarm import DataError, Evaluation, EvaluationInputs, Evaluator, Row, match_judgements, standard_error


class Tally:
    """A tally of usable judgements: the win and the number of the instruction of each."""

    def __init__(self) -> None:
        self.wins, self.asked = array("d"), array("q")

    def add(self, win: float, instruction: int) -> None:
        self.wins.append(win)
        self.asked.append(instruction)

    @property
    def figures(self) -> dict[str, float | None]:
        error = standard_error(self.wins, self.asked)
        return {
            "win_rate": 100 * statistics.fmean(self.wins) if self.wins else None,
            "standard_error": None if error is None else 100 * error,
            "n_total": len(self.wins),
        }


class WinRate(Evaluator):
    """The win rate: 100 × the mean of p2 over the judged pairs, draws as one half.

    Its standard error is 100 × s / √n with n − 1 in s, clustered by instruction if there are several labels of one
    (`n_instructions` counts them).

    Unparsed and refused pairs are counted and left out of n, never taken for losses: `coverage` is what is left.
    `n_identical` of the draws are identical outputs, which nobody judged. Lengths are mean characters, where there is
    an output. `discrete_win_rate` takes each preference for a whole win or loss, and an exactly even one for a draw.
    Where data sets are named there is a row for each: `dataset`, `win_rate`, `standard_error` and `n_total`.
    """

    needs = frozenset({"judgements"})

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raise `DataError` if nothing was judged, or if judgements and outputs do not belong together."""
        whole, by_dataset = Tally(), dict[str, Tally]()
        numbers: dict[int, int] = {}
        outcomes: Counter[str] = Counter()
        identical = answered = mine = theirs = 0
        for row in match_judgements(inputs):
            pair, win = row.pair, row.win
            outcomes[row.preference.outcome] += 1
            part = by_dataset.setdefault(pair.instruction.dataset, Tally())
            if not row.unanswered:
                answered, mine, theirs = answered + 1, mine + len(pair.output_2), theirs + len(pair.output_1)
            if win is not None:
                identical += pair.identical and win == 0.5
                # A hash stands for its text: within one process that is enough. What the data set is called tells no
                # instructions apart, as in their ids.
                asked = pair.instruction
                key = hash((asked.instruction, asked.input, asked.messages))
                instruction = numbers.setdefault(key, len(numbers))
                whole.add(win, instruction)
                part.add(win, instruction)
        wins, judged = whole.wins, outcomes.total()
        if not wins:
            found = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            raise DataError(f"{inputs.system}: none of {judged} pairs has a usable judgement ({found})")
        named = sorted(by_dataset) if any(by_dataset) else []
        rows: list[Row] = [{"dataset": name, **by_dataset[name].figures} for name in named]
        return Evaluation(
            "win_rate",
            inputs.system,
            {
                **whole.figures,
                "n_instructions": len(numbers),
                "discrete_win_rate": 100 * statistics.fmean((w > 0.5) + 0.5 * (w == 0.5) for w in wins),
                "n_wins": sum(w > 0.5 for w in wins),
                "n_wins_base": sum(w < 0.5 for w in wins),
                "n_draws": sum(w == 0.5 for w in wins),
                "n_identical": identical,
                "n_unparsed": outcomes["unparsed"],
                "n_refused": outcomes["refused"],
                "coverage": len(wins) / judged,
                "avg_length": mine / answered if answered else None,
                "avg_length_reference": theirs / answered if answered else None,
            },
            tuple(rows),
        )
