"""Which judged pairs a method can learn from, and how many it cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from afarm.core.errors import DataError
from afarm.core.records import JudgedPair


def usable_pairs(
    preferences: Sequence[JudgedPair], usable: Callable[[JudgedPair], object], learner: str
) -> tuple[list[JudgedPair], dict[str, float]]:
    """(the pairs for which `usable` is true, how many there were of each outcome and how many are left out).

    The counts are metrics: `pairs_decided`, `pairs_draw` …, `pairs_left_out`. Raises `DataError`, in which `learner`
    names who needs them, where no pair is left.
    """
    outcomes = Counter(judged.preference.outcome for judged in preferences)
    found = [judged for judged in preferences if usable(judged)]
    if not found:
        seen = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items()) or "no preferences at all"
        raise DataError(
            f"{learner} has nothing to learn from: {seen}. "
            "Check the annotator's answers, or choose another with --annotator"
        )
    counts = {f"pairs_{outcome}": float(n) for outcome, n in sorted(outcomes.items())}
    return found, {**counts, "pairs_left_out": float(len(preferences) - len(found))}
