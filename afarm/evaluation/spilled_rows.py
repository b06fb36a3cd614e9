"""Rows of annotation files kept on disk by system, and what evaluators are given of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import JudgedPair, Output
from afarm.storage.rows import read_placed_rows, write_rows

T = TypeVar("T")

BUFFER = 8 << 20
"""Characters held before they are written."""


def stored_inputs(system: str, judged: Sequence[JudgedPair], human: Sequence[JudgedPair] = ()) -> EvaluationInputs:
    """Return what an evaluator of one system, output_2, is given of its judgements and of those by people."""
    outputs = LazyMap(judged, lambda row: Output(row.pair.instruction, row.pair.output_2, row.pair.generator_2))
    reference = LazyMap(judged, lambda row: Output(row.pair.instruction, row.pair.output_1, row.pair.generator_1))
    return EvaluationInputs(system, outputs, reference, judged, human=human)


def read_each(path: Path) -> Iterator[JudgedPair]:
    """Read the judged pairs of a file, one held at a time."""
    return (JudgedPair.from_row(row, where) for where, row in read_placed_rows(path))


class LazyMap(Sequence[T]):
    """A part of each judged pair, made when it is looked at."""

    def __init__(self, judged: Sequence[JudgedPair], of: Callable[[JudgedPair], T]):
        self._judged, self._of = judged, of

    def __len__(self) -> int:
        return len(self._judged)

    def __iter__(self) -> Iterator[T]:
        return map(self._of, self._judged)

    def __getitem__(self, index: Any) -> Any:
        found = self._judged[index]
        return [self._of(row) for row in found] if isinstance(index, slice) else self._of(found)


class SpilledRows:
    """Rows kept unchanged in files of `directory`: one file for rows that belong together."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._files = 0
        self._buffers: dict[Path, list[str]] = {}
        self._held = 0

    def new_file(self) -> Path:
        self._files += 1
        path = self._directory / f"{self._files}.jsonl"
        path.write_text("")  # what an earlier reading left is not added to
        return path

    def add(self, path: Path, judged: JudgedPair) -> None:
        """Add a row to a file; it is there after `flush`."""
        line = json.dumps(judged.to_row(), ensure_ascii=False)
        self._buffers.setdefault(path, []).append(line)
        self._held += len(line)
        if self._held > BUFFER:
            self.flush()

    def merge(self, parts: Sequence[tuple[Path, bool]]) -> Path:
        """Return a file with the rows of (file, swap)s, both sides exchanged if `swap`."""
        self.flush()
        if len(parts) == 1 and not parts[0][1]:
            return parts[0][0]
        path = self.new_file()
        rows = (
            JudgedPair(row.pair.swapped(), row.preference.swapped(), row.annotator) if swap else row
            for part, swap in parts
            for row in read_each(part)
        )
        write_rows(path, (row.to_row() for row in rows))
        return path

    def flush(self) -> None:
        for path, lines in self._buffers.items():
            with path.open("a", encoding="utf-8", errors="backslashreplace") as handle:
                handle.writelines(f"{line}\n" for line in lines)
        self._buffers.clear()
        self._held = 0
