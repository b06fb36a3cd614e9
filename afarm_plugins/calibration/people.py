"""People's labels to fit a pool to: one per person and pair, counted over the canonical order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from afarm import ANNOTATION, PAIR, DataError, JudgedPair, Pair, in_canonical_order, read_labelled_pairs, why_left_out

LEAST_LABELS = 50
"""Labels below which nothing is fitted: a share of 50 has a standard error of up to 7 points."""

LEAST_INSTRUCTIONS = 10


@dataclass(slots=True)
class PeoplesLabels:
    """The labels that choose, and how many of what others were left out."""

    labels: list[JudgedPair] = field(default_factory=list)
    """Each pair in canonical order; `order` says which output was shown first, empty if nobody knows."""
    left_out: Counter[str] = field(default_factory=Counter)
    sides: Counter[str] = field(default_factory=Counter)
    """The labels for the first and for the second output as the file has them."""

    @property
    def pairs(self) -> list[Pair]:
        """The pairs, each once, by their ids."""
        return [pair for _, pair in sorted({label.pair.id: label.pair for label in self.labels}.items())]

    @property
    def instructions(self) -> int:
        return len({label.pair.instruction.id for label in self.labels})


def read_peoples_labels(sources: Sequence[str], shown: str) -> PeoplesLabels:
    """Read a person's label per row (`preference`), or those of several (`annotator1`, `annotator2` …).

    A row's `order` ("12" or "21") says which output was shown first, or else `shown` for all rows: "output_1" or
    "unknown". Draws, missing labels, identical outputs and labels that no person gave are left out, and counted. Raises
    `DataError` naming file, row and field, and if the labels are too few or all for one side.
    """
    found = PeoplesLabels()
    for source in sources:
        for _, _, judged in read_labelled_pairs(source, forms=(ANNOTATION, PAIR), as_text=True):
            for label in judged:
                if reason := why_left_out(label) or ("" if label.chosen_rejected else "draws"):
                    found.left_out[reason] += 1
                    continue
                found.sides["output_2" if is_for_second(label) else "output_1"] += 1
                order = label.preference.order or ("12" if shown == "output_1" else "")
                label = replace(label, preference=replace(label.preference, order=order))
                found.labels.append(in_canonical_order(label))
    _require_enough(found, ", ".join(sources))
    return found


def is_for_second(label: JudgedPair) -> bool:
    """Return True if a label that chooses an output chooses the second."""
    return label.p2 is not None and label.p2 > 0.5


def _require_enough(found: PeoplesLabels, where: str) -> None:
    count, instructions = len(found.labels), found.instructions
    left_out = ", ".join(f"{number} {reason}" for reason, number in found.left_out.items())
    if count < LEAST_LABELS or instructions < LEAST_INSTRUCTIONS:
        raise DataError(
            f"{where}: {count} labels on {instructions} instructions choose an output"
            f"{f' (left out: {left_out})' if left_out else ''}: too few to tell a pool's noise from chance; label at "
            f"least {LEAST_LABELS} pairs of {LEAST_INSTRUCTIONS} instructions, better a few hundred"
        )
    if len(found.sides) == 1:
        [side] = found.sides
        raise DataError(
            f"{where}: all {count} labels are for {side}: with one label only it cannot be told what it follows; add "
            "labels in which the other output wins, or check which output each label names"
        )
