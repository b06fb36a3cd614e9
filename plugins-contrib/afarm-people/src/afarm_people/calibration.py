"""Judged systems in people's units: each one's win rate as people would have given it.

The estimates are those of Causal Judge Evaluation (`cje-eval`, arXiv 2512.11150): one calibration from the judge's
verdicts to people's is fitted on all labelled pairs, and each system's mean is corrected by the residuals of its own.
So its interval holds also if the calibration does not transfer to it. A system with too few labels of its own keeps the
judge's figure: nobody has checked it.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any

from afarm import DataError

LEAST_LABELS = 30
"""Labelled pairs, of all systems, below which nothing is calibrated."""
LEAST_OWN = 20
"""Labelled pairs of a system, drawn at random, below which its figure stays the judge's."""


@dataclass(frozen=True, slots=True)
class JudgedTask:
    """A system's pair with the reference: its win by the judge and by people, from 0 to 1.

    `people` is the mean over those who labelled the pair; None if nobody did. `task` is the instruction, which systems
    share. `probability` is the one with which the pair was drawn to be labelled; None if all of a system's pairs had
    the same. `equal` responses are a draw to people too, whom nobody asks.
    """

    task: str
    judge: float
    people: float | None = None
    probability: float | None = None
    equal: bool = False


@dataclass(frozen=True, slots=True)
class PeoplesWinRate:
    """A system's win rates, in percent.

    `judge` is the raw one. `people` is the calibrated one, with its 95% interval; None if it was `not_checked`, which
    says why. `labels` is the number of labelled pairs. `transfer` is how much higher people set the system than a
    calibration fitted on the other systems' labels would, in points, with its interval; None if there are too few
    labels to tell.
    """

    system: str
    judge: float
    labels: int
    people: float | None = None
    low: float | None = None
    high: float | None = None
    transfer: tuple[float, float, float] | None = None
    not_checked: str = ""


def calibrate_win_rates(systems: Mapping[str, Sequence[JudgedTask]]) -> list[PeoplesWinRate]:
    """Estimate systems' win rates in people's units from judged pairs, some labelled by people.

    Raises `DataError` if too few pairs are labelled to calibrate anything, or their draw is known for some alone.
    """
    asked = {name: [row for row in rows if not row.equal] for name, rows in systems.items()}
    labelled = {name: [row for row in rows if row.people is not None] for name, rows in asked.items()}
    total = sum(map(len, labelled.values()))
    if total < LEAST_LABELS:
        raise DataError(
            f"people labelled {total} of the judged pairs, too few to calibrate a judge by: {LEAST_LABELS} are the "
            f"least, and {LEAST_OWN} drawn at random of each system; draw and label more: afarm label --from-run RUN "
            "--n 300"
        )
    drawn = {row.probability is not None for rows in labelled.values() for row in rows}
    if len(drawn) == 2:
        raise DataError(
            "some labelled pairs say with what probability they were drawn, and some do not: give the labels of one "
            "draw, or draw all anew with afarm label --from-run RUN"
        )
    checked = {name for name, rows in labelled.items() if len(rows) >= LEAST_OWN}
    estimates = _estimate({name: asked[name] for name in checked}, drawn == {True}) if checked else {}
    return [
        _describe(name, rows, labelled[name], estimates.get(name), [r for o in checked - {name} for r in labelled[o]])
        for name, rows in systems.items()
    ]


def _estimate(systems: Mapping[str, Sequence[JudgedTask]], drawn: bool) -> dict[str, tuple[float, float, float]]:
    """Return each system's calibrated (win rate, low, high), from 0 to 1."""
    from cje import analyze_dataset

    design: dict[str, Any] = {}
    if drawn:  # of rows without labels no probability is looked at
        chances = {name: [row.probability or 1.0 for row in rows] for name, rows in systems.items()}
        design = {"label_design": "known_propensity", "label_propensities": chances}
    draws = {
        name: [{"prompt_id": row.task, "judge_score": row.judge, "oracle_label": row.people} for row in rows]
        for name, rows in systems.items()
    }
    with warnings.catch_warnings():  # what they say of borrowed calibrations does not arise
        warnings.simplefilter("ignore")
        logging.getLogger("cje").setLevel(logging.ERROR)
        found = analyze_dataset(
            fresh_draws_data=draws, fresh_judge_scale=(0.0, 1.0), fresh_oracle_scale=(0.0, 1.0), **design
        )
    return {
        name: (float(value), float(low), float(high))
        for name, value, (low, high) in zip(found.target_policies, found.estimates, found.ci(), strict=True)
    }


def _describe(
    name: str,
    rows: Sequence[JudgedTask],
    labelled: Sequence[JudgedTask],
    estimate: tuple[float, float, float] | None,
    others: Sequence[JudgedTask],
) -> PeoplesWinRate:
    judge = 100 * fmean(row.judge for row in rows)
    if estimate is None:
        some = f"{len(labelled)} of its pairs are labelled" if labelled else "none of its pairs is labelled"
        why = f"{some}: {LEAST_OWN} drawn at random would check it"
        return PeoplesWinRate(name, judge, len(labelled), not_checked=why)
    value, low, high = estimate[0], max(0.0, estimate[1]), min(1.0, estimate[2])
    alike = {row.people for row in labelled}
    if len(alike) == 1:  # no spread to go by: as much else as n labels alike leave room for (Clopper and Pearson)
        [same], room = alike, 1 - 0.025 ** (1 / len(labelled))
        low, high = max(0.0, min(low, (same or 0.0) - room)), min(1.0, max(high, (same or 0.0) + room))
    equal = sum(row.equal for row in rows) / len(rows)
    value, low, high = (100 * (equal / 2 + (1 - equal) * figure) for figure in (value, low, high))
    return PeoplesWinRate(name, judge, len(labelled), value, low, high, transfer_error(labelled, others))


def transfer_error(own: Sequence[JudgedTask], others: Sequence[JudgedTask]) -> tuple[float, float, float] | None:
    """Audit the calibration of the other systems on a system's own labels: (error, low, high), in points.

    The error is people's mean less the one predicted from the judge's verdicts, each pair weighted by the inverse of
    the probability with which it was drawn. None with too few labels of others.
    """
    if len(others) < LEAST_LABELS:
        return None
    import numpy as np
    from sklearn.isotonic import IsotonicRegression

    of_others, of_own = ([1 / (row.probability or 1.0) for row in rows] for rows in (others, own))
    calibration = IsotonicRegression(out_of_bounds="clip")
    calibration.fit([row.judge for row in others], [row.people for row in others], sample_weight=of_others)
    left = np.asarray([row.people for row in own]) - calibration.predict([row.judge for row in own])
    weights, n = np.asarray(of_own) / sum(of_own), len(own)
    mean = float(weights @ left)
    half = NormalDist().inv_cdf(0.975) * math.sqrt(n / (n - 1) * float(weights**2 @ (left - mean) ** 2))
    return 100 * mean, 100 * (mean - half), 100 * (mean + half)
