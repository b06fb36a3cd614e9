"""The study `instructions`: what a data set asks for, and how far its sets differ in that.

Sets are the splits of the recipe's data set, or files. Two sets differ by their total variation distance: half the sum
of the differences of all shares, which is the share of one set's instructions that would have to be others.

Source: Dubois et al. 2023 (AlpacaFarm), figures 2, 14 and 15.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import median, quantiles
from typing import Any

from afarm import (
    Bounded,
    DataError,
    DataStudy,
    Findings,
    FinishedRun,
    Instruction,
    Output,
    Series,
    StudyPlot,
    StudyRequest,
    StudyRun,
    StudyTable,
    mean_interval,
    mean_percent,
    named_files,
    parse_output,
    read_placed_rows,
    seeding,
)
from afarm_plugins.instructions.imperatives import OTHER, QUESTION, TASK, Reading, reader
from afarm_plugins.instructions.settings import InstructionsConfig

OBJECTS = 4
"""The commonest objects of a verb that are named."""

NAMED = 8
"""The commonest verbs that a plot names."""

DRAWS = 200
SHOWN = 200
"""Characters of an instruction in the file of readings."""


@dataclass(frozen=True)
class InstructionSet:
    """A set's rows with the readings of their instructions."""

    name: str
    rows: Sequence[Output]
    readings: Sequence[Reading]

    @property
    def verbs(self) -> Sequence[str]:
        """The verbs of its tasks."""
        return [reading.verb for reading in self.readings if reading.verb]

    @cached_property
    def requests(self) -> Sequence[Hashable]:
        """The request of each instruction: its verb, or else its kind."""
        return [reading.verb or reading.kind for reading in self.readings]

    @cached_property
    def verb_objects(self) -> Sequence[Hashable]:
        """The request of each instruction, with its verb's object."""
        return [(reading.verb or reading.kind, reading.object) for reading in self.readings]

    def share(self, field: str, value: str) -> Bounded | None:
        """Return the share of readings with this value of a field in percent, with its interval."""
        return share_of([getattr(reading, field) == value for reading in self.readings])


class Instructions(DataStudy):
    """Verbs, objects and lengths of instructions, by set."""

    def __init__(self, config: InstructionsConfig):
        self.config = config
        self._splits: dict[str, Sequence[Output]] = {}
        self._lacking: dict[str, str] = {}

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        return []

    def read(self, load: Callable[[str], Sequence[Output]]) -> None:
        for split in () if self.config.instructions else dict.fromkeys(map(str.strip, self.config.splits.split(","))):
            try:
                self._splits[split] = load(split)
            except DataError as error:
                self._lacking[split] = str(error)
        if self._lacking and not self._splits:
            raise DataError(next(iter(self._lacking.values())))

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        tagger, read = reader(self.config.tagger)
        found = dict(self._splits)
        for name, file in named_files("instructions", self.config.instructions).items():
            found[name] = [parse_output(row, where, required=False) for where, row in read_placed_rows(file)]
            if not found[name]:
                raise DataError(f"{file}: has no rows")
        readings = {name: [read(_text(row.instruction)) for row in rows] for name, rows in found.items()}
        sets = [InstructionSet(name, rows, readings[name]) for name, rows in found.items()]
        notes = [f"Left out: {why}" for why in self._lacking.values()]
        return set_findings(sets, tagger, self.config.verbs, notes) if sets else Findings()


def share_of(holds: Sequence[bool]) -> Bounded | None:
    """Return the share of instructions of which it `holds` in percent, with its interval; None for none."""
    return mean_percent([100.0 * each for each in holds]) if holds else None


def _text(instruction: Instruction) -> str:
    return instruction.instruction or (instruction.messages[-1].content if instruction.messages else "")


# ----------------------------------------------------------------------------------------------------------- findings


def set_findings(sets: Sequence[InstructionSet], tagger: str, most: int, lacking: Sequence[str] = ()) -> Findings:
    """Return kinds, verbs with their objects, lengths, and how far sets differ."""
    verbs = commonest(sets, most)
    several = list(combinations(sets, 2))
    tables = [
        _kinds(sets),
        *([_verbs(sets, verbs)] if verbs else []),
        _lengths(sets),
        *([_distances(several)] if several else []),
    ]
    notes = [
        f"Verbs and objects are found by {tagger}; each reading is in readings.jsonl beside this page.",
        "An instruction is read up to its first request: a task, whose verb is an imperative, or a question. Others "
        "are statements, or ask in a way that is not read. Shares of verbs are of all instructions, of objects of the "
        "verb's.",
    ]
    if several:
        notes.append(
            "Distance: the share of one set's instructions that would have to ask for something else to be distributed "
            f"as the other's. By chance: that of sets of these sizes drawn from both together, in {DRAWS} draws the "
            "mean and the range that holds 95%. Only above it do the sets differ."
        )
    lines = (json.dumps(line, ensure_ascii=False) for one in sets for line in _lines(one))
    plots = _plots(sets, verbs) if verbs else []
    answer = ""
    if several:
        rows: Sequence[Sequence[Any]] = tables[-1].rows
        one, other, apart, chance, *_ = max(rows, key=lambda row: row[2])
        answer = f"{one} and {other} differ most: in {apart:.0f} % of their verbs, {chance[0]:.0f} % by chance."
    return Findings(tables, plots, [*notes, *lacking], {"readings.jsonl": "\n".join([*lines, ""])}, answer)


def commonest(sets: Sequence[InstructionSet], most: int) -> list[str]:
    """Return the verbs with the highest share in the mean of sets."""
    shares = Counter[str]()
    for one in sets:
        shares.update({verb: count / len(one.rows) for verb, count in Counter(one.verbs).items()})
    return [verb for verb, _ in shares.most_common(most)]


def _lines(one: InstructionSet) -> Iterable[dict[str, str]]:
    for row, reading in zip(one.rows, one.readings, strict=True):
        yield {"set": one.name, **reading._asdict(), "instruction": _text(row.instruction)[:SHOWN]}


def _kinds(sets: Sequence[InstructionSet]) -> StudyTable:
    rows = []
    for one in sets:
        kinds = [one.share("kind", kind) for kind in (TASK, QUESTION, OTHER)]
        with_input = share_of([bool(row.instruction.input) for row in one.rows])
        pairs = {reading[1:] for reading in one.readings if reading.object}
        rows.append([one.name, len(one.rows), *kinds, len(set(one.verbs)), len(pairs), with_input])
    columns = {"set": "", "instructions": ",d", "tasks, %": ".1f", "questions, %": ".1f", "others, %": ".1f"}
    columns |= {"verbs": "d", "verbs with objects": "d", "with input, %": ".1f"}
    return StudyTable("sets", "What is asked, with 95% intervals over instructions", columns, rows)


def _verbs(sets: Sequence[InstructionSet], verbs: Sequence[str]) -> StudyTable:
    """Table the share of each verb in each set, and its commonest objects in all of them."""
    objects: dict[str, Counter[str]] = {verb: Counter() for verb in verbs}
    for reading in (reading for one in sets for reading in one.readings if reading.verb in objects):
        objects[reading.verb][reading.object] += 1
    rows = []
    for verb in verbs:
        total = objects[verb].total()
        named = [(noun, count) for noun, count in objects[verb].most_common(OBJECTS + 1) if noun][:OBJECTS]
        words = ", ".join(f"{noun} {100 * count / total:.0f}%" for noun, count in named)
        rows.append([verb, *(one.share("verb", verb) for one in sets), words])
    columns = {"verb": "", **{f"{one.name}, %": ".1f" for one in sets}, "objects": ""}
    return StudyTable("verbs", "The commonest verbs and their objects", columns, rows)


def _lengths(sets: Sequence[InstructionSet]) -> StudyTable:
    rows: list[list[str | float | Bounded]] = []
    for one in sets:
        texts = {
            "instructions": [_text(row.instruction) for row in one.rows],
            "inputs": [row.instruction.input for row in one.rows],
            "answers": [row.output for row in one.rows],
        }
        for name, written in texts.items():
            if words := [float(len(text.split())) for text in written if text.strip()]:
                most = quantiles(words, n=10, method="inclusive")[-1] if len(words) > 1 else words[0]
                rows.append([one.name, name, len(words), mean_interval(words), median(words), most])
    columns = {"set": "", "texts": "", "not empty": ",d", "mean": ".1f", "median": ".0f", "nine in ten up to": ".0f"}
    return StudyTable("lengths", "Words of instructions, inputs and answers", columns, rows)


def _distances(several: Sequence[tuple[InstructionSet, InstructionSet]]) -> StudyTable:
    rows = []
    for one, other in several:
        cells = [cell for by in ("requests", "verb_objects") for cell in distance(getattr(one, by), getattr(other, by))]
        shares = [Counter(part.requests) for part in (one, other)]
        gaps = {
            verb: 100 * (shares[0][verb] / len(one.rows) - shares[1][verb] / len(other.rows))
            for verb in sorted({*shares[0], *shares[1]}, key=str)
        }
        most = max(gaps, key=lambda verb: abs(gaps[verb]))
        rows.append([one.name, other.name, *cells, str(most), gaps[most]])
    columns = {"set": "", "and": "", "verbs, %": ".1f", "verbs by chance, %": ".1f"}
    columns |= {"with objects, %": ".1f", "with objects by chance, %": ".1f", "differs most": "", "by": "+.1f"}
    return StudyTable("distances", "How far sets differ in what they ask for", columns, rows)


def distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> tuple[float, Bounded]:
    """Return the total variation distance of two samples in percent, and that of samples of one source.

    The second is of samples of these sizes drawn from both together: the mean, and the range that holds 95%.
    """
    import numpy as np

    places = {value: place for place, value in enumerate(dict.fromkeys([*first, *second]))}
    both = np.array([places[value] for value in (*first, *second)])

    def of(values: np.ndarray) -> float:
        parts = values[: len(first)], values[len(first) :]
        one, other = (np.bincount(part, minlength=len(places)) / len(part) for part in parts)
        return float(50 * np.abs(one - other).sum())

    draw = np.random.default_rng(seeding.integer("instructions", len(first), len(second)))
    chance = [of(draw.permutation(both)) for _ in range(DRAWS)]
    low, high = (float(end) for end in np.quantile(chance, [0.025, 0.975]))
    return of(both), Bounded(float(np.mean(chance)), low, high)


def _plots(sets: Sequence[InstructionSet], verbs: Sequence[str]) -> list[StudyPlot]:
    """Plot the verbs' shares: of one set by verb, of several over the first's."""
    shares = {one.name: {verb: one.share("verb", verb) for verb in verbs} for one in sets}
    first, *others = shares
    if not others:
        known = {verb: share for verb in verbs[:NAMED] if (share := shares[first][verb]) is not None}
        series = [Series(first, list(known), list(known.values()), joined=False)]
        return [StudyPlot("verb-shares", "Shares of the commonest verbs", "verb", "of instructions, %", series)]
    series = []
    for name in others:
        points = [
            (across, up, verb if place < NAMED else "")
            for place, verb in enumerate(verbs)
            if (across := shares[first][verb]) is not None and (up := shares[name][verb]) is not None
        ]
        series.append(Series.of_points(name, points))
    title = f"Shares of the commonest verbs, over those in {first}"
    y_title = f"in {others[0]}, %" if len(others) == 1 else "in the set, %"
    return [StudyPlot("verb-shares", title, f"in {first}, %", y_title, series, diagonal=True)]
