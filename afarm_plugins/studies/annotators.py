"""The study `annotators`: how good, how dear, how steady and how alike annotators are, beside people.

Every annotator labels the same pairs several times, with independent draws. The figures are those of
`afarm annotators compare`; here are the runs, the families and the plots.

Source: Dubois et al. 2023 (AlpacaFarm), section 4.2 and appendix D, figures 4, 7, 8 and 9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from statistics import fmean

from afarm import (
    HUMANS,
    NORMAL_95,
    AnnotatorReport,
    Bounded,
    ConfigError,
    Estimate,
    Findings,
    FinishedRun,
    Label,
    Series,
    Study,
    StudyPlot,
    StudyRequest,
    StudyRun,
    StudyTable,
    compare_annotators,
    member_family,
    with_prices,
)
from afarm_plugins.studies import AnnotatorsConfig
from afarm_plugins.studies.labels import Labels, labels_in_run
from afarm_plugins.studies.people import PEOPLE, read_all_labels, require_both

ANNOTATOR, DRAW = "annotator", "draw"
"""The places of a run: the annotator, and which of its labels of a pair."""

Called = Callable[[str], str]
"""Names an annotator, or its family."""

FIGURES: Mapping[str, tuple[str, str]] = {
    "agreement": ("agreement, %", ".1f"),
    "bias": ("bias, %", ".1f"),
    "variance": ("variance, %", ".1f"),
    "price": ("$ per 1,000", ".2f"),
    "prefers_longer": ("longer", ".2f"),
    "prefers_lists": ("lists", ".2f"),
    "prefers_first_shown": ("first shown", ".2f"),
}
"""The figures of a profile that the table shows, if an annotator has them."""


class Annotators(Study):
    """Annotators on the same pairs: agreement with people, bias, variance, price and preferences."""

    brief = {"annotators": "pool,pool+0.25,greedy_gpt4,gpt4_1,chatgpt_1"}

    def __init__(self, config: AnnotatorsConfig):
        self.config = config
        self.reads_files = bool(config.humans)
        self.annotators = Labels.parse_all(config.annotators)
        self.people = Labels.parse(config.people)
        self.families = families_given(config.family)
        self._labels: dict[str, list[Label]] = {}

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
            labels = read_all_labels(self.config.humans, self.config.judged)
            return annotator_findings(compare_annotators(labels), PEOPLE, self.families)
        labels = {}
        for done in finished:
            name = str(done.run.place[ANNOTATOR])
            labels.setdefault(HUMANS if name == self.people.name else name, []).extend(self._of_run(done, name))
        ordered = {name: labels[name] for name in sorted(labels, key=lambda name: name != HUMANS)}
        return annotator_findings(compare_annotators(ordered), self.people.name, self.families)

    def _of_run(self, done: FinishedRun, name: str) -> list[Label]:
        """Read the labels of a run with their prices, once."""
        if done.name not in self._labels:
            self._labels[done.name] = with_prices({name: labels_in_run(done, name)}, done.answers)[name]
        return self._labels[done.name]


def families_given(texts: Sequence[str]) -> dict[str, str]:
    """Read NAME=FAMILY. Raises `ConfigError`."""
    named = [tuple(part.strip() for part in text.rpartition("=")) for text in texts]
    if wrong := [text for text, (name, _, family) in zip(texts, named, strict=True) if not name or not family]:
        raise ConfigError([f"family: {wrong[0]!r}: an annotator and its family, such as --family gpt4_1=gpt4"])
    return {name: family for name, _, family in named}


def family_of_name(name: str, given: Mapping[str, str]) -> str:
    """Return the family of an annotator: the one `given`, else its name without number and noise."""
    return given.get(name) or member_family(name.partition(" + ")[0])


# ----------------------------------------------------------------------------------------------------------- findings


def annotator_findings(report: AnnotatorReport, people: str, families: Mapping[str, str]) -> Findings:
    """Return the tables and plots of a comparison, in which people are called so."""
    if not report.profiles:
        return Findings()

    def called(name: str) -> str:
        return people if name == HUMANS else name

    def family(name: str) -> str:
        return family_of_name(called(name), families)

    shown = {name: form for name, form in FIGURES.items() if any(getattr(p, name) for p in report.profiles)}
    columns = {"annotator": "", "family": "", "labels": "d", **dict(shown.values())}
    rows = [
        [called(p.annotator), family(p.annotator), p.parsed, *(bounded(getattr(p, name)) for name in shown)]
        for p in report.profiles
    ]
    title = f"Annotators beside {people}, with 95% intervals"
    tables = [StudyTable("annotators", title, columns, rows), _matrix(report, called)]
    by_family = FamilyAgreement.of(report, family)
    tables += [by_family.table] if 1 < len(by_family.names) < len(report.profiles) else []
    plots = [
        _scatter(report, called, family, "price", "agreement", log_x=True),
        _scatter(report, called, family, "bias", "variance"),
        _preferences(report, called),
    ]
    notes = [*_notes(report, people), *by_family.notes]
    return Findings(tables, [plot for plot in plots if plot is not None], notes)


def bounded(figure: Estimate | None) -> Bounded | None:
    """Return a figure with its 95% interval."""
    if figure is None:
        return None
    if figure.error is None:
        return Bounded(figure.value)
    half = NORMAL_95 * figure.error
    return Bounded(figure.value, max(0.0, figure.value - half), figure.value + half)


def _matrix(report: AnnotatorReport, called: Called) -> StudyTable:
    """Table how often labels of two annotators are equal, in percent; on the diagonal, two of its own."""
    names = [profile.annotator for profile in report.profiles]
    columns = {"annotator": "", **{called(name): ".0f" for name in names}}
    cells = {(one, other): report.agreement(one, other) for one in names for other in names}
    shares = {pair: None if figure is None else figure.value for pair, figure in cells.items()}
    rows = [[called(one), *(shares[one, other] for other in names)] for one in names]
    return StudyTable("agreement", "Agreement of one label with another on the same pair, %", columns, rows)


@dataclass(frozen=True)
class FamilyAgreement:
    """The mean agreement of one family's annotators with another's, in percent, without their own."""

    cells: Mapping[tuple[str, str], list[float]]

    @classmethod
    def of(cls, report: AnnotatorReport, family: Called) -> FamilyAgreement:
        """Gather the agreement of each two different annotators by their families."""
        cells: dict[tuple[str, str], list[float]] = {(family(p.annotator),) * 2: [] for p in report.profiles}
        for one, other in combinations([profile.annotator for profile in report.profiles], 2):
            if (found := report.agreement(one, other)) is not None:
                for key in {(family(one), family(other)), (family(other), family(one))}:
                    cells.setdefault(key, []).append(found.value)
        return cls(cells)

    @property
    def names(self) -> list[str]:
        """The families, in the order of their annotators."""
        return [one for one, other in self.cells if one == other]

    @property
    def table(self) -> StudyTable:
        """The matrix by family."""
        columns = {"family": "", **dict.fromkeys(self.names, ".1f")}
        rows = [
            [one, *(fmean(found) if (found := self.cells.get((one, other))) else None for other in self.names)]
            for one in self.names
        ]
        return StudyTable("families", "Mean agreement of two annotators, by family, %", columns, rows)

    @property
    def notes(self) -> list[str]:
        """A sentence on agreement within families and between them, without those of one annotator."""
        large = [name for name in self.names if self.cells[name, name]]
        within = [value for name in large for value in self.cells[name, name]]
        between = [value for pair in combinations(large, 2) for value in self.cells.get(pair, ())]
        if not within or not between:
            return []
        return [
            f"Two annotators of one family ({', '.join(large)}) agree on {fmean(within):.1f}% of pairs, two of "
            f"different ones on {fmean(between):.1f}%."
        ]


def _scatter(
    report: AnnotatorReport, called: Called, family: Called, x: str, y: str, *, log_x: bool = False
) -> StudyPlot | None:
    """Plot one figure of annotators over another, a colour per family; None if fewer than two have both."""
    by_family: dict[str, list[tuple[float, Bounded, str]]] = {}
    for profile in report.profiles:
        across, up = bounded(getattr(profile, x)), bounded(getattr(profile, y))
        if across is not None and up is not None and (across.value > 0 or not log_x):
            by_family.setdefault(family(profile.annotator), []).append((across.value, up, called(profile.annotator)))
    if sum(map(len, by_family.values())) < 2:
        return None
    series = [Series.of_points(name, points) for name, points in by_family.items()]
    title = f"{FIGURES[y][0]} over {FIGURES[x][0]}"
    return StudyPlot(f"{y}-by-{x}", title, FIGURES[x][0], FIGURES[y][0], series, log_x=log_x)


def _preferences(report: AnnotatorReport, called: Called) -> StudyPlot | None:
    """Plot the shares of choices for the longer output and for the list."""
    series = []
    for name in ("prefers_longer", "prefers_lists"):
        points = [(called(p.annotator), figure) for p in report.profiles if (figure := bounded(getattr(p, name)))]
        if points:
            series.append(Series(FIGURES[name][0], [x for x, _ in points], [y for _, y in points], joined=False))
    title = "Share of choices for the longer output, and for the list"
    return StudyPlot("preferences", title, "annotator", "share", series) if series else None


def _notes(report: AnnotatorReport, people: str) -> list[str]:
    notes = [
        f"Agreement is that of one label with the mode of all labels of {people} on the pair; of {people}, with the "
        "mode of the others. Bias is the error of the mode of an annotator's labels, variance that of one label "
        "against the mode of the annotator's others: compare them at the same number of labels per pair only.",
        "Longer, lists and first shown are shares of choices: for the output that is longer by more than 30 characters,"
        " for the only one with a list, for the one shown first.",
    ]
    if all(profile.annotator != HUMANS for profile in report.profiles):
        notes.append(f"No label of {people} is there yet, so agreement and bias are unknown.")
    if not any(profile.price and profile.price.value for profile in report.profiles):
        notes.append("No label has a price, so there is no plot of agreement by price.")
    return notes
