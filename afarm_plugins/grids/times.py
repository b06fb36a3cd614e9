"""Time and price of the stages that several studies still need, each counted once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from afarm import StudyRun
from afarm.cli.options import dollars
from afarm.results import Artifact
from afarm_plugins.grids.grid import OpenWith, weighted_stages

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
    """The missing stages of so many runs: their count, their seconds, and how many have an `unknown` time.

    `dollars` are what judges are expected to cost, `most_dollars` what they cost at most; None if a price is unknown.
    """

    runs: int
    stages: int
    seconds: float
    unknown: int
    dollars: float | None
    most_dollars: float | None

    @classmethod
    def of(
        cls, runs: int, new: Sequence[StudyRun], lay_out_run: OpenWith, seen: set[str], known: Times
    ) -> MissingStages:
        """Add up the missing stages of the runs that are not `seen` yet, and add their names to it.

        Of many runs some, drawn, stand for all.
        """
        planned = weighted_stages(new, lay_out_run).items()
        wanted = {name: pair for name, pair in planned if not pair[0].reused and name not in seen}
        seen.update(wanted)
        stages = wanted.values()
        times = [(known.get(stage.label, known.get(f":{stage.kind}")), weight) for stage, weight in stages]
        return cls(
            runs,
            round(sum(weight for _, weight in stages)),
            sum(weight * (seconds or 0.0) for seconds, weight in times),
            round(sum(weight for seconds, weight in times if seconds is None)),
            add_up([stage.dollars and weight * stage.dollars for stage, weight in stages]),
            add_up([stage.most_dollars and weight * stage.most_dollars for stage, weight in stages]),
        )

    @property
    def sentence(self) -> str:
        """All of it in words."""
        parts = [f"{self.runs:,} runs, {self.stages:,} new stages"]
        if self.seconds or not self.unknown:
            parts.append(f"about {self.seconds / 60:.1f} minutes")
        if self.unknown:
            parts.append(f"{self.unknown:,} stages of unknown time until one of their kind is made")
        if self.most_dollars != 0:
            expected = [] if self.dollars is None else [dollars(self.dollars)]
            most = [] if self.most_dollars is None else [f"at most {dollars(self.most_dollars)}"]
            parts.append(f"judges {', '.join([*expected, *most]) or 'of unknown price'}")
        return ", ".join(parts)


def add_up(values: Sequence[float | None]) -> float | None:
    """Add up values, None if one is not known."""
    return None if None in values else sum(value or 0 for value in values)
