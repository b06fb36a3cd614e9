"""Every smaller n out of one run of best-of-n: the first k of n samples are k samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from afarm import DataError, Output, Sample


def kl_bound(n: int) -> float:
    """At most so far, in nats, is best-of-n from the policy it samples: ln n − (n − 1)/n, whatever the reward.

    Equal where rewards have no ties and no sample is likely (Stiennon et al. 2020; that it is a bound: Beirami et al.
    2024).
    """
    return math.log(n) - (n - 1) / n


class Winners:
    """The rewards of the samples of one output, in the order they are drawn, and each that beat all before it.

    That happens about ln n times, so that this is all that need be kept to tell the winner of every smaller n.
    """

    def __init__(self) -> None:
        self.scores: list[float] = []
        self.bests: list[tuple[int, str]] = []
        self._best = -math.inf

    def watch(self, scored: Iterable[tuple[Sample, float]]) -> Iterator[tuple[Sample, float]]:
        """The same samples with their rewards, each noted as it passes."""
        for sample, score in scored:
            self.scores.append(score)
            if not self.bests or score > self._best:
                self._best = score
                self.bests.append((len(self.scores), sample.text))
            yield sample, score

    def details(self) -> dict[str, Any]:
        """As JSON: `scores`, and `bests`, pairs of a sample's number (from 1) and its text."""
        return {"scores": self.scores, "bests": [list(best) for best in self.bests]}


def best_of(outputs: Sequence[Output], n: int) -> list[Output]:
    """The winners of the first `n` samples, by the `scores` and `bests` kept with `outputs`; `score` is their reward.

    Raises `DataError` where they were not kept, or n is more than were drawn.
    """
    found = []
    for output in outputs:
        scores, bests = output.details.get("scores"), output.details.get("bests")
        if not scores or not bests:
            raise DataError("outputs hold no scores of their samples: sample them with best_of_n.keep_scores=true")
        if not 1 <= n <= len(scores):
            raise DataError(f"the best of {n} cannot be told from {len(scores)} samples: raise best_of_n.n")
        number, text = [best for best in bests if best[0] <= n][-1]
        found.append(replace(output, output=text, generator=f"best-of-{n}", details={"score": scores[number - 1]}))
    return found
