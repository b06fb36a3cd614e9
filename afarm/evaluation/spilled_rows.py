"""Rows of annotation files kept on disk by system, and what evaluators are given of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, overload

from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import JudgedPair, Output
from afarm.evaluation.annotation_files import RowSink
from afarm.storage.rows import preferences_on_disk, write_rows

T = TypeVar("T")

BUFFER = 8 << 20
"""Characters held before they are written."""


def stored_inputs(system: str, judged: Sequence[JudgedPair]) -> EvaluationInputs:
    """Return what an evaluator of one system is given of its judgements: `system` is output_2."""
    return EvaluationInputs(system, LazyMap(judged, _system_output), LazyMap(judged, _reference_output), judged)


class LazyMap(Sequence[T]):
    """A part of each judged pair, made when it is looked at."""

    def __init__(self, judged: Sequence[JudgedPair], of: Callable[[JudgedPair], T]):
        self._judged, self._of = judged, of

    def __len__(self) -> int:
        return len(self._judged)

    def __iter__(self) -> Iterator[T]:
        return map(self._of, self._judged)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._of(row) for row in self._judged[index]]
        return self._of(self._judged[index])


def _system_output(row: JudgedPair) -> Output:
    return Output(row.pair.instruction, row.pair.output_2, row.pair.generator_2)


def _reference_output(row: JudgedPair) -> Output:
    return Output(row.pair.instruction, row.pair.output_1, row.pair.generator_1)


class SpillToDisk(RowSink[Path]):
    """Rows kept as they are, in files below `directory`."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._files = 0
        self._buffers: dict[Path, list[str]] = {}
        self._held = 0

    def new_part(self) -> Path:
        self._files += 1
        path = self._directory / f"{self._files}.jsonl"
        path.touch()
        return path

    def add(self, part: Path, judged: JudgedPair) -> None:
        line = json.dumps(judged.to_row(), ensure_ascii=False)
        self._buffers.setdefault(part, []).append(line)
        self._held += len(line)
        if self._held > BUFFER:
            self._flush()

    def merge(self, parts: Sequence[tuple[Path, bool]]) -> Path:
        self._flush()
        if len(parts) == 1 and not parts[0][1]:
            return parts[0][0]
        path = self.new_part()
        write_rows(path, (row.to_row() for part, swap in parts for row in _judged(part, swap)))
        return path

    def _flush(self) -> None:
        for path, lines in self._buffers.items():
            with path.open("a", encoding="utf-8", errors="backslashreplace") as handle:
                handle.writelines(f"{line}\n" for line in lines)
        self._buffers.clear()
        self._held = 0


def _judged(path: Path, swap: bool) -> Iterator[JudgedPair]:
    for row in preferences_on_disk(path):
        yield JudgedPair(row.pair.swapped(), row.preference.swapped(), row.annotator) if swap else row
