"""A second reading of an evaluation by a fitted judge: the evaluator `fitted:DIR`."""

from __future__ import annotations

import statistics
from pathlib import Path

from afarm import DataError, Evaluation, EvaluationInputs, Evaluator, match_judgements, standard_error
from afarm_plugins.fitted_judges.utility import SHIPPED, FittedPart, logistic

NO_SECOND = "the judge itself, by its probabilities instead of drawn verdicts, no second reading: quote the win rate"


class SecondReading(FittedPart, Evaluator):
    """The win rate that a fitted judge expects of the same pairs, beside the run's own judge.

    A gain that both see is more than the taste of the one that was trained on. Each pair counts with the fitted
    probability, not with a draw. Errors are s / √n with n − 1 in s, clustered by instruction. `fitted_difference` is
    the mean difference of utilities, in log-odds; `agreement` the percent of pairs with a better output by the run's
    judge that this one orders alike. `fitted_warning` says so if the run's judge is this one. Each pair has a row:
    `instruction` and `fitted_win_rate`.
    """

    needs = frozenset({"judgements"})

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raise `DataError` if there is nothing to read, or if judgements and outputs do not belong together."""
        pairs = [row.pair for row in match_judgements(inputs)]
        if not pairs:
            raise DataError(f"{inputs.system}: there are no pairs to read")
        canonical = self.utility.differences(pairs)
        gaps = [gap if pair.is_canonical else -gap for pair, gap in zip(pairs, canonical, strict=True)]
        wins = [logistic(gap) for gap in gaps]
        decided = [(row.win, gap) for row, gap in zip(inputs.judgements, gaps, strict=True) if gap]
        alike = [(win > 0.5) == (gap > 0) for win, gap in decided if win is not None and win != 0.5]
        asked = [pair.instruction.id for pair in pairs]
        judges = {
            row.preference.judge or row.annotator for row in inputs.judgements if row.preference.source == "judge"
        }
        error = standard_error(wins, asked)
        return Evaluation(
            "fitted",
            inputs.system,
            {
                "fitted_win_rate": 100 * statistics.fmean(wins),
                "fitted_standard_error": None if error is None else 100 * error,
                "fitted_difference": statistics.fmean(gaps),
                "fitted_difference_se": standard_error(gaps, asked),
                "agreement": 100 * statistics.fmean(alike) if alike else None,
                "n_total": len(wins),
                "judge": f"{self.utility.name}@{self.identity}",
                **({"fitted_warning": NO_SECOND} if judges and all(map(self._is_this, judges)) else {}),
            },
            tuple({"instruction": name, "fitted_win_rate": 100 * win} for name, win in zip(asked, wins, strict=True)),
        )

    def _is_this(self, judge: str) -> bool:
        """Tell if a judge's identity, or the name of an annotator that asks none, is of the same utility."""
        name, _, spec = judge.partition(":")
        same = Path(spec or SHIPPED).expanduser().resolve() == self.utility.directory.resolve()
        return name == "fitted" and (same or spec == f"{self.utility.name}@{self.identity}")
