"""Likelihood and calibration of a reward model on held-out preferences. No torch.

`p2` are labels, perhaps soft, and `predicted` the model's probabilities that output 2 is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

BINS = 10
"""Bins of confidence, of equal width between 1/2 and 1."""

MARGIN_WIDTH, MARGIN_BINS = 0.5, 12
"""The histogram of margins: 12 bins of half a standard deviation on each side; the outermost are open."""


def calibration(p2: Sequence[float], predicted: Sequence[float]) -> dict[str, Any]:
    """Measure predicted probabilities: `loss`, `brier`, `ece` and the `reliability` bins that it sums.

    `loss` is the cross-entropy in nats per pair, `brier` the mean squared error. A prediction's confidence, in
    [1/2, 1], is its probability of the output it prefers, and `observed` the label's; so the order of outputs does not
    matter. `ece`, the expected calibration error, is their mean absolute difference over bins, weighted by pairs (Guo
    et al. 2017).
    """
    pairs = len(p2)
    bins: list[list[tuple[float, float]]] = [[] for _ in range(BINS)]
    for label, p in zip(p2, predicted, strict=True):
        confidence, observed = (p, label) if p >= 0.5 else (1 - p, 1 - label)
        bins[min(BINS - 1, int((confidence - 0.5) * 2 * BINS))].append((confidence, observed))
    reliability = [
        {
            "from": 0.5 + i / (2 * BINS),
            "to": 0.5 + (i + 1) / (2 * BINS),
            "pairs": len(rows),
            "confidence": sum(c for c, _ in rows) / len(rows),
            "observed": sum(o for _, o in rows) / len(rows),
        }
        for i, rows in enumerate(bins)
        if rows
    ]
    return {
        "loss": sum(cross_entropy(label, p) for label, p in zip(p2, predicted, strict=True)) / pairs,
        "brier": sum((p - label) ** 2 for label, p in zip(p2, predicted, strict=True)) / pairs,
        "ece": sum(b["pairs"] * abs(b["confidence"] - b["observed"]) for b in reliability) / pairs,
        "reliability": reliability,
    }


def cross_entropy(label: float, p: float) -> float:
    """Compute −label · ln p − (1 − label) · ln(1 − p), finite if p is rounded to 0 or 1."""
    p = min(max(p, 1e-12), 1 - 1e-12)
    return -label * math.log(p) - (1 - label) * math.log1p(-p)


def margins(p2: Sequence[float], differences: Sequence[float]) -> list[dict[str, Any]]:
    """Count pairs by the preferred output's reward less the other's: a histogram, without even labels.

    `differences` are reward 2 − reward 1.
    """
    signed = [d if label > 0.5 else -d for label, d in zip(p2, differences, strict=True) if label != 0.5]
    counts = dict.fromkeys(range(-MARGIN_BINS, MARGIN_BINS), 0)
    for margin in signed:
        counts[min(MARGIN_BINS - 1, max(-MARGIN_BINS, math.floor(margin / MARGIN_WIDTH)))] += 1
    return [{"from": i * MARGIN_WIDTH, "to": (i + 1) * MARGIN_WIDTH, "pairs": count} for i, count in counts.items()]
