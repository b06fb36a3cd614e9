"""The checks of preference data: each finds rows and says what is wrong with them.

A check returns a `Finding`; `check_rows` runs all of them, on rows as afarm reads them for training.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from afarm import (
    DataError,
    Instruction,
    Unusable,
    holds_feedback,
    read_labelled_pairs,
    read_rows,
    stem,
    why_left_out,
    with_turns,
)
from afarm_data_check.flips import FEWEST, Flips, find_flips
from afarm_data_check.similar import normalised, similar

ALIKE = 0.8
"""The share of shingles that near duplicates have in common."""
EXAMPLES = 3
FEWEST_DECIDED = 20
"""Pairs of which a feature must tell before a figure about it is given."""
DECIDES = 0.9
"""The lower bound of the share of labels that a feature explains from which it decides them alone."""
STARTS = (1, 2, 3)
"""Words at the start of an output that are looked at as a marker."""

MARKERS: dict[str, Callable[[str], bool]] = {
    "a list": lambda text: re.search(r"^\s*([-*•]|\d+[.)])\s", text, re.MULTILINE) is not None,
    "bold text": lambda text: "**" in text,
    "a heading": lambda text: re.search(r"^#{1,6}\s", text, re.MULTILINE) is not None,
    "a code block": lambda text: "```" in text,
    "a question at its end": lambda text: text.rstrip().endswith("?"),
    "no end of a sentence": lambda text: re.search(r"[.!?…:)\"'`\]}>*]\s*$", text) is None,
    '"as an AI"': lambda text: re.search(r"\bas an ai\b", text, re.IGNORECASE) is not None,
    "an apology": lambda text: re.search(r"\b(sorry|apologi[sz]e)\b", text, re.IGNORECASE) is not None,
}
"""Features of a text that are told without reading it; how outputs begin is counted beside."""


@dataclass(frozen=True, slots=True)
class Row:
    """A labelled pair of the file: its place, the row as it stands there, and what it says."""

    place: str
    raw: dict[str, Any]
    instruction: Instruction
    chosen: str
    rejected: str

    @property
    def pair(self) -> tuple[str, str, str]:
        return (self.instruction.id, *sorted((self.chosen, self.rejected)))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Finding:
    """Rows with something wrong: how many, the places of those to `drop`, and lines on examples."""

    name: str
    count: int
    says: str
    drop: Sequence[int] = ()
    examples: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """A feature that explains labels: of `n` pairs that differ in it, `share` have it if chosen."""

    feature: str
    n: int
    share: float
    low: float
    high: float

    @property
    def decides(self) -> bool:
        return self.low >= DECIDES or self.high <= 1 - DECIDES

    @property
    def says(self) -> bool:
        return not self.low <= 0.5 <= self.high


@dataclass(slots=True)
class Log(Unusable):
    """Rows that cannot be learned from, each with its reason."""

    reasons: list[str] = field(default_factory=list)

    def add(self, error: Any, where: str) -> None:
        Unusable.add(self, error, where)
        self.reasons.append(str(error).removeprefix(where.partition(": ")[0] + ": "))


@dataclass(frozen=True, slots=True)
class Checked:
    """A file, row by row, and all that was found in it."""

    rows: list[Row]
    drawn: int
    findings: list[Finding]
    told: list[Told]
    flips: Flips | None


def read_pairs(file: str, scale: str = "") -> tuple[list[Row], int, list[str]]:
    """Return the decided pairs of a file, the number of others, and why rows cannot be learned from.

    Raises `DataError` for a file that holds no pairs, or another form.
    """
    if holds_feedback(file):
        raise DataError(f"{file}: holds unpaired feedback, one answer in a row; `afarm data check` reads pairs")
    rows, drawn, log = list[Row](), 0, Log()
    for where, raw, [judged] in read_labelled_pairs(file, scale, annotator=stem(file), average=True, unusable=log):
        if why_left_out(judged) or judged.chosen_rejected is None:
            drawn += 1
        else:
            rows.append(
                Row(where.removeprefix(f"{file}: "), dict(raw), judged.pair.instruction, *judged.chosen_rejected)
            )
    if not rows:
        reasons = f"; the first that cannot be read: {log.reasons[0]}" if log.reasons else ""
        raise DataError(f"{file}: holds no pair of which one output is better{reasons}")
    return rows, drawn, log.reasons


def check_rows(file: str, against: Sequence[str] = (), cut: int | None = None, scale: str = "") -> Checked:
    """Run every check on a file of preferences.

    Args:
        file: The file, in any form that `--preferences` reads.
        against: Files of instructions that are evaluated on.
        cut: Characters of an output that training keeps; None leaves that check out.
        scale: The labels of the file, as `--labels` names them.
    """
    rows, drawn, broken = read_pairs(file, scale)
    told = explain_labels(rows)
    flips = (
        find_flips([(row.instruction.id, row.chosen, row.rejected) for row in rows]) if len(rows) >= FEWEST else None
    )
    findings = [
        *_broken(broken),
        _both_ways(rows),
        _near_duplicates(rows),
        *(_evaluated(rows, name) for name in against),
        *([_equal_once_cut(rows, cut)] if cut else []),
        _explained(told),
        *([_suspects(rows, flips)] if flips else []),
    ]
    return Checked(rows, drawn, findings, told, flips)


def _broken(reasons: Sequence[str]) -> Iterator[Finding]:
    """Rows that afarm does not learn from, those that contradict themselves apart."""
    against = [reason for reason in reasons if "contradicts" in reason]
    others = [reason for reason in reasons if "contradicts" not in reason]
    yield Finding("contradicting", len(against), "say one thing and score another", examples=against[:EXAMPLES])
    yield Finding("broken", len(others), "cannot be learned from", examples=others[:EXAMPLES])


def _both_ways(rows: Sequence[Row]) -> Finding:
    """Pairs that are labelled both ways: the minority is dropped, or all without a majority."""
    places = defaultdict[tuple[str, ...], list[int]](list)
    for place, row in enumerate(rows):
        places[row.pair].append(place)
    opposed = [found for found in places.values() if len({rows[place].chosen for place in found}) > 1]
    drop = []
    for found in opposed:
        votes = Counter(rows[place].chosen for place in found).most_common()
        drop += [p for p in found if votes[0][1] == votes[1][1] or rows[p].chosen != votes[0][0]]
    shown = [" and ".join(rows[place].place for place in found[:2]) for found in opposed[:EXAMPLES]]
    return Finding("both ways", len(opposed), "pairs are labelled both ways", sorted(drop), shown)


def _near_duplicates(rows: Sequence[Row]) -> Finding:
    """Rows that nearly equal an earlier one: the prompt and both outputs are compared."""
    texts = ["\n".join([_asked(row.instruction), *sorted((row.chosen, row.rejected))]) for row in rows]
    drop, shown = set[int](), list[str]()
    for first, second, likeness in similar(texts, ALIKE):
        if first not in drop and second not in drop and not _is_opposed(rows[first], rows[second]):
            drop.add(second)
            shown.append(f"{rows[second].place} is {likeness:.0%} of {rows[first].place}")
    return Finding("near duplicates", len(drop), "nearly equal an earlier row", sorted(drop), shown[:EXAMPLES])


def _is_opposed(one: Row, other: Row) -> bool:
    """Tell if the chosen output of one is the other's rejected one, or nearly."""
    crossed = _likeness(one.chosen, other.rejected) + _likeness(one.rejected, other.chosen)
    return crossed > _likeness(one.chosen, other.chosen) + _likeness(one.rejected, other.rejected)


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, normalised(one), normalised(other)).ratio()


def _asked(instruction: Instruction) -> str:
    """All that is asked: earlier turns, the instruction and its input."""
    turns = [turn.content for turn in instruction.messages]
    return "\n".join(filter(None, [*turns, instruction.instruction, instruction.input]))


def _evaluated(rows: Sequence[Row], file: str) -> Finding:
    """Rows whose prompt stands in a file that is evaluated on, but for case, punctuation and a few words."""
    evaluated = [text for row in read_rows(file) if (text := _instruction(row))]
    if not evaluated:
        raise DataError(f"{file}: has no instructions; its rows need 'instruction', 'prompt' or 'question'")
    texts = [*map(_without_system, (row.instruction for row in rows))]
    exact = {normalised(text) for text in evaluated}
    found = {place: "its prompt" for place, text in enumerate(texts) if normalised(text) in exact}
    for first, second, likeness in similar([*evaluated, *texts], ALIKE, first=len(evaluated)):
        found.setdefault(second - len(evaluated), f"{likeness:.0%} of {evaluated[first][:60]!r}")
    drop = sorted(found)
    shown = [f"{rows[place].place}: {found[place]} is evaluated on" for place in drop[:EXAMPLES]]
    return Finding(f"in {Path(file).name}", len(drop), "have a prompt that is evaluated on", drop, shown)


def _without_system(instruction: Instruction) -> str:
    turns = [turn.content for turn in instruction.messages if turn.role != "system"]
    return "\n".join(filter(None, [*turns, instruction.instruction, instruction.input]))


def _instruction(row: dict[str, Any]) -> str:
    row = {**with_turns(row, "")} if "instruction" not in row else row
    texts = [row.get(name) for name in ("instruction", "prompt", "question")]
    asked = next((text for text in texts if isinstance(text, str) and text), "")
    extra = row.get("input")
    return "\n".join(filter(None, [asked, extra if isinstance(extra, str) else ""])) if asked else ""


def _equal_once_cut(rows: Sequence[Row], cut: int) -> Finding:
    """Rows whose outputs are one text in the part that training keeps."""
    drop = [place for place, row in enumerate(rows) if row.chosen[:cut] == row.rejected[:cut]]
    says = f"have outputs that are equal in their first {cut:,} characters"
    return Finding("equal once cut", len(drop), says, drop, [rows[place].place for place in drop[:EXAMPLES]])


# ---------------------------------------------------------------------------------- what explains the labels by itself


def explain_labels(rows: Sequence[Row]) -> list[Told]:
    """Count how well length, markers and ways to begin explain the labels, the strongest first.

    The intervals are Wilson's at 95 %, divided by the number of ways to begin that were looked at (Bonferroni).
    """
    longer = [len(row.chosen) > len(row.rejected) for row in rows if len(row.chosen) != len(row.rejected)]
    told = [_told("the longer output", sum(longer), len(longer))]
    for name, has in MARKERS.items():
        told.append(_told(f"the output with {name}", *_differing([(has(r.chosen), has(r.rejected)) for r in rows])))
    starts = [(_starts(row.chosen), _starts(row.rejected)) for row in rows]
    counts = Counter(start for chosen, rejected in starts for start in chosen ^ rejected)
    looked_at = [start for start, count in counts.items() if count >= FEWEST_DECIDED]
    for start in looked_at:
        found = _differing([(start in chosen, start in rejected) for chosen, rejected in starts])
        told.append(_told(f"the output that begins with {start!r}", *found, looks=len(looked_at)))
    kept = [one for one in told[1:] if one.n >= FEWEST_DECIDED and one.says]
    kept.sort(key=lambda one: (-min(abs(one.low - 0.5), abs(one.high - 0.5)), -len(one.feature)))
    unlike = {(one.n, one.share): one for one in reversed(kept)}  # "I", "I am" and "I am sorry" of the same outputs
    return [told[0], *(one for one in kept if unlike[one.n, one.share] is one)]


def _starts(text: str) -> frozenset[str]:
    words = normalised(text[:200]).split()
    return frozenset(" ".join(words[:n]) for n in STARTS if len(words) >= n)


def _differing(both: Sequence[tuple[bool, bool]]) -> tuple[int, int]:
    """The pairs in which the chosen output alone has a feature, and those in which one of the two has."""
    chosen = sum(first and not second for first, second in both)
    return chosen, sum(first != second for first, second in both)


def _told(feature: str, chosen: int, n: int, looks: int = 1) -> Told:
    if not n:
        return Told(feature, 0, 0.5, 0.0, 1.0)
    z = _quantile(looks)
    share, middle = chosen / n, (chosen + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(chosen * (n - chosen) / n + z * z / 4)
    return Told(feature, n, share, max(0.0, middle - half), min(1.0, middle + half))


def _quantile(looks: int) -> float:
    """The normal quantile of a two-sided 95% interval that holds for so many at once."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(1 - 0.025 / looks)


def _explained(told: Sequence[Told]) -> Finding:
    """Features that decide the labels alone: nothing else would be learned. No row is dropped for it."""
    alone = [one for one in told if one.n >= FEWEST_DECIDED and one.decides]
    shown = [describe(one) for one in alone[:EXAMPLES]]
    return Finding("decided alone", len(alone), "features decide the labels by themselves", examples=shown)


def describe(one: Told) -> str:
    """A sentence on how a feature explains labels."""
    return f"{one.feature} is chosen in {one.share:.1%} ({one.low:.1%} to {one.high:.1%}) of {one.n:,} pairs"


def _suspects(rows: Sequence[Row], flips: Flips) -> Finding:
    shown = [f"{rows[place].place}: probability {flips.probability[place]:.2f}" for place in flips.suspects[:EXAMPLES]]
    return Finding("likely flipped", len(flips.suspects), "are unlikely by the other rows", flips.suspects, shown)
