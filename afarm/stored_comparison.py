"""Stored annotations evaluated without a judge: a stage and a run like those of outputs that are judged."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from afarm.evaluation import write_results
from afarm.files import preferences_on_disk
from afarm.head_to_head import Comparison, looks_swapped
from afarm.interfaces import EvaluationInputs
from afarm.protocol import Protocol, answers_digest, instructions_digest
from afarm.records import Instruction, JudgedPair, Output
from afarm.stages import Inputs, Stage
from afarm.store import storage_errors
from afarm.stored import StoredSystem

if TYPE_CHECKING:
    from afarm.pipeline import Farm


@dataclass(frozen=True)
class StoredComparison(Comparison):
    """The stored judgements of one system. Built by `of`."""

    farm: Farm
    stored: StoredSystem
    system: str
    reference_name: str
    annotator: str

    @classmethod
    def of(cls, farm: Farm, stored: StoredSystem) -> StoredComparison:
        return cls(farm, stored, stored.system, stored.reference, stored.annotator)

    @property
    def instructions(self) -> Iterable[Instruction]:
        return (row.pair.instruction for row in preferences_on_disk(self.stored.path))

    @property
    def notes(self) -> list[str]:
        return [*self.stored.notes, *looks_swapped(self.system, self.reference_name)]

    @property
    def about(self) -> dict[str, Any]:
        return {"coverage": self.stored.coverage.to_row(), "notes": self.notes, "stored": True}

    @cached_property
    def made_from(self) -> Mapping[str, Any]:
        builder, stored = self.farm.builder, self.stored
        with stored.path.open("rb") as handle:
            rows = hashlib.file_digest(handle, "sha256").hexdigest()
        return self.farm.made_from(
            "stored annotations",
            evaluators=[builder.identity(builder.component("evaluators", name)) for name in self.evaluators],
            systems={"outputs": stored.system, "reference": stored.reference, "annotator": stored.annotator},
            data={"judgements": rows, "reference": answers_digest(stored.answers)},
        )

    def stage(self) -> Stage:
        stored = self.stored
        protocol = Protocol(
            annotator=stored.annotator,
            judges={str(number): judge for number, judge in enumerate(stored.judges)},
            reference=stored.reference,
            reference_outputs=answers_digest(stored.answers),
            instructions=instructions_digest(stored.answers),
        )

        def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
            path = directory / "judgements.jsonl"
            with storage_errors(path):
                shutil.copyfile(stored.path, path)
            judged = preferences_on_disk(path)
            given = EvaluationInputs(
                self.system, OutputsOf(judged, _system_output), OutputsOf(judged, _reference_output), judged
            )
            outcomes: Counter[str] = Counter(row.preference.outcome for row in judged)
            degraded: Counter[str] = Counter(name for row in judged for name in row.preference.degraded)
            write_results(self.farm, directory, self.evaluators, given, protocol, degraded)
            members = {self.annotator: len(judged)}
            return {"rows": len(judged), "outcomes": dict(outcomes), "members": members, "degraded": dict(degraded)}

        return Stage("evaluate", self.label, {}, self.made_from, write)


class OutputsOf(Sequence[Output]):
    """The outputs of judged pairs, each made when it is looked at."""

    def __init__(self, judged: Sequence[JudgedPair], output: Callable[[JudgedPair], Output]):
        self._judged, self._output = judged, output

    def __len__(self) -> int:
        return len(self._judged)

    def __iter__(self) -> Iterator[Output]:
        return map(self._output, self._judged)

    @overload
    def __getitem__(self, index: int) -> Output: ...

    @overload
    def __getitem__(self, index: slice) -> list[Output]: ...

    def __getitem__(self, index: int | slice) -> Output | list[Output]:
        if isinstance(index, slice):
            return [self._output(row) for row in self._judged[index]]
        return self._output(self._judged[index])


def _system_output(row: JudgedPair) -> Output:
    return Output(row.pair.instruction, row.pair.output_2, row.pair.generator_2)


def _reference_output(row: JudgedPair) -> Output:
    return Output(row.pair.instruction, row.pair.output_1, row.pair.generator_1)
