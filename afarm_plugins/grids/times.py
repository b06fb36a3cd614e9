"""Times of grids: the stages that several studies would make, each once, and what stored ones took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from afarm import StudyRun
from afarm.cli.options import dollars
from afarm.experiments import PlannedStage
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
    """The number of a grid's runs, and its missing stages, each with how many it stands for."""

    runs: int
    stages: Sequence[tuple[PlannedStage, float]]

    @property
    def count(self) -> int:
        """The number of stages."""
        return round(sum(weight for _, weight in self.stages))

    @property
    def dollars(self) -> float | None:
        """The expected price of the judges; None if it is not known."""
        return added_up([_times(stage.dollars, weight) for stage, weight in self.stages])

    @property
    def most_dollars(self) -> float | None:
        """The highest price of the judges; None if it is not known."""
        return added_up([_times(stage.most_dollars, weight) for stage, weight in self.stages])

    def seconds(self, known: Times) -> float:
        """Return the seconds of the stages whose time is known."""
        return sum(weight * (_time(stage, known) or 0.0) for stage, weight in self.stages)

    def unknown(self, known: Times) -> int:
        """Count the stages whose time is not known."""
        return round(sum(weight for stage, weight in self.stages if _time(stage, known) is None))

    def sentence(self, known: Times) -> str:
        """Return all of it in words."""
        unknown, stages = self.unknown(known), f"{self.runs:,} runs, {self.count:,} new stages"
        price = price_words(self.dollars, self.most_dollars)
        if unknown and unknown == self.count:
            return f"{stages}, whose time no stored one tells{price}"
        more = f", {unknown:,} of unknown time" if unknown else ""
        return f"{stages}, about {self.seconds(known) / 60:.1f} minutes{more}{price}"

    def to_json(self, known: Times) -> dict[str, Any]:
        """Return all of it as JSON values."""
        times = {"seconds": self.seconds(known), "unknown": self.unknown(known)}
        prices = {"dollars": self.dollars, "most_dollars": self.most_dollars}
        return {"runs": self.runs, "stages": self.count, **times, **prices}


def added_up(prices: Sequence[float | None]) -> float | None:
    """Add up prices, None if one is not known."""
    known = [price for price in prices if price is not None]
    return sum(known) if len(known) == len(prices) else None


def _times(price: float | None, weight: float) -> float | None:
    return None if price is None else weight * price


def price_words(expected: float | None, most: float | None) -> str:
    """Say what judges cost, as expected and at most, None if unknown; empty for nothing."""
    if most == 0:
        return ""
    parts = [] if expected is None else [dollars(expected)]
    parts += [] if most is None else [f"at most {dollars(most)}"]
    return f", judges {', '.join(parts) or 'of unknown price'}"


def _time(stage: PlannedStage, known: Times) -> float | None:
    return known.get(stage.label, known.get(f":{stage.kind}"))


def missing_stages(runs: Sequence[StudyRun], lay_out_run: OpenWith, seen: set[str]) -> list[tuple[PlannedStage, float]]:
    """Return stages that are neither there nor `seen`, each with how many it stands for.

    Their names are added to `seen`. Of many runs some, drawn, stand for all.
    """
    stages = weighted_stages(runs, lay_out_run)
    new = {name: pair for name, pair in stages.items() if not pair[0].reused and name not in seen}
    seen.update(new)
    return list(new.values())
