"""Best-of-n at every smaller n from one run, by the first k of n samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from afarm import DataError, Output, Sample


def kl_bound(n: int) -> float:
    """Bound the KL, in nats, from best-of-n to the policy sampled: ln n − (n − 1)/n.

    It is exact if rewards have no ties and no sample is likely (Stiennon et al. 2020; the bound: Beirami et al. 2024).
    """
    return math.log(n) - (n - 1) / n


class Winners:
    """The rewards of one output's samples in order, and each sample that beat all before it (about ln n)."""

    def __init__(self) -> None:
        self.scores: list[float] = []
        self.bests: list[tuple[int, str]] = []
        self._best = -math.inf

    def watch(self, scored: Iterable[tuple[Sample, float]]) -> Iterator[tuple[Sample, float]]:
        """Yield the same samples with their rewards, and record them."""
        for sample, score in scored:
            self.scores.append(score)
            if not self.bests or score > self._best:
                self._best = score
                self.bests.append((len(self.scores), sample.text))
            yield sample, score

    def details(self) -> dict[str, Any]:
        """Return as JSON `scores`, and `bests`: pairs of a sample's number (from 1) and its text."""
        return {"scores": self.scores, "bests": [list(best) for best in self.bests]}


def best_of(outputs: Sequence[Output], n: int) -> list[Output]:
    """Select the winners of the first `n` samples, by the `scores` and `bests` kept with `outputs`.

    `details["score"]` is the winner's reward. Raises `DataError` if they were not kept, or if fewer than n were drawn.
    """
    winners = []
    for output in outputs:
        scores, bests = output.details.get("scores"), output.details.get("bests")
        if not scores or not bests:
            raise DataError("outputs hold no scores of their samples: sample them with best_of_n.keep_scores=true")
        if not 1 <= n <= len(scores):
            raise DataError(f"the best of {n} cannot be told from {len(scores)} samples: raise best_of_n.n")
        number, text = [best for best in bests if best[0] <= n][-1]
        winners.append(replace(output, output=text, generator=f"best-of-{n}", details={"score": scores[number - 1]}))
    return winners
