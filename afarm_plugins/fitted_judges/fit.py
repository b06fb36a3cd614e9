"""Fitting a judge: folds by instruction, candidates compared on what they never saw, one kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from afarm_plugins.fitted_judges.candidates import (
    JudgeCandidate,
    LabelledRows,
    LearnedCandidate,
    LinearCandidate,
    linear_candidates,
)
from afarm_plugins.fitted_judges.encoder import SentenceEncoder
from afarm_plugins.fitted_judges.labelled_pairs import FEWEST_PAIRS, LabelCounts, LabelledPair, deal_folds
from afarm_plugins.fitted_judges.learned_reward import LearnedReward
from afarm_plugins.fitted_judges.logistic import Array, log_losses, sigmoid
from afarm_plugins.fitted_judges.measures import Measured, PeopleAgreement, by_system, measure, people_agreement
from afarm_plugins.fitted_judges.utility import FittedWeights


@dataclass(frozen=True)
class FitReport:
    """A fitted judge and its figures, all on instructions that no fit had seen.

    `chosen` is of the procedure: in each fold the candidate that the other folds prefer. `candidates` are one by one,
    `kept` names that of `weights`. `unseen` leaves out every pair of the system as well.
    """

    counts: LabelCounts
    folds: int
    kept: str
    weights: FittedWeights
    chosen: Measured
    candidates: Mapping[str, Measured]
    people: PeopleAgreement | None
    systems: Mapping[str, Measured]
    unseen: Mapping[str, Measured]

    @property
    def beats_length(self) -> bool:
        """True if the whole interval of the gain over the rule of length is above 0."""
        return self.chosen.gain.low > 0

    @property
    def verdict(self) -> str:
        """State in a sentence by how much the fit beats "the longer wins", or its opposite, if it does."""
        gain = self.chosen.gain
        rule = '"the longer wins"' if self.chosen.longer.value >= 0.5 else '"the shorter wins"'
        points = gain.signed().replace(" [", " points [")
        if self.beats_length:
            return f"It beats {rule} by {points}."
        if gain.high < 0:
            return f"It is worse than {rule}: {points}."
        return f"It does not beat {rule}: {points}."

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        return {
            "kept": self.kept,
            "beats_length": self.beats_length,
            "folds": self.folds,
            "chosen": asdict(self.chosen),
            "candidates": {name: asdict(figures) for name, figures in self.candidates.items()},
            "people": None if self.people is None else [*astuple(self.people.share)],
            "people_pairs": self.people.pairs if self.people else 0,
            "systems": {name: asdict(figures) for name, figures in self.systems.items()},
            "unseen_systems": {name: asdict(figures) for name, figures in self.unseen.items()},
            "labels": {
                "learned from": sum(self.counts.annotators.values()),
                "left out": self.counts.exclusions,
                "annotators": dict(sorted(self.counts.annotators.items())),
            },
        }


def fit_judge(
    pairs: Sequence[LabelledPair],
    counts: LabelCounts,
    directory: Path,
    *,
    folds: int = 5,
    seed: int = 0,
    encoder: SentenceEncoder | None = None,
    learned: LearnedReward | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> FitReport:
    """Fit every candidate, keep the best, and measure it.

    Args:
        pairs: The labelled pairs, as `read_labelled` orders them.
        counts: What was read with them.
        directory: Where a reward model is written if it is kept.
        folds: Folds, by instruction.
        seed: The seed of the folds and of the bootstrap.
        encoder: The sentence encoder, for the candidates with embeddings.
        learned: The reward model, for the candidate of that name.
        tell: Told what is being fitted.
    """
    dealt = deal_folds((row.pair.instruction.id for row in pairs), folds, seed)
    rows = LabelledRows(
        pairs, np.array([row.p2 for row in pairs]), np.array([dealt[row.pair.instruction.id] for row in pairs])
    )
    candidates: list[JudgeCandidate] = [*linear_candidates(pairs, encoder)]
    candidates += [LearnedCandidate(learned)] if learned else []
    held_out: dict[str, Array] = {}
    for candidate in candidates:
        tell(f"{candidate.name}: {folds} folds")
        held_out[candidate.name] = sigmoid(candidate.predict_held_out(rows))
    kept, p = choose_candidate(held_out, rows)
    best = next(candidate for candidate in candidates if candidate.name == kept)
    tell(f"{kept}: all {len(pairs)} pairs")
    weights = best.fit(rows, directory)
    return FitReport(
        counts=counts,
        folds=folds,
        kept=kept,
        weights=weights,
        chosen=measure(pairs, p, seed),
        candidates={name: measure(pairs, one, seed) for name, one in held_out.items()},
        people=people_agreement([*pairs, *counts.torn], seed),
        systems=by_system(pairs, held_out[kept], seed),
        # Of a reward model that would be a fit for each fold and system.
        unseen=_unseen(best, rows, seed, tell) if isinstance(best, LinearCandidate) else {},
    )


def choose_candidate(held_out: Mapping[str, Array], rows: LabelledRows) -> tuple[str, Array]:
    """Choose the candidate with the lowest log loss, the first of equals.

    Returns its name, and the probabilities of the procedure itself: each fold's are those of the candidate that is best
    on the other folds, so that figures made from them hold no reward for having tried several.
    """
    losses = {name: log_losses(p, rows.p2) for name, p in held_out.items()}
    probabilities = np.zeros(len(rows.p2))
    for fold in np.unique(rows.folds):
        others = rows.folds != fold
        best = min(losses, key=lambda name: float(losses[name][others].mean()))
        probabilities[~others] = held_out[best][~others]
    return min(losses, key=lambda name: float(losses[name].mean())), probabilities


def _unseen(
    candidate: LinearCandidate, rows: LabelledRows, seed: int, tell: Callable[[str], None]
) -> dict[str, Measured]:
    """Measure the pairs of each system under fits that saw neither it nor the instruction.

    A system is left out if too few pairs are without it, as with the reference of all others.
    """
    measured: dict[str, Measured] = {}
    for system in sorted(set().union(*(row.systems for row in rows.pairs))):
        inside = np.array([system in row.systems for row in rows.pairs])
        if (~inside).sum() < FEWEST_PAIRS or len(np.unique(rows.folds[~inside])) < len(np.unique(rows.folds)):
            continue
        tell(f"{candidate.name}: {system} unseen")
        theirs = [row for row, taken in zip(rows.pairs, inside, strict=True) if taken]
        measured[system] = measure(theirs, sigmoid(candidate.predict_unseen(rows, system))[inside], seed)
    return measured
