"""The study `transfer`: what is learned from each kind of labels, judged by people.

Source: Dubois et al. 2023 (AlpacaFarm), table 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from afarm import (
    Bounded,
    ConfigError,
    Findings,
    FinishedRun,
    Study,
    StudyPlot,
    StudyRequest,
    StudyRun,
    StudyTable,
)
from afarm_plugins.studies.labels import STAND_IN, HumanLabels, Labels
from afarm_plugins.studies.over_seeds import draw_lines, gap_by_seed, grouped, measured_figures, over_seeds, say_highest
from afarm_plugins.studies.settings import TransferConfig, split_names

METHOD, LABELS = "method", "labels"


class Transfer(Study):
    """Methods trained on several kinds of labels, all evaluated by one annotator: if possible, people's."""

    never_opened = ("people_preferences",)

    def __init__(self, config: TransferConfig):
        self.methods = split_names(config.methods)
        self.people = HumanLabels.parse(config.people, config.people_preferences, self.methods)
        labels, stand_in = Labels.parse_all(config.labelled_by), Labels(self.people.annotator or STAND_IN, 0.0)
        if stand_in not in labels and not self.people.files:
            raise ConfigError(
                f"labelled_by: must name {stand_in.name}, the annotator that the others are compared with"
            )
        self.simulated = [kind for kind in labels if kind != stand_in]

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        runs = []
        for method in self.methods:
            kinds = {self.people.name: self.people.settings(method)}
            kinds |= {labels.name: labels.settings for labels in self.simulated}
            runs += [
                StudyRun(method, seed, {METHOD: method, LABELS: name}, (*settings, *self.people.judging))
                for name, settings in kinds.items()
                if settings is not None
                for seed in request.seeds
            ]
        return runs

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        figures, people, judge = measured_figures(finished), self.people.name, self.people.judge
        columns = {METHOD: "", LABELS: "", "seeds": "d", **dict(figures.values()), "less people's labels": "+.1f"}
        groups = grouped(finished, METHOD, LABELS)
        rows, lines = [], dict[str, list[tuple[str, Bounded]]]()
        for (method, labels), runs in groups.items():
            cells = [over_seeds(runs, name) for name in figures]
            by_people = groups.get((method, people), ()) if labels != people else ()
            rows.append([str(method), str(labels), len(runs), *cells, gap_by_seed(runs, by_people)])
            if (rate := over_seeds(runs, "win_rate")) is not None:
                lines.setdefault(str(method), []).append((str(labels), rate))
        title = f"Win rate by {judge}, with 95% intervals"
        plot = StudyPlot("transfer", title, "learned from", "win rate, %", draw_lines(lines, joined=False), level=50)
        notes = [
            *self.people.notes(self.methods),
            f"Every win rate is judged by {judge}, without flips, against the start policy, which has 50.",
            "The last column is the difference in win rate from what the same method learns from people's labels, "
            "paired by seed: runs of one seed share SFT and samples.",
        ]
        table, notes = StudyTable("transfer", title, columns, rows), notes if rows else []
        return Findings([table], [plot] if lines else [], notes, answer=say_highest(table))
