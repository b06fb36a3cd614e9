"""Regressions while the mean got better: categories and instructions that a policy loses.

A category is a regression if the policy loses to the reference there by a one-sided sign test over instructions, at a
false discovery rate of 5 % among all categories (Benjamini and Hochberg 1995). One judgement of an instruction is no
evidence about that instruction: with several runs, of several seeds, instructions are tested in the same way.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import fmean
from typing import Any

from afarm import DataError, Instruction, JudgedPair, RunRecord, Tasks, read_placed_rows, standard_error, with_turns
from afarm.results import StoredRun, differences, flatten, win_rate_interval

LEVEL = 0.05
"""The false discovery rate at which something is called a regression."""
FEWEST = 10
"""Instructions of a category; smaller ones are counted together."""
OTHERS, UNNAMED = "(smaller ones)", "(in no row of the file)"

Categories = Callable[[Instruction], str]


@dataclass(frozen=True, slots=True)
class Tally:
    """Wins and losses of a category or an instruction, over `count` instructions or judgements of one.

    `win_rate` and its 95 % interval (Wilson; of the whole, that of `afarm run`) are in percent, a draw counting half;
    `p` is of a one-sided sign test of lost against won, `q` the lowest false discovery rate at which it counts.
    """

    name: str
    count: int
    won: int
    lost: int
    win_rate: float
    low: float
    high: float
    p: float
    q: float = 1.0

    @property
    def is_regression(self) -> bool:
        return self.q <= LEVEL and self.win_rate < 50


@dataclass(frozen=True, slots=True)
class LostInstruction:
    """An instruction that was lost on the whole, with both outputs of the first judgement that was lost."""

    tally: Tally
    category: str
    instruction: Instruction
    reference_output: str
    output: str


@dataclass(frozen=True, slots=True)
class Regressions:
    """The findings, the worst first."""

    system: str
    reference: str
    judged_by: str
    runs: int
    whole: Tally
    categories: Sequence[Tally]
    lost: Sequence[LostInstruction]

    def to_row(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "system": self.system,
            "reference": self.reference,
            "judged_by": self.judged_by,
            "runs": self.runs,
            "false_discovery_rate": LEVEL,
            "multiplicity": "Benjamini-Hochberg, over categories and over instructions",
            "whole": {
                name: value for name, value in _tally_row(self.whole).items() if name not in ("q", "is_regression")
            },
            "categories": [_tally_row(tally) for tally in self.categories],
            "lost": [
                {
                    **_tally_row(one.tally),
                    "category": one.category,
                    "instruction": one.instruction.instruction,
                    "input": one.instruction.input,
                    "output_1": one.reference_output,
                    "output_2": one.output,
                }
                for one in self.lost
            ],
        }

    def sentences(self) -> list[str]:
        """Say how the whole fared, and what was found how surely."""
        whole, bad = self.whole, [tally.name for tally in self.categories if tally.is_regression]
        change = "rose" if whole.low > 50 else "fell" if whole.high < 50 else "is not clear from 50 %"
        said = [
            f"The win rate of {self.system} against {self.reference} {change}: {whole.win_rate:.1f} % (95 % "
            f"{whole.low:.1f} to {whole.high:.1f}) over {whole.count} instructions, {whole.lost} of them lost."
        ]
        if self.categories:
            which = f"worse in {', '.join(bad)}" if bad else "in none is it worse"
            said.append(f"Of {len(self.categories)} categories {which}, at a false discovery rate of {LEVEL:.0%}.")
        if self.runs == 1:
            said.append(
                "Each instruction was judged once, which is no evidence about it alone: some are lost by chance. "
                "`afarm regressions` takes several runs, of several seeds, and then tests instructions too."
            )
        else:
            surely = sum(one.tally.is_regression for one in self.lost)
            said.append(
                f"Over {self.runs} runs {surely} instructions are lost at a false discovery rate of {LEVEL:.0%} among "
                f"{whole.count}; {len(self.lost)} were lost more often than won."
            )
        return said


def find_regressions(runs: Sequence[StoredRun], categories: Categories | None = None) -> Regressions:
    """Find them in the main comparisons of runs of one system. Raises `DataError` if these are not alike.

    Categories are the data set's (`dataset`); if it has one only, they are the instructions' first words.
    """
    require_other_seeds(runs)
    judged = [JudgedPair.from_row(row, str(run.directory)) for run in runs for row in run.outputs()]
    alike = {(one.pair.generator_2, one.pair.generator_1, one.annotator) for one in judged}
    if len(alike) != 1:
        what = "; ".join(f"{new} against {old}, judged by {by}" for new, old, by in sorted(alike)) or "nothing judged"
        raise DataError(f"the runs must compare one system with one reference by one annotator, and hold {what}")
    values, pairs = defaultdict[str, list[float]](list), defaultdict[str, list[JudgedPair]](list)
    for one in judged:
        if (p2 := 0.5 if one.preference.outcome == "draw" else one.p2) is not None:
            values[one.pair.instruction.id].append(p2)
            pairs[one.pair.instruction.id].append(one)
    if not values:
        raise DataError("no judgement of these runs could be read: nothing is known of wins and losses")
    tasks = {key: rows[0].pair.instruction for key, rows in pairs.items()}
    names = name_categories(tasks, categories)
    means = {key: fmean(of) for key, of in values.items()}
    grouped = defaultdict[str, list[float]](list)
    for key, mean in means.items():
        grouped[names[key]].append(mean)
    whole = with_own_interval(tally("all", means.values()), [100 * mean for mean in means.values()])
    found = with_rates([tally(name, of) for name, of in grouped.items()]) if len(grouped) > 1 else []
    singly = {t.name: t for t in with_rates([tally(key, of) for key, of in values.items()])}
    lost = [
        LostInstruction(
            singly[key],
            names[key],
            tasks[key],
            *next(
                (j.pair.output_1, j.pair.output_2) for j, p2 in zip(pairs[key], values[key], strict=True) if p2 < 0.5
            ),
        )
        for key in means
        if means[key] < 0.5
    ]
    found = sorted(found, key=lambda t: (t.p, t.win_rate))
    place = {each.name: number for number, each in enumerate(found)}  # instructions of the worst categories first
    system, reference, _ = next(iter(alike))
    return Regressions(
        system,
        reference,
        ", ".join(dict.fromkeys(str(run.record.get("judged_by") or "nobody") for run in runs)),
        len(runs),
        whole,
        found,
        sorted(lost, key=lambda one: (one.tally.p, one.tally.win_rate, place.get(one.category, 0))),
    )


def require_other_seeds(runs: Sequence[StoredRun]) -> None:
    """Raise `DataError` for runs that differ in more than their seeds, or share one."""
    first, *others = runs
    for number, run in enumerate(others, start=1):
        if same := [one.name for one in runs[:number] if one.record.get("seed") == run.record.get("seed")]:
            raise DataError(f"{same[0]} and {run.name} are of one seed: name runs of several (afarm run --seed 2)")
        found = differences(flatten(first.record.section("config")), flatten(run.record.section("config")))
        if other := [line for line in found if not line.startswith("seed:") and "absent" not in line]:
            raise DataError(f"{first.name} and {run.name} differ in more than their seeds: {'; '.join(other[:3])}")


def tally(name: str, values: Iterable[float]) -> Tally:
    """Tally probabilities that the system is better, one for each instruction or judgement."""
    values = list(values)
    won, lost = sum(v > 0.5 for v in values), sum(v < 0.5 for v in values)
    rate, n, z = fmean(values), len(values), 1.959964
    middle, half = rate + z * z / (2 * n), z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low, high = ((middle + side * half) / (1 + z * z / n) for side in (-1, 1))
    return Tally(name, n, won, lost, 100 * rate, 100 * max(0.0, low), 100 * min(1.0, high), sign_test(lost, won))


def with_own_interval(found: Tally, values: Sequence[float]) -> Tally:
    """Give a win rate, the mean of these values in percent, the interval that a run shows beside it."""
    figures = {"win_rate": found.win_rate, "standard_error": standard_error(values), "n_instructions": found.count}
    low, high = win_rate_interval(figures) or (found.low, found.high)
    return replace(found, low=low, high=high)


def sign_test(lost: int, won: int) -> float:
    """Compute the probability of so many losses or more of `lost` + `won`, if each is as likely as a win."""
    n = lost + won
    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(lost, n + 1)]
    return min(1.0, math.fsum(math.exp(log - n * math.log(2)) for log in logs))


def with_rates(tallies: Sequence[Tally]) -> list[Tally]:
    """Fill in `q`, the false discovery rate of each of m tallies (Benjamini and Hochberg)."""
    ordered, least, found = sorted(tallies, key=lambda t: -t.p), 1.0, list[Tally]()
    for number, each in enumerate(ordered):
        least = min(least, each.p * len(ordered) / (len(ordered) - number))
        found.append(replace(each, q=least))
    return found


def name_categories(tasks: Mapping[str, Instruction], categories: Categories | None) -> dict[str, str]:
    """Name the category of each instruction, by its id; those of fewer than `FEWEST` have one name."""
    if categories is None:
        has_several = len({task.dataset for task in tasks.values()}) > 1
        categories = (lambda task: task.dataset or "(none)") if has_several else first_word
    names = {key: categories(task) for key, task in tasks.items()}
    if {*names.values()} == {UNNAMED}:
        raise DataError(f"none of the {len(names):,} instructions of the runs is in the file of categories")
    counts = Counter(names.values())
    return {key: name if counts[name] >= FEWEST else OTHERS for key, name in names.items()}


def first_word(task: Instruction) -> str:
    """Return the first word of an instruction, in small letters."""
    words = task.instruction.lower().split()
    return words[0].strip(".,:;!?\"'") if words else "(none)"


def read_categories(path: str) -> Categories:
    """Read the `category` of each prompt of a file. Raises `DataError` for a row without one."""
    known, names = Tasks(), dict[str, str]()
    for where, row in read_placed_rows(path):
        task = Instruction.from_row(with_turns(row, where), where)
        if not isinstance(row.get("category"), str | int):
            raise DataError(f"{where}: has no column 'category' with a text: {', '.join(row)}")
        known.add(task)
        names[task.id] = str(row["category"])
    return lambda task: names[known.alike(task)[0].id] if task in known else UNNAMED


def write_section(record: RunRecord) -> str:
    """Write the section of a run's report; empty if it has no comparison."""
    run = StoredRun(record.directory)
    if not any(row.get("outcome") in ("decided", "draw") for row in run.outputs()):
        return ""
    found = find_regressions([run])
    table = _html_table(
        ("category", "instructions", "won", "lost", "win rate", "q"),
        [[t.name, t.count, t.won, t.lost, show_rate(t), f"{t.q:.2g}"] for t in found.categories],
    )
    worst = _html_table(
        ("category", "instruction", found.reference, found.system),
        [[one.category, show_task(one.instruction), one.reference_output, one.output] for one in found.lost[:10]],
    )
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in found.sentences())
    shown = (
        f"<p>{min(10, len(found.lost))} of the {len(found.lost)} instructions that it lost:</p>" if found.lost else ""
    )
    return f"{said}{table if found.categories else ''}{shown}{worst if found.lost else ''}"


def show_rate(found: Tally) -> str:
    """Write a win rate with its interval."""
    return f"{found.win_rate:.1f} ({found.low:.1f} to {found.high:.1f})"


def show_task(task: Instruction) -> str:
    """Write an instruction with its input."""
    return f"{task.instruction} {task.input}".strip()


def _tally_row(found: Tally) -> dict[str, Any]:
    return {name: getattr(found, name) for name in Tally.__slots__} | {"is_regression": found.is_regression}


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
