"""Pairs for other labelling tools, and labels out of them: `--as TOOL` and `--import FILE`.

| tool | out: pairs to be labelled | in: its labels |
|---|---|---|
| Label Studio | tasks (JSON), and the labelling configuration (XML) | its export as JSON |
| Argilla 2 | records (JSON) for `dataset.records.from_json` | `dataset.records.to_json` |
| Potato 2 | items (JSON lines), and a configuration (YAML) | the directory `annotation_output` |

There people see responses A and B, in an order drawn for each pair by the project's seed, and answer with one of
`ANSWERS`. A task carries its pair's id and that order, by which its labels are read. Every other file of labels is read
as afarm reads annotations (AlpacaEval's, CSV, votes in an arena), and matched by its texts.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jinja2

from afarm import (
    DataError,
    Instruction,
    JudgedPair,
    Pair,
    Row,
    read_labelled_pairs,
    read_placed_rows,
    seeding,
    why_left_out,
)
from afarm_people.store import PAIR, ProjectStore

ANSWERS = {"A is better": -2, "A is slightly better": -1, "Tie": 0, "B is slightly better": 1, "B is better": 2}
"""What people answer there, and what it says of the first response shown."""
QUESTION, REASON = "preference", "reason"
Tool = Literal["label_studio", "argilla", "potato"]


@dataclass(frozen=True, slots=True)
class Answered:
    """A label of another tool. `choice` is below 0 if output_1 of the pair in the store is better."""

    pair: str
    person: str
    choice: int
    shown: str
    reason: str = ""
    seconds: float = 0.0


def write_tasks(store: ProjectStore, tool: Tool, place: Path, tie: bool) -> list[Path]:
    """Write the pairs for another tool, and its configuration beside them; return the files."""
    if place.suffix == Path(_CONFIGURATIONS.get(tool, "")).suffix != "":
        raise DataError(f"{place}: that is where the configuration of {tool} goes: end the name in .json")
    tasks = [_task(store, id, pair) for id, pair, _ in store.pairs_in_order(PAIR)]
    place.write_text(_TASKS[tool](tasks), "utf-8", "backslashreplace")
    if tool not in _CONFIGURATIONS:
        return [place]
    template = _CONFIGURATIONS[tool]
    file = place.with_suffix(Path(template).suffix)
    text = resources.files("afarm_people").joinpath("tools", template).read_text(encoding="utf-8")
    answers = [answer for answer in ANSWERS if tie or answer != "Tie"]
    file.write_text(jinja2.Template(text).render(answers=answers, tasks=place.name), encoding="utf-8")
    return [place, file]


def shown_order(store: ProjectStore, id: str) -> str:
    """The order of a pair's responses in other tools: "12" if output_1 is A."""
    return "12" if seeding.uniform(store.seed, "order elsewhere", id) < 0.5 else "21"


def _task(store: ProjectStore, id: str, pair: Pair) -> dict[str, str]:
    turns = [f"{turn.role}: {turn.content}" for turn in pair.instruction.messages]
    prompt = "\n\n".join([*turns, _joined(pair.instruction).instruction])
    order = shown_order(store, id)
    first, second = (pair.output_1, pair.output_2)[:: 1 if order == "12" else -1]
    return {"pair": f"{id}-{order}", "instruction": prompt, "response_a": first, "response_b": second}


def _argilla(tasks: Sequence[Mapping[str, str]]) -> str:
    empty: dict[str, Any] = {"metadata": {}, "suggestions": {}, "responses": {}, "vectors": {}}
    names = ("instruction", "response_a", "response_b")
    records = [{"id": task["pair"], "fields": {name: task[name] for name in names}, **empty} for task in tasks]
    return json.dumps(records, ensure_ascii=False, indent=1)


def _potato(tasks: Sequence[Mapping[str, str]]) -> str:
    text = "{instruction}\n\n--- A ---\n\n{response_a}\n\n--- B ---\n\n{response_b}"
    rows = ({"id": task["pair"], "text": text.format_map(task)} for task in tasks)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


_TASKS: Mapping[Tool, Callable[[Sequence[Mapping[str, str]]], str]] = {
    "label_studio": lambda tasks: json.dumps([{"data": task} for task in tasks], ensure_ascii=False, indent=1),
    "argilla": _argilla,
    "potato": _potato,
}
_CONFIGURATIONS = {"label_studio": "label_studio.xml", "potato": "potato.yaml"}


def write_csv(rows: Iterable[Row]) -> str:
    """Write labels as CSV: lists, as of a chat's messages, as JSON."""
    listed = list(rows)
    columns = list(dict.fromkeys(name for row in listed for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in row.items()}
        for row in listed
    )
    return text.getvalue()


def as_vote(row: Row) -> Row:
    """A label as a vote in an arena: `output_1` is `model_a`'s."""
    asked = row.get("messages") or []
    text = _joined(Instruction(row["instruction"], row.get("input") or "")).instruction
    turns = [*asked, {"role": "user", "content": text}]
    vote: dict[str, Any] = {"model_a": row.get("generator_1", ""), "model_b": row.get("generator_2", "")}
    for name, n in (("conversation_a", 1), ("conversation_b", 2)):
        vote[name] = [*turns, {"role": "assistant", "content": row[f"output_{n}"]}]
    return {**vote, "winner": {1: "model_a", 2: "model_b"}.get(row["preference"], "tie"), "judge": row["annotator"]}


def read_answers(store: ProjectStore, file: str, scale: str | None) -> tuple[list[Answered], int]:
    """Read the labels of a file that are of the store's pairs, and count those of others.

    Raises `DataError` naming a row with an answer that is none, or if no label is of these pairs.
    """
    pairs = {id: pair for id, pair, _ in store.pairs_in_order(PAIR)}
    states = sorted(Path(file).expanduser().glob("*/user_state.json"))  # of Potato's annotation_output
    try:
        placed = [(str(state), json.loads(state.read_text())) for state in states] or list(read_placed_rows(file))
    except ValueError as error:
        raise DataError(f"{file}: a user_state.json in it cannot be read: {error}") from error
    read = next((r for fields, r in _READERS if placed and all(fields <= row.keys() for _, row in placed)), None)
    if read:
        rows = [answer for where, row in placed for answer in read(row, where)]
        found = [
            Answered(id, person, choice if order == "12" else -choice, order, reason, seconds)
            for task, person, choice, reason, seconds in rows
            for id, _, order in [task.rpartition("-")]
            if id in pairs and order in ("12", "21")
        ]
        others = len(rows) - len(found)
    else:
        found, others = _read_annotations(file, scale, pairs)
    if not found:
        raise DataError(
            f"{file}: none of its {others:,} labels is of the pairs in {store.path}: they are of other pairs, or were "
            "not written by --as"
        )
    return found, others


Read = tuple[str, str, int, str, float]
"""A task's id, who labelled it, the choice as it was shown, the reason, and the seconds it took."""


def _choice(answer: Any, where: str) -> int:
    if answer not in ANSWERS:
        raise DataError(f"{where}: the answer is {answer!r}; it must be one of: {', '.join(ANSWERS)}")
    return ANSWERS[answer]


def _from_label_studio(row: Row, where: str) -> Iterator[Read]:
    """Of an export: annotations that were not cancelled. Predictions are no labels."""
    for annotation in row["annotations"]:
        if annotation.get("was_cancelled") or not annotation.get("result"):
            continue
        given = {one["from_name"]: one["value"] for one in annotation["result"]}
        choices = given.get(QUESTION, {}).get("choices", [None])
        by = annotation.get("completed_by")
        person = str(by.get("email") or by.get("id") if isinstance(by, dict) else by)
        reason, seconds = " ".join(given.get(REASON, {}).get("text", [])), float(annotation.get("lead_time") or 0)
        yield row["data"].get("pair", ""), person, _choice(choices[0], where), reason, seconds


def _from_argilla(row: Row, where: str) -> Iterator[Read]:
    reasons = {one["user_id"]: one["value"] for one in row["responses"].get(REASON, [])}
    for one in row["responses"].get(QUESTION, []):
        person = str(one["user_id"])
        yield str(row["id"]), person, _choice(one["value"], where), str(reasons.get(person) or ""), 0.0


def _from_potato(row: Row, where: str) -> Iterator[Read]:
    for id, given in row["instance_id_to_label_to_value"].items():
        answers = {label["schema"]: (label["name"], value) for label, value in given}
        if QUESTION in answers:
            answer = _choice(answers[QUESTION][0], where)
            yield id, str(row["user_id"]), answer, str(answers.get(REASON, ("", ""))[1]), 0.0


_READERS: Sequence[tuple[set[str], Callable[[Row, str], Iterator[Read]]]] = (
    ({"data", "annotations"}, _from_label_studio),
    ({"fields", "responses"}, _from_argilla),
    ({"user_id", "instance_id_to_label_to_value"}, _from_potato),
)
"""The fields by which the rows of a tool are known, and their reader."""


def _read_annotations(file: str, scale: str | None, pairs: Mapping[str, Pair]) -> tuple[list[Answered], int]:
    """Read labels in a form that afarm knows; the nth nameless one of a pair is an nth person's."""
    found, others, nameless = list[Answered](), 0, Counter[str]()
    known = {replace(pair, instruction=_joined(pair.instruction)).id: id for id, pair in pairs.items()}
    known.update((id, id) for id in pairs)
    for _, row, judged in read_labelled_pairs(file, scale):
        for one in judged:
            if why_left_out(one):
                continue
            if (id := known.get(replace(one.pair, occurrence=0).id)) is None:
                others += 1
                continue
            person = str(one.annotator or row.get("judge") or "")
            nameless[id] += not person
            found.append(_answered(pairs[id], one, person or f"{Path(file).stem}-{nameless[id]}", row))
    return found, others


def _joined(asked: Instruction) -> Instruction:
    """A task with its input in one text, as forms without an input hold it."""
    return replace(asked, instruction=f"{asked.instruction}\n\n{asked.input}", input="") if asked.input else asked


def _answered(pair: Pair, one: JudgedPair, person: str, row: Row) -> Answered:
    win = 0.5 if one.win is None else one.win
    size = 1 if one.preference.strength == 0.5 else 2
    choice = 0 if win == 0.5 else size if win > 0.5 else -size
    shown = one.preference.order if one.preference.order in ("12", "21") else "12"
    if pair.output_1 != one.pair.output_1:
        choice, shown = -choice, shown[::-1]
    seconds = float(row.get("time_per_example") or 0)
    return Answered(replace(pair, occurrence=0).id, person, choice, shown, str(row.get("reason") or ""), seconds)
