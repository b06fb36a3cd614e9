"""Statistics of evaluations on numpy arrays: intervals, tests, rank intervals, stopping rules.

Nothing here knows of records, files or judges. One value stands for one instruction, which is the sampling unit:
several labels of an instruction (annotators, seeds, samples) are its cluster. Absent values are NaN. Every draw comes
from a seed, so that equal input gives equal results.
"""

from __future__ import annotations

from afarm.core.errors import PluginError

try:
    import numpy  # noqa: F401
    import scipy  # noqa: F401
except ModuleNotFoundError as error:
    raise PluginError(f"intervals and tests need {error.name!r}: pip install 'afarm[evaluation]'") from error

from afarm.evaluation.statistics.correlation import Correlation, correlation
from afarm.evaluation.statistics.equal_means import equal_means
from afarm.evaluation.statistics.intervals import (
    LEVEL,
    IntervalEstimate,
    bootstrap,
    instructions_needed,
    mean,
    minimum_detectable_difference,
    win_rate,
)
from afarm.evaluation.statistics.paired import Difference, holm, paired_difference, paired_differences
from afarm.evaluation.statistics.prediction_powered import PredictionPowered, prediction_powered
from afarm.evaluation.statistics.rank_intervals import Rank, rank_intervals
from afarm.evaluation.statistics.sequential import Decision, confidence_sequence, decide, decision_times

__all__ = [
    "LEVEL",
    "Correlation",
    "Decision",
    "Difference",
    "IntervalEstimate",
    "PredictionPowered",
    "Rank",
    "bootstrap",
    "confidence_sequence",
    "correlation",
    "decide",
    "decision_times",
    "equal_means",
    "holm",
    "instructions_needed",
    "mean",
    "minimum_detectable_difference",
    "paired_difference",
    "paired_differences",
    "prediction_powered",
    "rank_intervals",
    "win_rate",
]
