"""The part of a ledger that labels were read from: answers and judgements, as rows of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial

from afarm.results import Ledger, Transaction, column_names, query_chunks

ANSWERS, JUDGEMENTS = column_names("completions"), column_names("judgements")


def slice_ledger(ledger: Ledger, keys: Iterable[str]) -> tuple[bytes, bytes]:
    """Return the answers with these keys, and the judgements read from them."""
    ordered = sorted(set(keys))
    answers = _lines(ledger, "completions", ANSWERS, "key", ordered)
    return answers, _lines(ledger, "judgements", JUDGEMENTS, "completion", ordered)


def restore_slice(ledger: Ledger, answers: bytes, judgements: bytes) -> None:
    """Put a slice into an empty ledger. Raises `ValueError` for what is no slice."""
    for table, columns, lines in (("completions", ANSWERS, answers), ("judgements", JUDGEMENTS, judgements)):
        rows = [_values(json.loads(line), columns) for line in lines.decode("utf-8").splitlines()]
        marks = ",".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        ledger.database.write(partial(_insert, statement=statement, rows=rows))


def _insert(db: Transaction, statement: str, rows: Sequence[Sequence[object]]) -> None:
    db.executemany(statement, rows)


def _values(row: object, columns: Sequence[str]) -> list[object]:
    if not isinstance(row, dict) or set(row) != set(columns):
        raise ValueError("a row of its ledger has other columns")
    if any(isinstance(value, list | dict) for value in row.values()):
        raise ValueError("a row of its ledger holds no plain values")
    return [row[column] for column in columns]


def _lines(ledger: Ledger, table: str, columns: Sequence[str], by: str, keys: Sequence[str]) -> bytes:
    """Return the rows whose column `by` is one of `keys`, as sorted lines of JSON."""
    texts = []
    for chunk, marks in query_chunks(keys):
        for row in ledger.read(f"SELECT {', '.join(columns)} FROM {table} WHERE {by} IN ({marks})", list(chunk)):
            named = dict(zip(columns, row, strict=True))
            texts.append(json.dumps(named, ensure_ascii=False, sort_keys=True))
    return "".join(f"{text}\n" for text in sorted(texts)).encode()
