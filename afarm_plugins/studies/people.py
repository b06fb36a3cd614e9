"""Files of pairs that people and judges labelled: one row per pair, told by its fields."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from afarm import (
    HUMANS,
    ConfigError,
    DataError,
    Label,
    Row,
    named_file,
    named_files,
    people_columns,
    read_labels,
    read_placed_rows,
)

PEOPLE = "people"
"""The name of all people together in tables."""

JUDGED = re.compile(r"preference|label|\w+_result")
"""The column of a judge's label."""

DRAWS = {"0", "1.5", "tie", "draw"}


@dataclass(frozen=True, slots=True)
class PairOfPeople:
    """A pair of two systems' `outputs` to a task, and by each rater the win of the second: 0, 0.5 or 1.

    A rater without an answer is absent.
    """

    systems: tuple[str, str]
    task: Hashable
    outputs: tuple[str, str]
    wins: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PairsOfPeople:
    """The pairs that people labelled, by the key that judges' files share; people's and judges' names.

    `unanswered` counts each judge's labels that are no verdict.
    """

    by_key: Mapping[Hashable, PairOfPeople]
    people: Sequence[str]
    judges: Sequence[str]
    unanswered: Mapping[str, int]

    @property
    def systems(self) -> list[str]:
        """The systems, by name."""
        return sorted({system for game in self.by_key.values() for system in game.systems})

    def board(self, raters: Sequence[str]) -> list[list[float]]:
        """Return each system's mean win for each task, [systems, tasks]; NaN without an answer.

        Raters count alike in a pair, pairs in a task.
        """
        cells: dict[tuple[str, Hashable], list[float]] = {}
        tasks = list(dict.fromkeys(game.task for game in self.by_key.values()))
        for game in self.by_key.values():
            if answers := [game.wins[rater] for rater in raters if rater in game.wins]:
                second = fmean(answers)
                for system, win in zip(game.systems, (1 - second, second), strict=True):
                    cells.setdefault((system, game.task), []).append(win)
        return [
            [fmean(cells[system, task]) if (system, task) in cells else math.nan for task in tasks]
            for system in self.systems
        ]

    def answered(self, rater: str) -> int:
        """Count the pairs that a rater has an answer to."""
        return sum(rater in game.wins for game in self.by_key.values())


def require_both(humans: str, judged: Sequence[str]) -> None:
    """Raise `ConfigError` for a file of people's labels without one of a judge, and the other way round."""
    if judged and not humans:
        raise ConfigError(["--judged names judges of pairs that people labelled: name that file with --humans"])
    if humans and not judged:
        raise ConfigError(["--humans needs judges to compare with: --judged FILE, or NAME=FILE"])


def read_people(humans: str, judged: Sequence[str]) -> PairsOfPeople:
    """Read pairs with people's labels, and files of judges on the same pairs (FILE or NAME=FILE).

    A pair's systems are its `generator_1` and `generator_2`, or the two of `cmp_key` (PandaLM's); rows of several files
    are joined by `idx`, or else by the pair itself. Raises `DataError` naming file, row and field.
    Raises `ConfigError` for a judge that has the name of another rater.
    """
    games: dict[Hashable, PairOfPeople] = {}
    people: dict[str, None] = {}
    for where, row in read_placed_rows(humans):
        columns = people_columns(row)
        if not columns:
            raise DataError(f"{where}: has no label of a person; call its columns annotator1, annotator2 …")
        game = _read_pair(row, where)
        for column in columns:
            if (win := _win(row[column])) is not None:
                game.wins[column] = win
            elif row[column] not in (None, ""):
                raise DataError(f"{where}: field {column!r} is {row[column]!r:.40}; a label is 1, 2 or 0 for a draw")
        people |= dict.fromkeys(columns)
        if games.setdefault(key := _key(row, where), game) is not game:
            raise DataError(f"{where}: the pair {key!r:.60} stands there twice")
    named = named_files("judged", judged, taken=(PEOPLE, HUMANS, *people))
    unanswered = {name: _add_judge(games, name, file) for name, file in named.items()}
    return PairsOfPeople(games, list(people), list(named), unanswered)


def read_all_labels(humans: str, judged: Sequence[str]) -> dict[str, list[Label]]:
    """Read the labels of people, under `HUMANS`, and of each judge (FILE or NAME=FILE).

    The people's file has a column per person, as in `read_people`, or a row per label. In the second case the judges'
    files have a row per label too, and a judge without a NAME is called by its annotator.

    Raises `DataError`, and `ConfigError` if two raters have the same name.
    """
    _, first = next(iter(read_placed_rows(humans)), ("", {}))
    if people_columns(first):
        games = read_people(humans, judged)
        labels: dict[str, list[Label]] = {name: [] for name in (HUMANS, *games.judges)}
        for key, game in games.by_key.items():
            for rater, win in game.wins.items():
                name = HUMANS if rater in games.people else rater
                labels[name].append(Label(repr(key), name, win, True, *game.outputs, *game.systems))
        return labels
    labels = {HUMANS: read_labels([humans], [humans])[HUMANS]}
    named_files("judged", [text for text in judged if named_file(text)[1] != text], taken=(PEOPLE, HUMANS))
    for text in judged:
        name, file = named_file(text)
        for annotator, given in read_labels([file]).items():
            labels.setdefault(name if text != file else annotator, []).extend(given)
    return labels


def _add_judge(games: Mapping[Hashable, PairOfPeople], name: str, file: str) -> int:
    """Add a judge's wins to the games. Returns how many labels are no verdict."""
    answers, silent = 0, Counter[str]()
    for where, row in read_placed_rows(file):
        column = next((column for column in row if JUDGED.fullmatch(column)), "")
        if not column:
            raise DataError(f"{where}: has no label; call its column 'preference', with 1 or 2 for the better output")
        game = games.get(_key(row, where))
        if game is None:
            continue
        win = _win(row[column])
        if win is None:
            silent[str(row[column])] += 1
        else:
            game.wins[name] = win
            answers += 1
    if not answers:
        raise DataError(f"{file}: none of its rows has a label for a pair that people labelled (joined by 'idx')")
    if silent.total() > answers:
        raise DataError(f"{file}: most labels are none, such as {next(iter(silent))!r:.40}: they are 1, 2 or 0")
    return silent.total()


def _read_pair(row: Row, where: str) -> PairOfPeople:
    """Return the pair that a row is about, without labels."""
    systems = [str(row[name]) for name in ("generator_1", "generator_2") if name in row]
    if len(systems) != 2:
        names = str(row.get("cmp_key", "")).split("_")
        systems = names if all(names) else []
    if len(systems) != 2:
        raise DataError(f"{where}: its systems have no name: give 'generator_1' and 'generator_2'")
    if "instruction" not in row:
        raise DataError(f"{where}: field 'instruction' is missing; its fields are {', '.join(map(repr, row))}")
    task = str(row["instruction"]), str(row.get("input") or "")
    first, second = (
        next((str(row[name]) for name in names if name in row), "")
        for names in (("output_1", "response1"), ("output_2", "response2"))
    )
    return PairOfPeople((systems[0], systems[1]), task, (first, second))


def _key(row: Row, where: str) -> Hashable:
    if "idx" in row:
        return str(row["idx"])
    pair = _read_pair(row, where)
    return pair.systems, pair.task, pair.outputs


def _win(label: Any) -> float | None:
    """Return the second's win by a label: 1, 2, a number between, or a draw; None for any other."""
    text = str(label).strip().casefold()
    if text in DRAWS:
        return 0.5
    try:
        number = float(text)
    except ValueError:
        return None
    return number - 1 if 1 <= number <= 2 else None
