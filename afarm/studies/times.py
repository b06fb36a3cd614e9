"""Times of grids: the stages that several studies would make, each once, and what stored ones took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from afarm.storage.artifacts import Artifact
from afarm.studies.grid import OpenWith, planned_stages
from afarm.studies.study import StudyRun

Times = Mapping[str, float]
"""Mean seconds of stored stages, by their labels, and by their kinds after a colon."""


def seconds_by_label(stored: Iterable[Artifact]) -> Times:
    """Return the mean seconds that stored artifacts took, by label, and for other labels by kind."""
    found: dict[str, list[float]] = {}
    for artifact in stored:
        for name in (artifact.meta["label"], f":{artifact.stage}"):
            found.setdefault(name, []).append(float(artifact.meta["seconds"]))
    return {name: fmean(values) for name, values in found.items()}


@dataclass(frozen=True, slots=True)
class MissingStages:
    """The number of a grid's runs, and the kind and label of each stage that is still to be made."""

    runs: int
    stages: Sequence[tuple[str, str]]

    def seconds(self, known: Times) -> float:
        """Return the seconds of the stages whose time is known."""
        return sum(_time(kind, label, known) or 0.0 for kind, label in self.stages)

    def unknown(self, known: Times) -> int:
        """Count the stages whose time is not known."""
        return sum(_time(kind, label, known) is None for kind, label in self.stages)

    def sentence(self, known: Times) -> str:
        """Return all of it in words."""
        unknown, stages = self.unknown(known), f"{self.runs} runs, {len(self.stages)} new stages"
        if unknown and unknown == len(self.stages):
            return f"{stages}, whose time no stored one tells"
        more = f", {unknown} of unknown time" if unknown else ""
        return f"{stages}, about {self.seconds(known) / 60:.1f} minutes{more}"

    def to_json(self, known: Times) -> dict[str, Any]:
        """Return all of it as JSON values."""
        seconds, unknown = self.seconds(known), self.unknown(known)
        return {"runs": self.runs, "stages": len(self.stages), "seconds": seconds, "unknown": unknown}


def _time(kind: str, label: str, known: Times) -> float | None:
    return known.get(label, known.get(f":{kind}"))


def missing_stages(runs: Sequence[StudyRun], open_with: OpenWith, seen: set[str]) -> MissingStages:
    """Open each run, and list the stages that are not there and not `seen`; these are added to it."""
    found = []
    for run in runs:
        for name, stage in planned_stages(run, open_with):
            if not stage.reused and name not in seen:
                seen.add(name)
                found.append((stage.kind, stage.label))
    return MissingStages(len(runs), found)
