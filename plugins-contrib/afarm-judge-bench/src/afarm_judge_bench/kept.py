"""A file of measured judges: their figures, and every row with what each judge said."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from afarm import Row, write_whole
from afarm.results import json_text
from afarm_judge_bench.best_of import best_of, margins
from afarm_judge_bench.items import TIE, BenchSet, Group, Item
from afarm_judge_bench.measure import score_values
from afarm_judge_bench.sets import TIES
from afarm_judge_bench.verdicts import Verdicts


def write_measured(path: Path, figures: Mapping[str, Any], found: Sequence[Verdicts], bench: BenchSet) -> None:
    """Write figures and rows. Raises `StoreError` if it cannot be written."""
    document = {**figures, "afarm_version": version("afarm"), "created": time.time(), "items": rows_of(found, bench)}
    write_whole(path, json_text(document) + "\n", "make room or fix the rights, then again: it buys nothing")


def rows_of(found: Sequence[Verdicts], bench: BenchSet) -> list[Row]:
    """Return each row of a set: outputs, which are right, and by judge what it said and its credit.

    A judge says of a pair its verdicts in both orders (1: the second output is better, None: unread), of a group a
    score of each answer. A credit is from 0 to 1, by the set's own scoring; of RewardBench 2's ties it is 1 if all
    right answers score higher than the wrong ones.
    """
    rows: list[Row] = []
    credits = {} if bench.groups else {one.name: score_values(one, bench) for one in found}
    held: list[Item | Group] = [*bench.groups, *bench.items]
    for n, row in enumerate(held):
        if isinstance(row, Group):
            pair, texts, right = row.pairs[0], row.texts, [*range(row.correct)]
            said: dict[str, Any] = {one.name: one.scores[n] for one in found}
            is_tie = row.subset.lower() == TIES
            credit = {k: float(margins(v, row.correct)[0] > 0) if is_tie else best_of(v) for k, v in said.items()}
        else:
            pair, texts = row.pair, (row.pair.output_1, row.pair.output_2)
            right = [] if row.label == TIE else [round(row.label)]
            said = {one.name: one.pairs[n][: max(one.orders, 1)] for one in found}
            credit = {name: values[n] for name, values in credits.items()}
        head = {"id": row.id, "subset": row.subset, **pair.instruction.to_row(), "outputs": texts, "right": right}
        rows.append({**head, "label": getattr(row, "label", None), "judges": said, "credit": credit})
    return rows
