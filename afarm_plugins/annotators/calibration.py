"""The calibration of a pool: weights, noise and tilts, and the label that comes of a verdict.

A member's verdict v for the second output becomes a label drawn with

    P(second) = v · σ(a + t) + (1 − v) · σ(t − a),    a = log((1 − noise) / noise),    t = length · z + position · s

where z is the log2 of the ratio of the lengths (second over first, in characters, each with 1 added), and s is 1 if the
second output was shown first, −1 if the first was. Without tilts a share `noise` of the verdicts is flipped. All of it
is counted over the canonical order and drawn by seed and pair, so that swapping a pair's outputs mirrors its label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pydantic import field_validator

from afarm import Config, Pair, Preference, seeding, setting

SURE = 50.0
"""Log-odds of a verdict that is never flipped."""


class Calibration(Config):
    """Figures that `afarm study calibrate` has fitted to people's labels."""

    weights: dict[str, float] = setting({}, "how often each member is drawn; equally often, if left out")
    noise: float = setting(0.0, "the share of verdicts that is flipped, where neither output is longer", ge=0, le=0.5)
    length: float = setting(0.0, "log-odds for an output that is twice as long as the other")
    position: float = setting(0.0, "log-odds for the output that is shown first")

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, weights: dict[str, float]) -> dict[str, float]:
        if weights and (min(weights.values()) < 0 or not 0 < sum(weights.values()) < math.inf):
            raise ValueError("each weight is 0 or more, and their sum above 0")
        return weights

    def draw_member(self, names: Sequence[str], seed: int, pair_id: str) -> str:
        """Draw one of these members for a pair, by weight; those that the weights do not name are never drawn."""
        if not self.weights:
            return seeding.choice(names, seed, "member", pair_id)
        left = seeding.uniform(seed, "member", pair_id) * sum(self.weights.values())
        for name, weight in self.weights.items():
            left -= weight
            if left < 0:
                return name
        return max(self.weights, key=lambda name: self.weights[name])

    def label(self, pair: Pair, preference: Preference, seed: int) -> Preference:
        """Draw the label that comes of a verdict. One that could not be read stays as it is."""
        if preference.win is None:
            return preference
        verdict = preference.win if pair.is_canonical else 1 - preference.win
        first, second = map(len, pair.canonical)
        shown_first = {"12": -1, "21": 1}.get(preference.order, 0) * (1 if pair.is_canonical else -1)
        tilt = self.length * math.log2((1 + second) / (1 + first)) + self.position * shown_first
        kept = 1 - self.noise
        sure = min(SURE, math.log(kept / (1 - kept))) if kept < 1 else SURE
        p = verdict * probability(sure + tilt) + (1 - verdict) * probability(tilt - sure)
        is_second = seeding.uniform(seed, "calibration", pair.id) < p
        return replace(preference, p2=float(is_second == pair.is_canonical), outcome="decided")


def probability(logits: float) -> float:
    """Return the probability of log-odds, without overflow."""
    return 0.5 * (1 + math.tanh(logits / 2))
