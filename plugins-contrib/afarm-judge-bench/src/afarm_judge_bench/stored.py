"""Stored answers of JudgeBench, PandaLM and RewardBench: joined by id, each reply read anew."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from afarm import DataError, Row
from afarm_judge_bench.items import FIRST, SECOND, TIE, BenchSet, Group, Item, Verdict
from afarm_judge_bench.reward_bench import placed_rows, read_pairs, read_scores
from afarm_judge_bench.verdicts import Verdicts

MARK = re.compile(r"\[\[(A>{1,2}B|B>{1,2}A|A=B)\]\]")
"""A verdict as Arena-Hard's prompt asks for it: [[A>>B]], [[A>B]], [[A=B]], [[B>A]] or [[B>>A]]."""
DECISIONS: Mapping[str | None, Verdict] = {"A>B": FIRST, "B>A": SECOND, "A=B": TIE, None: None}
PANDALM = {"1": FIRST, "2": SECOND, "0": TIE, "tie": TIE}


def read_reply(text: str) -> str | None:
    """Return the decision of a reply to Arena-Hard's prompt: A>B, B>A or A=B.

    None if it has no mark, or contradicts itself by two different ones.
    """
    marks = {*MARK.findall(text)}
    return marks.pop().replace(">>", ">") if len(marks) == 1 else None


def read_stored(name: str, path: str, bench: BenchSet) -> Verdicts:
    """Read stored answers about the items of a set.

    Replies and scores are read anew; where a stored decision is another one, a note names the place. Raises
    `DataError` naming file and row if ids are unknown, missing or there twice, or labels are not the set's.
    """
    placed = placed_rows(path)
    if not bench.groups and placed and "text_rejected" in placed[0][1]:
        return read_pairs(name, placed, bench)
    rows: Sequence[Item | Group] = bench.groups or bench.items
    items = {row.id: number for number, row in enumerate(rows)}
    found: dict[int, tuple[Any, ...]] = {}
    notes: list[str] = []
    orders = 2
    for where, row in placed:
        key = next((column for column in ("pair_id", "idx", "id") if column in row), None)
        held = "scores" if bench.groups else "judgments"
        if key is None or not (held in row or any(column.endswith("_result") for column in row)):
            raise DataError(
                f"{where}: is no stored answer: JudgeBench's have pair_id and judgments, PandaLM's idx and a column "
                f"that ends in _result, RewardBench's text_chosen and text_rejected, or id and scores; it has "
                f"{', '.join(map(repr, row))}. Answers in afarm's or AlpacaEval's form: --judge replay:FILE"
            )
        number = items.get(str(row[key]))
        if number is None:
            raise DataError(f"{where}: {key} {row[key]!r} is none of {bench.name}: answers about another file?")
        if number in found:
            raise DataError(f"{where}: {key} {row[key]!r} was answered before: leave one of both out")
        if bench.groups:
            found[number] = read_scores(row, where, bench.groups[number])
        elif "judgments" in row:
            found[number] = _read_judgments(row, where, bench.items[number], notes)
            orders = min(orders, len(row["judgments"]))
        else:
            found[number], orders = (_read_result(row, where), None), 1
    if missing := [row for number, row in enumerate(rows) if number not in found]:
        raise DataError(
            f"{path}: has no answer about {missing[0].id} ({missing[0].place}), and about {len(missing)} rows in all"
        )
    read: tuple[Any, ...] = tuple(found[number] for number in range(len(rows)))
    return Verdicts(name, orders=0, scores=read) if bench.groups else Verdicts(name, read, orders, notes=tuple(notes))


def _read_judgments(row: Row, where: str, item: Item, notes: list[str]) -> tuple[Verdict, Verdict]:
    if "label" in row and DECISIONS.get(row["label"]) != item.label:
        raise DataError(f"{where}: its label is {row['label']!r}, and that in {item.place} is not: another version?")
    judgments = row["judgments"]
    if not isinstance(judgments, list) or not 1 <= len(judgments) <= 2:
        raise DataError(f"{where}: field 'judgments' must be a list of one answer per order, of at most two")
    verdicts = [_read_one(one, f"{where}, order {order}", notes) for order, one in enumerate(judgments, start=1)]
    first, other = [*verdicts, None][:2]
    return first, None if other is None else 1 - other  # the second saw the outputs turned round


def _read_one(judgment: Any, where: str, notes: list[str]) -> Verdict:
    """Read one answer, in the order that it was shown."""
    if not isinstance(judgment, Mapping):
        raise DataError(f"{where}: must be an object with a response or scores, not {judgment!r}")
    nested = judgment.get("judgment")
    held = nested if isinstance(nested, Mapping) else judgment
    reply, scores = held.get("response"), held.get("scores")
    read: str | None
    if isinstance(scores, Sequence) and len(scores) == 2:
        read = "A=B" if scores[0] == scores[1] else "A>B" if scores[0] > scores[1] else "B>A"
    elif isinstance(reply, str):
        read = read_reply(reply)
    elif judgment.get("decision") in DECISIONS and "decision" in judgment:
        return DECISIONS[judgment["decision"]]  # prompts of other forms: the decision alone
    else:
        raise DataError(f"{where}: has neither a response, nor two scores, nor a decision")
    if "decision" in judgment and read != judgment["decision"]:
        notes.append(f"{where}: read as {read}, stored as {judgment['decision']}")
    return DECISIONS[read]


def _read_result(row: Row, where: str) -> Verdict:
    columns = [column for column in row if column.endswith("_result")]
    if len(columns) != 1:
        raise DataError(f"{where}: has the results of several judges, {', '.join(columns)}: keep one column")
    return PANDALM.get(str(row[columns[0]]).strip().lower())
