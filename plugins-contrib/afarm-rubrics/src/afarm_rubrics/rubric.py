"""The file of a rubric: weighted criteria for all tasks, and for single tasks.

criteria:
  - {name: number, text: The answer gives a number., weight: 2}
  - {name: lists, text: The answer has a bulleted list., weight: -1}    # a pitfall
  - The answer is polite.                                               # weight 1
tasks: tasks.jsonl          # rows with a prompt and a column `rubric`; or a list of such rows
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError, field_validator, model_validator

from afarm import (
    Config,
    ConfigError,
    Instruction,
    Tasks,
    explain_validation_error,
    read_config_file,
    read_placed_rows,
    seeding,
    setting,
    with_turns,
)

MOST_CRITERIA, LONGEST_TEXT = 100, 1000
SHORT = 60
"""Characters of the name of a criterion that has none: its text, cut."""
OTHER_NAMES = {"criterion": "text", "description": "text", "points": "weight", "title": "name"}
"""Fields of criteria as published data sets of rubrics call them (HealthBench, Rubrics as Rewards)."""
COLUMNS = ("rubric", "rubrics", "criteria")
EVEN = 1e-9
"""Scores that differ by less are equal."""


class Criterion(Config):
    """A criterion, which an answer meets or does not."""

    name: str = setting("", "what tables call it; left out: its text, cut")
    text: str = setting(..., "what an answer meets or does not, in words", max_length=LONGEST_TEXT)
    weight: float = setting(1.0, "points for an answer that meets it; below 0 for a pitfall", ge=-1e6, le=1e6)

    @model_validator(mode="before")
    @classmethod
    def _a_text_is_a_criterion(cls, given: object) -> object:
        given = {"text": given} if isinstance(given, str) else given
        if not isinstance(given, dict):
            return given
        given = {OTHER_NAMES.get(name, name): value for name, value in given.items()}
        words = " ".join(str(given.get("text", "")).split())
        return {"name": words if len(words) <= SHORT else f"{words[: SHORT - 1]}…", **given}

    @field_validator("text")
    @classmethod
    def _says_something(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("is empty: say in words what an answer meets or does not")
        return text


def check_criteria(criteria: list[Criterion]) -> list[Criterion]:
    """Return the criteria. Raises `ValueError` for equal names or texts, or if none has a weight."""
    for what in ("name", "text"):
        values = [" ".join(str(getattr(one, what)).split()) for one in criteria]
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise ValueError(f"two criteria have the {what} {twice[0]!r:.80}: give each its own, or drop one")
    if criteria and not any(one.weight for one in criteria):
        raise ValueError("the weights are all 0, so that every answer would get the same score")
    if len(criteria) > MOST_CRITERIA:
        raise ValueError(f"{len(criteria)} criteria: a judge reads {MOST_CRITERIA} for an answer at most")
    return criteria


Criteria = Annotated[list[Criterion], AfterValidator(check_criteria)]


class TaskCriteria(Config):
    """A task with its own criteria."""

    instruction: str = setting(..., "the instruction")
    input: str = setting("", "its input")
    criteria: Criteria = setting(..., "the criteria of this task, in place of the general ones", min_length=1)


class Induced(Config):
    """The labels that a rubric was induced from."""

    labels: str = setting(..., "a digest of the labels")
    seed: int = setting(0, "the seed that split them")
    held_out: float = setting(0.5, "the share of instructions that were held out", gt=0, lt=1)


class RubricFile(Config):
    """The file of a rubric."""

    criteria: Criteria = setting([], "criteria of the tasks that have none of their own")
    tasks: str | list[TaskCriteria] = setting([], "tasks with criteria of their own, or a file with a column `rubric`")
    log_odds: float | None = setting(None, "log odds of being preferred for each point of difference, if measured")
    induced: Induced | None = setting(None, "the labels that it was induced from")

    @model_validator(mode="after")
    def _has_criteria(self) -> RubricFile:
        if not self.criteria and not self.tasks:
            raise ValueError("it has no criteria: list some under `criteria`, or tasks with their own under `tasks`")
        return self


@dataclass(frozen=True)
class Rubric:
    """A rubric's file, and the criteria of single tasks, found however their instruction is written."""

    path: str
    file: RubricFile
    by_task: Mapping[str, Sequence[Criterion]]
    tasks: Tasks

    def of(self, instruction: Instruction) -> Sequence[Criterion]:
        """Return the criteria of a task. Raises `ConfigError` if it has none and there are no general ones."""
        own = self.own(instruction) or self.file.criteria
        if not own:
            task = f"{self.path}: no criteria for the task {instruction.instruction!r:.80}"
            raise ConfigError([f"{task}: add some under `tasks`, or general ones under `criteria`"])
        return own

    def own(self, instruction: Instruction) -> Sequence[Criterion]:
        """Return the criteria that a task has of its own."""
        alike = self.tasks.alike(instruction) if self.by_task else ()
        return self.by_task[alike[0].id] if alike else ()

    @property
    def digest(self) -> str:
        """Changes with every criterion and every weight."""
        rows = {task: [one.model_dump() for one in own] for task, own in sorted(self.by_task.items())}
        return seeding.digest("rubric", [one.model_dump() for one in self.file.criteria], rows)


def score(criteria: Sequence[Criterion], met: Sequence[bool]) -> float:
    """Return the points of an answer as a share of those to be had: 1 is all of them and no pitfall.

    Pitfalls take points off, so that it may be below 0. If all are pitfalls, it is from −1 to 0.
    """
    earned = math.fsum(one.weight for one, is_met in zip(criteria, met, strict=True) if is_met)
    return earned / (points(criteria) or 1.0)


def points(criteria: Sequence[Criterion]) -> float:
    """Return the points to be had; of pitfalls alone, those to be lost."""
    won = math.fsum(one.weight for one in criteria if one.weight > 0)
    return won or math.fsum(-one.weight for one in criteria)


def write_text(rubric: Rubric) -> str:
    """Write the general criteria as a text for a judge. Raises `ConfigError` if there are none."""
    if not rubric.file.criteria:
        raise ConfigError([f"{rubric.path}: has no general criteria, and a text is about all tasks: add `criteria`"])
    lines = [f"- {' '.join(one.text.split())} ({one.weight:+g})" for one in rubric.file.criteria]
    head = "Go by these criteria. The number is what meeting one adds to the mark, or takes off:"
    return "\n".join([head, *lines])


def read_rubric(spec: str) -> Rubric:
    """Read a rubric's file, and the file of tasks that it names. Raises `ConfigError` with all problems."""
    if not spec:
        raise ConfigError(["name the rubric's file after a colon: --annotator rubric:rubric.yaml"])
    path = Path(spec).expanduser()
    file = read_config_file(path, RubricFile)
    if isinstance(named := file.tasks, str):
        listed = _read_tasks(named if named.startswith("hf:") else str(path.parent / Path(named).expanduser()))
    else:
        listed = [(Instruction(row.instruction, row.input), row.criteria) for row in named]
    rubric = Rubric(spec, file, {task.id: own for task, own in listed}, Tasks())
    for task, _ in listed:
        if task in rubric.tasks:
            raise ConfigError([f"{path}: tasks: {task.instruction!r:.60} is there twice: drop one"])
        rubric.tasks.add(task)
    return rubric


def _read_tasks(source: str) -> list[tuple[Instruction, list[Criterion]]]:
    """Read the rows of a file that have criteria. Raises `ConfigError` naming a wrong row."""
    found = []
    for where, row in read_placed_rows(source):
        column = next((name for name in COLUMNS if row.get(name)), "")
        if not column:
            continue
        known = {*Criterion.model_fields, *OTHER_NAMES}
        listed: Any = row[column]
        if isinstance(listed, list):  # published ones have further columns, such as tags
            listed = [{n: v for n, v in one.items() if n in known} if isinstance(one, dict) else one for one in listed]
        instruction = Instruction.from_row(with_turns(row, where), where)
        try:
            own = TaskCriteria.model_validate({"instruction": instruction.instruction, "criteria": listed})
        except ValidationError as error:
            named = f"{where}: {column}: "
            raise ConfigError(explain_validation_error(error, TaskCriteria, named, unknown="unknown field")) from error
        found.append((instruction, own.criteria))
    if not found:
        raise ConfigError([f"{source}: no row has a column {' or '.join(COLUMNS)}: list a task's criteria there"])
    return found
