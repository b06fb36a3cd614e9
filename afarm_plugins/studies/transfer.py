"""The study `transfer`: what is learned from each kind of labels, judged by people.

Source: Dubois et al. 2023 (AlpacaFarm), table 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from afarm import (
    Bounded,
    ConfigError,
    Findings,
    FinishedRun,
    Series,
    Study,
    StudyPlot,
    StudyRequest,
    StudyRun,
    StudyTable,
)
from afarm_plugins.studies import TransferConfig, split_names
from afarm_plugins.studies.labels import Labels
from afarm_plugins.studies.over_seeds import gap_by_seed, grouped, over_seeds, shown

METHOD, LABELS = "method", "labels"


class Transfer(Study):
    """Methods trained on several kinds of labels, all evaluated by the annotator that stands for people."""

    def __init__(self, config: TransferConfig):
        self.people = config.people
        self.methods = split_names(config.methods)
        self.labels = Labels.parse_all(config.labelled_by)
        if Labels(self.people, 0.0) not in self.labels:
            raise ConfigError(
                [f"labelled_by: must name {self.people}, the annotator that the others are compared with"]
            )

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        judge = f"evaluate.annotator={self.people}"
        return [
            StudyRun(method, seed, {METHOD: method, LABELS: labels.name}, (*labels.settings, judge))
            for method, labels, seed in product(self.methods, self.labels, request.seeds)
        ]

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        figures = shown(finished)
        columns = {METHOD: "", LABELS: "", "seeds": "d", **dict(figures.values()), "less people's labels": "+.1f"}
        groups = grouped(finished, METHOD, LABELS)
        rows, lines = [], dict[str, list[tuple[str, Bounded]]]()
        for (method, labels), runs in groups.items():
            cells = [over_seeds(runs, name) for name in figures]
            by_people = groups.get((method, self.people), ()) if labels != self.people else ()
            rows.append([str(method), str(labels), len(runs), *cells, gap_by_seed(runs, by_people)])
            if (rate := over_seeds(runs, "win_rate")) is not None:
                lines.setdefault(str(method), []).append((str(labels), rate))
        title = f"Win rate by {self.people}, with 95% intervals"
        series = [
            Series(method, [x for x, _ in line], [y for _, y in line], joined=False) for method, line in lines.items()
        ]
        plot = StudyPlot("transfer", title, "learned from", "win rate, %", series)
        notes = [
            f"Every win rate is judged by {self.people}, without flips, against the start policy, which has 50.",
            "The last column is the difference in win rate from what the same method learns from people's labels, "
            "paired by seed: runs of one seed share SFT and samples.",
        ]
        return Findings([StudyTable("transfer", title, columns, rows)], [plot] if series else [], notes if rows else [])
