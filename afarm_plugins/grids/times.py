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
            add_prices([stage.dollars and weight * stage.dollars for stage, weight in stages]),
            add_prices([stage.most_dollars and weight * stage.most_dollars for stage, weight in stages]),
        )

    @property
    def sentence(self) -> str:
        """All of it in words."""
        stages = f"{self.runs:,} runs, {self.stages:,} new stages"
        price = price_words(self.dollars, self.most_dollars)
        if self.unknown and self.unknown == self.stages:
            return f"{stages}, whose time no stored one tells{price}"
        more = f", {self.unknown:,} of unknown time" if self.unknown else ""
        return f"{stages}, about {self.seconds / 60:.1f} minutes{more}{price}"


def add_prices(prices: Sequence[float | None]) -> float | None:
    """Add up prices, None if one is not known."""
    known = [price for price in prices if price is not None]
    return sum(known) if len(known) == len(prices) else None


def price_words(expected: float | None, most: float | None) -> str:
    """Say what judges cost, as expected and at most, None if unknown; empty for nothing."""
    if most == 0:
        return ""
    parts = [] if expected is None else [dollars(expected)]
    parts += [] if most is None else [f"at most {dollars(most)}"]
    return f", judges {', '.join(parts) or 'of unknown price'}"
