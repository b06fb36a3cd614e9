"""Checks of length-controlled win rates: when the estimate, or its error, is not to be trusted.

The thresholds are those at which simulated errors begin to hold; docs/notes/statistics.md has the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from afarm import standard_error
from afarm_plugins.evaluators.length_glm import FOLDS, PENALTIES, Floats, Rows, information, solve

NEEDED = 5.0
"""The `information` per coefficient from which on the error holds."""
SEEN = 5
"""Instructions on either side of equal length from which on it holds."""
RARE, RARELY = 10, 0.05
"""Instructions, and their share, below which one side of equal length is hardly seen."""
MOVED = 0.5
"""The number of errors by which the penalty may move the estimate."""
MISFIT = 0.5
"""Points between predicted and observed win rate above which coefficients were fitted to other judgements.

A fit has the two equal but for its penalty: published coefficients differ by 0.05 on their own judgements, and by 0.24
if their difficulties were shifted by missing rows.
"""
IMPOSSIBLE = 4.0
"""Standard errors of the observed win rate beyond which coefficients are not applied."""


def error_and_warnings(
    coefficients: Floats, error: float | None, rows: Rows, judged: Rows, gap: Floats, equal_length: Floats
) -> tuple[float | None, list[str]]:
    """Return the sampling error if it holds, and warnings about estimate or error, each a clause.

    Args:
        coefficients: [K], fitted to `rows`.
        error: the sampling error, a share of a win; None if unknown.
        rows: those judged, and those that regularise.
        judged: those judged alone.
        gap: [N], characters by which the reference's output is longer, of each judged row.
        equal_length: [n, K], the features that are predicted for.
    """
    free = solve(rows, PENALTIES[-1])
    if few := _few(free, judged):
        return None, [few]
    regularised, said = len(rows.share) > len(judged.share), []
    known = len(np.unique(judged.group))
    sides = [len(np.unique(judged.group[side])) for side in (gap <= 0, gap >= 0)]
    seen, longer = min(sides), "the reference's" if sides[0] < sides[1] else "the system's"
    if seen < max(RARE, RARELY * known) and not (regularised and len(free) > 2):
        where = f"all but {seen} of {known}" if seen else f"all {known}"
        said.append(f"{longer} output is longer on {where} instructions: the figure is extrapolated")
    if seen < SEEN and not regularised:
        return None, [*said, "no error holds so far out"]
    here, there = (100 * float(expit(equal_length @ found).mean()) for found in (coefficients, free))
    if error is not None and abs(here - there) > MOVED * 100 * error:
        moved = f"in this fit the penalty moves the figure from {there:.1f} to {here:.1f} %"
        said.append(f"{moved}: it pulls towards 50 %, and a fit to more instructions would resist")
    return error, said


def describe_misfit(predicted: Floats, share: Floats, tasks: Sequence[str]) -> tuple[str, bool]:
    """Describe how far coefficients are from the judgements, and return if they apply to these.

    Args:
        predicted: [N], the chance of a win at the lengths there were.
        share: [N], the system's wins, NaN without an answer.
        tasks: the N instructions.
    """
    answered = ~np.isnan(share)
    judged = [task for task, known in zip(tasks, answered, strict=True) if known]
    if not judged:
        return "", True
    error = standard_error((100 * share[answered]).tolist(), judged)
    here, there = 100 * float(predicted[answered].mean()), 100 * float(share[answered].mean())
    apart = abs(here - there)
    if apart <= MISFIT:
        return "", True
    applicable = len({*judged}) < FOLDS or error is None or apart <= IMPOSSIBLE * error
    return f"predict a win rate of {here:.1f}, and these judgements have {there:.1f}", applicable


def vanished(coefficients: Floats, share: Floats) -> str:
    """State that the penalty left no coefficient though one side won more; empty otherwise."""
    won = 100 * float(np.nanmean(share))
    if coefficients.any() or abs(won - 50) <= MISFIT:
        return ""
    return f"the penalty leaves nothing of judgements of which {won:.1f} % were won: no figure is defined"


def _few(free: Floats, judged: Rows) -> str:
    """State why there are too few outcomes of one kind to fit coefficients to; empty if there are enough."""
    coefficients = int(judged.features.any(axis=0).sum())  # lengths that are equal throughout have none
    needed = NEEDED * coefficients
    if information(free, judged) >= needed:
        return ""
    n = len(np.unique(judged.group))
    won = float(judged.share.mean()) * n
    rarer, word = min((won, "won"), (n - won, "lost"))
    why = f"{coefficients} coefficients tell won from lost too well to be known themselves"
    if rarer < needed:
        why = f"{rarer:.3g} of {n} instructions {word}, and {needed:.0f} of either outcome are needed"
    return f"{why}: the penalty decides the figure, and no error holds"
