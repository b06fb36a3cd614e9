"""People's labels to fit a pool to: one per person and pair, counted over the canonical order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from afarm import DataError, LabelReader, Pair, Row, labels_of_people, people_columns, placed_rows

LEAST_LABELS = 50
"""Labels below which nothing is fitted: a share of 50 has a standard error of up to 7 points."""

LEAST_INSTRUCTIONS = 10


@dataclass(frozen=True, slots=True)
class PersonLabel:
    """A person's choice: `second` if it is the output that comes second in the canonical order of `pair`.

    `shown` is 1 if that output was shown first, −1 if the other was, 0 if nobody knows.
    """

    pair: Pair
    second: bool
    shown: int


@dataclass(slots=True)
class PeoplesLabels:
    """The labels that choose, and how many of what others were left out."""

    labels: list[PersonLabel] = field(default_factory=list)
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
        reader = LabelReader(source)
        for where, row in placed_rows(source):
            for pair, win, origin in _labels(row, where, reader):
                if reason := _unused(pair, win, origin):
                    found.left_out[reason] += 1
                else:
                    _add(pair, win is not None and win > 0.5, row, shown, found)
        reader.require_one_reading()
    _require_enough(found, ", ".join(sources))
    return found


def _labels(row: Row, where: str, reader: LabelReader) -> Iterator[tuple[Pair, float | None, str]]:
    """Yield the pair of a row with each label: the win of its second output, and who or what gave it."""
    if "preference" in row or not people_columns(row):
        judged = reader.judged(row, where)
        yield judged.pair, judged.win, judged.preference.source
        return
    pair, wins = labels_of_people(row, where, reader)
    for win in wins.values():
        yield pair, win, "human"


def _add(pair: Pair, second: bool, row: Row, shown: str, found: PeoplesLabels) -> None:
    found.sides["output_2" if second else "output_1"] += 1
    order = str(row.get("order") or ("12" if shown == "output_1" else ""))
    canonical = replace(pair if pair.is_canonical else pair.swapped(), occurrence=0)
    second_first = {"12": -1, "21": 1}.get(order, 0) * (1 if pair.is_canonical else -1)
    found.labels.append(PersonLabel(canonical, second == pair.is_canonical, second_first))


def _unused(pair: Pair, win: float | None, origin: str) -> str:
    """Say why a label is not used; empty if it is."""
    if pair.identical:
        return "of identical outputs"
    if origin in ("noise", "rule"):
        return "that no person gave (label noise, or a rule)"
    if win is None:
        return "without an answer"
    return "draws" if win == 0.5 else ""


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
