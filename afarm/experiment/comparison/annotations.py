"""Stored annotations evaluated without a judge, as a stage and a run."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from afarm.core.records import Instruction, JudgedPair
from afarm.core.seeding import digest
from afarm.evaluation.annotation_files import AnnotatedSystem
from afarm.evaluation.matching import counted, looks_swapped
from afarm.evaluation.metrics import BY_PEOPLE
from afarm.evaluation.protocol import answers_digest
from afarm.evaluation.spilled_rows import LazyMap, stored_inputs
from afarm.experiment.comparison.outputs import SystemComparison
from afarm.experiment.evaluation_stages import write_results
from afarm.experiment.stage import Inputs, Stage
from afarm.experiment.workspace import Workspace
from afarm.storage.contents import file_digest
from afarm.storage.disk import storage_errors
from afarm.storage.rows import preferences_on_disk


@dataclass(frozen=True)
class AnnotationComparison(SystemComparison):
    """The stored judgements of one system, with `people`'s labels of some instructions if there are any."""

    workspace: Workspace
    stored: AnnotatedSystem
    system: str
    reference_name: str
    annotator: str
    people: Sequence[JudgedPair] = field(default=(), compare=False)

    @property
    def offered(self) -> frozenset[str]:
        # A file may have ratings: its rows will tell.
        return frozenset({"judgements", "ratings", "human"} if self.people else {"judgements", "ratings"})

    @cached_property
    def evaluators(self) -> list[str]:
        return list(dict.fromkeys([*super().evaluators, *([BY_PEOPLE] if self.people else [])]))

    @property
    def instructions(self) -> Sequence[Instruction]:
        return LazyMap(preferences_on_disk(self.stored.rows), lambda row: row.pair.instruction)

    @property
    def notes(self) -> list[str]:
        stored, coverage = self.stored, self.stored.coverage
        found = []
        if stored.swapped:
            rows = counted(stored.swapped, "row")
            found.append(f"{self.system}: {rows} with the reference {stored.reference!r} second: turned")
        if coverage.partial:
            found.append(f"{self.system}: only {coverage.sentence}: the win rate is of these alone")
        if stored.changed:
            found.append(
                f"{self.system}: {stored.reference} answered {stored.changed} of these instructions otherwise than to "
                "other systems: its win rate is against another reference than theirs"
            )
        if len(stored.annotators) > 1:
            found.append(
                f"{', '.join(stored.files)}: the labels of {len(stored.annotators)} annotators are taken for one "
                "pool's; for a win rate by each, give each a file"
            )
        if self.system == self.reference_name:
            found.append(f"{self.system} is compared with itself: every pair is a draw")
        found += [*stored.repeats, *([stored.doubt] if stored.doubt else [])]
        return found + looks_swapped(self.system, self.reference_name)

    @property
    def about(self) -> dict[str, Any]:
        return {"coverage": self.stored.coverage.to_row(), "notes": self.notes, "stored": True}

    @cached_property
    def key_fields(self) -> Mapping[str, Any]:
        components, stored = self.workspace.components, self.stored
        data = {"judgements": file_digest(stored.rows), "reference": answers_digest(stored.answers)}
        if self.people:
            data["people"] = digest([(label.pair.instruction.id, label.win) for label in self.people])
        return self.workspace.key_fields(
            "stored annotations",
            evaluators=[components.evaluator_identity(name) for name in self.evaluators],
            systems={"outputs": stored.system, "reference": stored.reference, "annotator": stored.annotator},
            data=data,
        )

    def stage(self) -> Stage:
        stored = self.stored

        def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
            path = directory / "judgements.jsonl"
            with storage_errors(path):
                shutil.copyfile(stored.rows, path)
            judged = preferences_on_disk(path)
            given = stored_inputs(self.system, judged, self.people)
            outcomes: Counter[str] = Counter()
            degraded: Counter[str] = Counter()
            for row in judged:
                outcomes[row.preference.outcome] += 1
                degraded.update(row.preference.degraded)
            write_results(self.workspace, directory, self.evaluators, given, stored.protocol, degraded)
            members = {self.annotator: len(judged)}
            return {"rows": len(judged), "outcomes": dict(outcomes), "members": members, "degraded": dict(degraded)}

        return Stage("evaluate", self.label, {}, self.key_fields, write)
