"""The win rate by people, from many simulated labels and a few of theirs.

The simulated labels of all instructions give a mean that is precise and biased; the instructions that people labelled
too tell how biased. Simulated mean plus correction is unbiased whatever the judge is like, and the better the judge
follows people, the narrower. How much of the judge to use (`trust`) is fitted, so that a useless one costs next to
nothing.

Sources: Angelopoulos et al. 2023, "Prediction-powered inference"; Angelopoulos, Duchi and Zrnic 2023, "PPI++" (the
fitted weight), by the estimator of their package ppi-python.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from afarm import (
    DataError,
    Evaluation,
    EvaluationInputs,
    Evaluator,
    Instruction,
    JudgedPair,
    PluginError,
    match_judgements,
)

try:
    import numpy as np
    from numpy.typing import ArrayLike
    from scipy.special import ndtri, stdtrit
except ModuleNotFoundError as lacking:
    raise PluginError(f"win rates by people need {lacking.name!r}: pip install 'afarm[evaluation]'") from lacking

QUARTILE = float(ndtri(0.75))
FEWEST = 10
"""Human-labelled instructions from which on their spread can be estimated."""
ROUNDING = 1e-12
"""The range of wins below which they are equal."""


class PredictionPowered(Evaluator):
    """The win rate by people in percent, with its error and 95% interval.

    Beside it are those of either kind of labels alone, `people` and `judge`.
    `n_human` instructions have both kinds, `n_simulated` only simulated ones. `trust`, from 0 to 1, is the weight of
    the simulated labels. `effective` is the number of human-labelled instructions that alone would be as precise, and
    `saved` the number of them that need not be labelled. Several labels of an instruction are averaged first.
    """

    needs = frozenset({"judgements", "human"})

    def check(self, instructions: Sequence[Instruction]) -> Sequence[str]:
        return ["a run has no labels of people: afarm evaluate FILE --annotations --humans FILE"]

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raise `DataError` if fewer than 10 instructions have both, or judgements and outputs do not match."""
        judge, people = _mean_wins(match_judgements(inputs)), _mean_wins(inputs.human)
        found = asdict(prediction_powered([people.get(task, math.nan) for task in judge], list(judge.values())))
        names = {"combined": "prediction_powered", "human": "people", "simulated": "judge"}
        suffixes = {"value": "", "error": "_se", "low": "_low", "high": "_high"}
        kinds = {name: found.pop(kind) for kind, name in names.items()}
        metrics = {name + end: 100 * mean[figure] for name, mean in kinds.items() for figure, end in suffixes.items()}
        saved = max(0, math.floor(found["effective"] - found["n_human"]))
        return Evaluation("prediction_powered", inputs.system, {**metrics, **found, "saved": saved})


def _mean_wins(judged: Iterable[JudgedPair]) -> dict[str, float]:
    """Average the wins of output_2 by the instruction's id."""
    wins: dict[str, list[float]] = defaultdict(list)
    for row in judged:
        if row.win is not None:
            wins[row.pair.instruction.id].append(row.win)
    return {task: fmean(values) for task, values in wins.items()}


@dataclass(frozen=True, slots=True)
class MeanWin:
    """A mean of wins between 0 and 1, with its standard `error` and its 95% interval."""

    value: float
    error: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CombinedWinRate:
    """A prediction-powered estimate to quote, `combined`; see `PredictionPowered`."""

    combined: MeanWin
    human: MeanWin
    simulated: MeanWin
    n_human: int
    n_simulated: int
    trust: float
    effective: float


def plus_four_mean(wins: Any) -> MeanWin:
    """Average `wins` [instructions, at least 2]; its interval is t's with two won and two lost ones more.

    25 wins of 25 have an error of 0, and are yet not sure to go on.
    """
    n, added = len(wins), np.concatenate([wins, [0, 0, 1, 1]])
    half = float(stdtrit(n + 3, 0.975) * added.std(ddof=1)) / math.sqrt(n + 4)
    error = float(wins.std(ddof=1)) / math.sqrt(n) if np.ptp(wins) > ROUNDING else 0.0
    middle = float(added.mean())
    return MeanWin(float(wins.mean()), error, max(0.0, middle - half), min(1.0, middle + half))


def prediction_powered(human: ArrayLike, simulated: ArrayLike) -> CombinedWinRate:
    """Estimate the mean human label over all instructions from `human` and `simulated` [instructions].

    NaN is an absent label. The instructions that people label must be drawn at random: the hard ones alone do not tell
    how wrong the judge is on the others. The interval is t's; mean and weight have used up two of its degrees of
    freedom. If all human labels are the same, it is the `plus_four_mean` of them alone. Raises `DataError` if fewer
    than 10 instructions have both kinds of labels.
    """
    people, judge = np.asarray(human, dtype=np.float64), np.asarray(simulated, dtype=np.float64)
    has_people, has_judge = ~np.isnan(people), ~np.isnan(judge)
    both = has_people & has_judge
    rest, n = judge[~has_people & has_judge], int(both.sum())
    if n < FEWEST:
        raise DataError(
            f"{n} instructions have human and simulated labels; at least {FEWEST} are needed to say how far the "
            "simulated ones can be trusted"
        )
    alone, judged = plus_four_mean(people[both]), plus_four_mean(judge[has_judge])
    value, error, trust = _ppi(people[both], judge[both], rest) if len(rest) else (0.0, 0.0, 0.0)
    if not (error and alone.error):  # people agree throughout: the judge adds nothing, and neither is sure to go on
        return CombinedWinRate(alone, alone, judged, n, len(rest), 0.0, float(n))
    half = float(stdtrit(n - 2, 0.975)) * error
    combined = MeanWin(value, error, value - half, value + half)
    return CombinedWinRate(combined, alone, judged, n, len(rest), trust, n * (alone.error / error) ** 2)


def _ppi(y: Any, guess: Any, rest: Any) -> tuple[float, float, float]:
    """The estimate, its standard error, and the weight in [0, 1] of least variance (PPI++, section 6)."""
    try:
        with warnings.catch_warnings():  # importing it silences all warnings of the process
            import ppi_py
    except ModuleNotFoundError as lacking:
        raise PluginError(
            f"prediction-powered win rates need {lacking.name!r}: pip install 'afarm[evaluation]'"
        ) from lacking
    n, more = len(y), len(rest)
    spread = np.concatenate([guess, rest]).var(ddof=1)
    together = float(np.mean((y - y.mean()) * (guess - guess.mean())))
    trust = min(1.0, max(0.0, together / ((1 + n / more) * spread))) if spread else 0.0
    low, high = (float(end.item()) for end in ppi_py.ppi_mean_ci(y, guess, rest, alpha=0.5, lam=trust))
    # The library's interval is the normal one, and its spread divides by n: with few labels both are too small.
    error = (high - low) / 2 / QUARTILE * math.sqrt(n / (n - 2))
    return (low + high) / 2, error, float(trust)
