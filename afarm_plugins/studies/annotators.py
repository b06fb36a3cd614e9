"""The study `annotators`: agreement with people, price, variance and mutual agreement of annotators.

Every annotator labels the same pairs several times, with independent draws. Tables and plots are those of
`afarm annotators compare --html`; here are the runs and the families.

Source: Dubois et al. 2023 (AlpacaFarm), section 4.2 and appendix D, figures 4, 7, 8 and 9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from statistics import fmean

from afarm import (
    HUMANS,
    AnnotatorReport,
    ConfigError,
    Findings,
    FinishedRun,
    Label,
    Study,
    StudyRequest,
    StudyRun,
    StudyTable,
    compare_annotators,
    member_family,
    with_prices,
)
from afarm_plugins.studies.annotator_findings import annotator_findings
from afarm_plugins.studies.labels import Labels, labels_in_run
from afarm_plugins.studies.people import PEOPLE, read_all_labels, require_both
from afarm_plugins.studies.settings import AnnotatorsConfig

ANNOTATOR, DRAW = "annotator", "draw"
"""The places of a run: the annotator, and which of its labels of a pair."""

FIGURES = ("agreement", "bias", "variance", "price", "prefers_longer", "prefers_lists", "prefers_first_shown")
"""The figures of a profile that the table shows, if an annotator has them."""


class Annotators(Study):
    """Annotators on the same pairs: agreement with people, bias, variance, price and preferences."""

    brief = {"annotators": "pool,pool+0.25,greedy_gpt4,gpt4_1,chatgpt_1"}

    def __init__(self, config: AnnotatorsConfig):
        self.config = config
        self.reads_files = bool(config.humans)
        self.annotators = Labels.parse_all(config.annotators)
        self.people = Labels.parse(config.people)
        named = {text: [part.strip() for part in text.rpartition("=")] for text in config.family}
        if wrong := [text for text, (name, _, family) in named.items() if not name or not family]:
            raise ConfigError([f"family: {wrong[0]!r}: an annotator and its family, such as --family gpt4_1=gpt4"])
        self.families = {name: family for name, _, family in named.values()}

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        require_both(self.config.humans, self.config.judged)
        if self.config.humans:
            return []
        listed = dict.fromkeys([self.people, *self.annotators])
        return [
            StudyRun(self.config.method, seed, {ANNOTATOR: labels.name, DRAW: draw}, labels.judging(draw))
            for labels, draw in product(listed, range(1, self.config.draws + 1))
            for seed in request.seeds
        ]

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        if self.config.humans:
            given = read_all_labels(self.config.humans, self.config.judged)
            return study_findings(compare_annotators(given), PEOPLE, self.families)
        labels: dict[str, list[Label]] = {}
        for done in finished:
            name = str(done.run.place[ANNOTATOR])
            priced = with_prices({name: labels_in_run(done, name)}, done.answers)[name]
            labels.setdefault(HUMANS if name == self.people.name else name, []).extend(priced)
        ordered = {name: labels[name] for name in sorted(labels, key=lambda name: name != HUMANS)}
        return study_findings(compare_annotators(ordered), self.people.name, self.families)


# ----------------------------------------------------------------------------------------------------------- findings


def study_findings(report: AnnotatorReport, people: str, families: Mapping[str, str]) -> Findings:
    """Return the tables and plots of a comparison of annotators, with the agreement of families."""
    if not report.profiles:
        return Findings()

    def called(name: str) -> str:
        return people if name == HUMANS else name

    def family(name: str) -> str:
        return families.get(called(name)) or member_family(called(name).partition(" + ")[0])

    findings = annotator_findings(report, called, family, FIGURES)
    tables, notes = list(findings.tables), list(findings.notes)
    cells: dict[tuple[str, str], list[float]] = {(family(p.annotator),) * 2: [] for p in report.profiles}
    for one, other in combinations([profile.annotator for profile in report.profiles], 2):
        if (found := report.agreement(one, other)) is not None:
            for key in {(family(one), family(other)), (family(other), family(one))}:
                cells.setdefault(key, []).append(found.value)
    names = [one for one, other in cells if one == other]
    if 1 < len(names) < len(report.profiles):
        rows = [
            [one, *(fmean(known) if (known := cells.get((one, other))) else None for other in names)] for one in names
        ]
        columns = {"family": "", **dict.fromkeys(names, ".1f")}
        tables.append(StudyTable("families", "Mean agreement of two annotators, by family, %", columns, rows))
    large = [name for name in names if cells[name, name]]
    within = [value for name in large for value in cells[name, name]]
    between = [value for pair in combinations(large, 2) for value in cells.get(pair, ())]
    if within and between:
        notes.append(
            f"Two annotators of one family ({', '.join(large)}) agree on {fmean(within):.1f}% of pairs, two of "
            f"different ones on {fmean(between):.1f}%."
        )
    if not any(profile.price and profile.price.value for profile in report.profiles):
        notes.append("No label has a price, so there is no plot of agreement by price.")
    return Findings(tables, findings.plots, notes, answer=findings.answer)
