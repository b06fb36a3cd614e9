"""Rows of pairs that several people labelled, a column per person."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from afarm.core.records import JudgedPair, Pair, Row
from afarm.storage.label_scales import COLUMN, LabelReader

PAIRS = (("output_1", "output_2"), ("response1", "response2"), ("response_1", "response_2"))
"""The names that the two outputs of a labelled pair have."""

PEOPLE = re.compile(r"annotator_?\d+")


def people_columns(row: Mapping[str, Any]) -> list[str]:
    """Return the columns of people's labels, `annotator1`, `annotator2` …, by name."""
    return sorted(name for name in row if PEOPLE.fullmatch(name))


def labels_of_people(row: Row, where: str, reader: LabelReader) -> tuple[Pair, dict[str, float | None]]:
    """Read a pair and, by column, each person's win of its second output, None without an answer.

    Wins are 0 to 1. Without `generator_1` and `generator_2` the systems are the two of `cmp_key` (PandaLM's). A
    response that a table has turned into a boolean or a number is the text that it was. Raises `DataError` naming the
    place and the field.
    """
    first, second = next((names for names in PAIRS if names[0] in row and names[1] in row), PAIRS[0])
    systems = str(row.get("cmp_key") or "").split("_")
    named = dict(zip(("generator_1", "generator_2"), systems, strict=True)) if len(systems) == 2 else {}
    texts = {"output_1": _as_text(row.get(first)), "output_2": _as_text(row.get(second))}
    pair = JudgedPair.from_row({**named, **row, **texts, COLUMN: None, "annotator": ""}, where).pair
    labels = {person: reader.number(row[person], person, where, pair.identical) for person in people_columns(row)}
    return pair, {person: None if label is None else win_of_label(label) for person, label in labels.items()}


def win_of_label(label: float) -> float:
    """Return a label on afarm's scale as the win of the second output."""
    return 0.5 if label in (0, 1.5) else label - 1


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, bool | int | float) else value
