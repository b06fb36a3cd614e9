"""Stored scores of the package `rewardbench` 0.1.4: in columns, or in rows (`…_outputs.jsonl`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from afarm import DataError, Row, read_placed_rows, read_user_text
from afarm.results import finite_number
from afarm_judge_bench.items import TIE, BenchSet, Group, Item, Verdict
from afarm_judge_bench.verdicts import Verdicts


def placed_rows(path: str) -> list[tuple[str, Row]]:
    """Read the rows of a file; of one of columns, a row for each value of `id`."""
    with suppress(ValueError, OSError, RecursionError):
        document = json.loads(read_user_text(path)) if Path(path).suffix == ".json" else None
        if isinstance(document, dict) and isinstance(ids := document.get("id"), list):
            columns = [[(name, one) for one in column] for name, column in document.items() if isinstance(column, list)]
            if all(len(column) == len(ids) for column in columns):
                return [(f"{path}: {n}", dict(cells)) for n, cells in enumerate(zip(*columns, strict=True))]
    return list(read_placed_rows(path))


def read_scores(row: Row, where: str, group: Group) -> tuple[float, ...]:
    """Return the scores of a group's answers. Raises `DataError` unless each has one."""
    found = [_number(score) for score in row["scores"]] if isinstance(row.get("scores"), list) else []
    numbers = tuple(one for one in found if one is not None)
    if len(found) != len(group.texts) or len(numbers) != len(found):
        raise DataError(f"{where}: has {len(numbers)} scores, and {group.place} has {len(group.texts)} answers")
    return numbers


def read_pairs(name: str, placed: Sequence[tuple[str, Row]], bench: BenchSet) -> Verdicts:
    """Read results of pairs, row by row, if their texts are those of the pairs. Equal scores are a draw."""
    if len(placed) != len(bench.items):
        raise DataError(f"{placed[-1][0]}: is the last of {len(placed)} results, of {len(bench.items)} pairs")
    verdicts = [_verdict(*row, item) for row, item in zip(placed, bench.items, strict=True)]
    return Verdicts(name, tuple((one, one) for one in verdicts), 0)


def _verdict(where: str, row: Row, item: Item) -> Verdict:
    outputs = (item.pair.output_1, item.pair.output_2)[:: 1 if item.label < TIE else -1]
    for column, text in zip(("text_chosen", "text_rejected"), outputs, strict=True):
        if text.strip() not in str(row.get(column)):
            raise DataError(f"{where}: {column!r} does not hold that output of {item.place}: scores of another file?")
    chosen, rejected, result = (_number(row.get(name)) for name in ("scores_chosen", "scores_rejected", "results"))
    if chosen is not None and rejected is not None:
        result = TIE if chosen == rejected else float(chosen > rejected)
    if result is None or not 0 <= result <= 1:
        raise DataError(f"{where}: field 'results' is {row.get('results')!r}; it is 1 if the chosen text won, else 0")
    return TIE if result == TIE else item.label if result > TIE else 1 - item.label


def _number(value: Any) -> float | None:
    one = value[0] if isinstance(value, list) and len(value) == 1 else value
    return finite_number(one)
