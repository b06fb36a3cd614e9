"""The study `calibrate`: a pool fitted to people's labels, shown on labels that it did not see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import yaml

from afarm import (
    NORMAL_95,
    AnnotateContext,
    Ask,
    Bounded,
    ChatRequest,
    ConfigError,
    Findings,
    FinishedRun,
    JudgingStudy,
    Series,
    StudyPlot,
    StudyRequest,
    StudyRun,
    StudyTable,
    read_user_text,
    seeding,
)
from afarm.experiments import discover
from afarm.judging import JudgePrompt, Presentation, collect_judgements, pending_requests, show_pair
from afarm.report import cell_text
from afarm_plugins.calibration.fit import (
    LENGTH,
    NOISE,
    POSITION,
    ROLE,
    SPREAD,
    Array,
    Labelled,
    PoolFit,
    PoolVerdicts,
    fit_pool,
    flip_rate,
    member_weights,
    predict_held_out,
    resampled_fits,
)
from afarm_plugins.calibration.held_out import (
    agreement_of_people,
    ceiling,
    expected_agreement,
    likelier_agreement,
    loss_per_label,
    mean_gap,
    over_instructions,
    sure_bins,
)
from afarm_plugins.calibration.people import PeoplesLabels, read_peoples_labels
from afarm_plugins.calibration.settings import CalibrateConfig
from afarm_plugins.calibration.systems import SystemRates, rate_systems

POOL_FILE = "calibrated.yaml"

FOLDS = 5

ORDERS = ("ab", "ba")

PAPERS_NOISE = 0.25
"""The share of flips of AlpacaFarm's training pool, the middle of the noise's prior."""

Slot = tuple[str, str, str]
"""Pair id, member and order."""


class FittablePool(Protocol):
    """The annotator `pool`, which another plugin brings, as far as it is fitted here."""

    def bind_members(self, ask: Ask) -> Sequence[tuple[str, JudgePrompt]]:
        """Return the role and the prompt of each member, twice if it is named twice."""


class Calibrate(JudgingStudy):
    """Fits a pool's weights, noise and tilts to labels of people, and writes the pool that comes of it."""

    def __init__(self, config: CalibrateConfig):
        self.config = config
        self._verdicts: PoolVerdicts | None = None

    @cached_property
    def people(self) -> PeoplesLabels:
        """The labels of people. Raises `DataError`."""
        return read_peoples_labels(self.config.humans, self.config.shown)

    @cached_property
    def pool(self) -> FittablePool:
        """The pool to fit. Raises `ConfigError` for a file of a pool that is wrong."""
        component = discover(check_configs=False, kinds=["annotators"]).get("annotators", "pool")
        return component.load()(component.settings(), self.config.pool)

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        if not self.config.humans:
            raise ConfigError(["calibrate needs people's labels: --humans FILE"])
        return []

    def plan(self, context: AnnotateContext) -> Sequence[ChatRequest]:
        return pending_requests(self._presentations(context), self.config.max_reasks + 1, context)

    def judge(self, context: AnnotateContext) -> None:
        judgements = collect_judgements(self._presentations(context), self.config.max_reasks + 1, context)
        bound = self.pool.bind_members(context.ask)
        roles = {prompt.name: role for role, prompt in bound}
        often = Counter(prompt.name for _, prompt in bound)
        pairs = self.people.pairs
        wins, unread = np.full((len(pairs), len(roles), len(ORDERS)), 0.5), 0
        for row, pair in enumerate(pairs):
            for column, member in enumerate(roles):
                for place, order in enumerate(ORDERS):
                    found = judgements[pair.id, member, order]
                    unread += found.outcome not in ("decided", "draw")
                    if found.p_first_shown is not None:
                        wins[row, column, place] = found.p_first_shown if order == "ba" else 1 - found.p_first_shown
        self._verdicts = PoolVerdicts(list(roles), list(roles.values()), [often[name] for name in roles], wins, unread)

    def _presentations(self, context: AnnotateContext) -> dict[Slot, Presentation]:
        """Show each pair to each member in both orders."""
        prompts = {prompt.name: prompt for _, prompt in self.pool.bind_members(context.ask)}
        found = {}
        for name, prompt in prompts.items():
            for pair in self.people.pairs:
                shown = Presentation(prompt, show_pair(pair, "ab", pair.id), batch=bool(pair.instruction.input))
                found[pair.id, name, "ab"] = shown
                found[pair.id, name, "ba"] = shown.swapped()
        return found

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        if self._verdicts is None:
            return Findings()
        return calibrate_pool(self.people, self._verdicts, self.config)


def calibrate_pool(people: PeoplesLabels, pool: PoolVerdicts, config: CalibrateConfig) -> Findings:
    """Fit the pool to people's labels; tabulate the fit, its held-out figures, and rankings under it."""
    data = Labelled.of(people.labels, pool)
    fit = fit_pool(data)
    refits = resampled_fits(fit, config.resamples, seeding.integer("calibrate", "resamples"))
    # Instructions are dealt into folds of equal size.
    ids = sorted({label.pair.instruction.id for label in people.labels}, key=lambda id: seeding.uniform("fold", id))
    fold = {id: number % FOLDS for number, id in enumerate(ids)}
    saw_none = predict_held_out(data, np.array([fold[label.pair.instruction.id] for label in people.labels]))
    systems = rate_systems(people.labels, fit, refits)
    held_out = _tabulate_held_out(people, data, saw_none)
    tables = [
        _parameters(fit, refits),
        _weights(fit, refits, pool),
        held_out,
        *([_rankings(systems)] if systems else []),
    ]
    plots = [_reliability_plot(data, saw_none), *([_rankings_plot(systems)] if systems else [])]
    notes = [
        *_notes_on_labels(people, pool, fit),
        *_notes_on_people(people, data, saw_none),
        *_notes_on_rankings(systems),
        f"{POOL_FILE} beside this page is the pool: --annotator pool:{POOL_FILE} --label-noise 0, since the noise is "
        "in it." + (f" Put it beside {config.pool}, whose templates it uses." if config.pool else ""),
    ]
    return Findings(tables, plots, notes, {POOL_FILE: _file(people, pool, fit, config)}, _say_gain(held_out))


def _say_gain(held_out: StudyTable) -> str:
    """Say how often the fitted pool agrees with people, and if it does so better than the paper's pool."""
    ours, papers, *_ = held_out.rows
    agreement, gain = ours[-1], papers[2]
    low, high = (gain.low or 0.0, gain.high or 0.0) if isinstance(gain, Bounded) else (0.0, 0.0)
    how = "better" if low > 0 else "worse" if high < 0 else "not clearly better"
    text = "On labels of people that it did not see, the fitted pool's likelier output is the chosen one of "
    text += f"{cell_text(agreement, '.1f')} %; it predicts them {how} than {papers[0]}"
    return f"{text} (log loss less by {cell_text(gain, '.3f')})."


def _file(people: PeoplesLabels, pool: PoolVerdicts, fit: PoolFit, config: CalibrateConfig) -> str:
    """Write the file of the calibrated pool."""
    sources = ", ".join(Path(source).name for source in config.humans)
    head = f"# Fitted by afarm study calibrate to {len(people.labels)} labels of people ({sources}).\n"
    head += "# Its noise is in it: use it with --label-noise 0.\n"
    given = {"members": list(pool.members)}
    if config.pool:
        given = yaml.safe_load(read_user_text(config.pool))
    weights, noise, length, position = fit.calibration
    shares = {name: round(float(weight), 4) for name, weight in zip(pool.members, weights, strict=True)}
    tilts = {NOISE: round(noise, 4), LENGTH: round(length, 4), POSITION: round(position, 4)}
    filled = {**given, "calibration": {"weights": shares, **tilts}}
    return head + yaml.safe_dump(filled, sort_keys=False, allow_unicode=True, width=120)


# -------------------------------------------------------------------------------------------------------- tables


def _interval(values: Sequence[float] | Array, value: float, scale: float = 1.0) -> Bounded:
    """Return a figure with the middle 95% of its values over fits."""
    low, high = np.quantile(values, [0.025, 0.975])
    return Bounded(scale * value, scale * float(low), scale * float(high))


def _parameters(fit: PoolFit, refits: Sequence[Array]) -> StudyTable:
    data, rows = fit.data, []
    families = data.families
    prior_weights, weights = data.often / data.often.sum(), member_weights(fit.theta, data)
    redrawn = np.array([member_weights(theta, data) for theta in refits])
    for place, family in enumerate(families if len(families) > 1 else ()):
        mine = data.family_indicators[:, place] > 0
        found = _interval(redrawn[:, mine].sum(axis=1), float(weights[mine].sum()), 100)
        rows.append(_row(f"weight of {family}, %", 100 * float(prior_weights[mine].sum()), found, fit, place))
    tilt = NORMAL_95 * SPREAD[LENGTH]
    noises = [100 * flip_rate(float(theta[-3])) for theta in refits]
    ends = [100 * flip_rate(side * NORMAL_95 * SPREAD[NOISE]) for side in (-1, 1)]
    rows.append(
        _row("noise, %", Bounded(100 * PAPERS_NOISE, *ends), _interval(noises, 100 * fit.calibration[1]), fit, -3)
    )
    for name, place in ((LENGTH, -2), (POSITION, -1)):
        found = _interval([float(theta[place]) for theta in refits], float(fit.theta[place]))
        rows.append(_row(name, Bounded(0.0, -tilt, tilt), found, fit, place))
    columns = {"parameter": "", "prior": ".2f", "fitted": ".2f", "told, %": ".0f", "reading": ""}
    return StudyTable("fit", "The fit, with 95% intervals over instructions", columns, rows)


def _row(name: str, prior: Bounded | float, found: Bounded, fit: PoolFit, place: int) -> list[Any]:
    middle = prior.value if isinstance(prior, Bounded) else prior
    free = bool(fit.free[place])
    told = 100 * float(fit.told[place])
    moved = found.low is not None and found.high is not None and not found.low <= middle <= found.high
    reading = "kept at prior" if not free else "not its prior" if moved else "may be its prior"
    return [name, prior, found if free else None, told, reading]


def _weights(fit: PoolFit, refits: Sequence[Array], pool: PoolVerdicts) -> StudyTable:
    data, families = fit.data, len(fit.data.families)
    prior, weights = data.often / data.often.sum(), member_weights(fit.theta, data)
    redrawn = np.array([member_weights(theta, data) for theta in refits])
    rows: list[list[Any]] = []
    for place, name in enumerate(pool.members):
        told, is_free = 100 * float(fit.told[families + place]), fit.free[families + place]
        weight = _interval(redrawn[:, place], float(weights[place]), 100)
        weighed = "by itself" if is_free else "as its role"
        rows.append([name, pool.roles[place], 100 * float(prior[place]), weight, told, weighed])
    columns = {"member": "", "role": "", "prior, %": ".1f", "weight, %": ".1f", "told, %": ".0f", "weighed": ""}
    return StudyTable("weights", "Members' weights", columns, rows)


def _candidates(data: Labelled, saw_none: Array) -> Mapping[str, Array]:
    pool = data.verdicts @ (data.often / data.often.sum())
    return {
        "this fit": saw_none,
        "the pool, 25% flipped": PAPERS_NOISE + (1 - 2 * PAPERS_NOISE) * pool,
        "the pool, none flipped": pool,
        "a coin": np.full(len(pool), 0.5),
    }


def _tabulate_held_out(people: PeoplesLabels, data: Labelled, saw_none: Array) -> StudyTable:
    rows: list[list[Any]] = []
    candidates = _candidates(data, saw_none)
    ours = loss_per_label(saw_none, data.second)
    for name, p in candidates.items():
        loss = loss_per_label(p, data.second)
        rows.append(
            [
                name,
                over_instructions(loss, data.cluster),
                None if p is saw_none else over_instructions(loss - ours, data.cluster),
                mean_gap(sure_bins(p, data.second, data.cluster)),
                over_instructions(expected_agreement(p, data.second), data.cluster, 100),
                over_instructions(likelier_agreement(p, data.second), data.cluster, 100),
            ]
        )
    if (agreed := agreement_of_people(people.labels)) is not None:
        rows.append(["another person", None, None, None, Bounded(*(100 * x for x in agreed if x is not None)), None])
    columns = {"labels by": "", "log loss": ".3f", "less ours": "+.3f"}
    columns |= {"error": ".3f", "agrees, %": ".1f", "likelier, %": ".1f"}
    return StudyTable("held-out", "On people's labels of instructions that the fit did not see", columns, rows)


def _rankings(systems: SystemRates) -> StudyTable:
    order = np.argsort(-systems.people, kind="stable")
    rows: list[list[Any]] = []
    for place in order:
        rates = float(systems.people[place]), float(systems.shipped[place]), systems.interval(int(place))
        rows.append([systems.systems[place], systems.pairs[place], *rates])
    columns = {"system": "", "pairs": "d", "by people, %": ".1f", "by the pool, %": ".1f", "by the fit, %": ".1f"}
    return StudyTable("rankings", "Win rates against the others, with 95% intervals over fits", columns, rows)


# ----------------------------------------------------------------------------------------------- plots and notes


def _reliability_plot(data: Labelled, saw_none: Array) -> StudyPlot:
    series = []
    for name, p in list(_candidates(data, saw_none).items())[:3]:
        bins = sure_bins(p, data.second, data.cluster)
        shares = [Bounded(*(100 * end for end in b.observed if end is not None)) for b in bins]
        series.append(Series(name, [100 * b.predicted for b in bins], shares))
    series.append(Series("as sure as right", [50.0, 100.0], [Bounded(50.0), Bounded(100.0)]))
    title = "Held out: how sure the pool is, and how often people agree"
    return StudyPlot("reliability", title, "probability of the likelier output, %", "chosen by people, %", series)


def _rankings_plot(systems: SystemRates) -> StudyPlot:
    x = [float(rate) for rate in systems.people]
    fitted = [systems.interval(place) for place in range(len(x))]
    shipped = [Bounded(float(rate)) for rate in systems.shipped]
    names = list(systems.systems)
    series = [
        Series("this fit", x, fitted, names, joined=False),
        Series("the pool, none flipped", x, shipped, joined=False),
    ]
    return StudyPlot("systems", "Win rates by people and by the pool", "by people, %", "by the pool, %", series)


def _notes_on_labels(people: PeoplesLabels, pool: PoolVerdicts, fit: PoolFit) -> list[str]:
    left_out = ", ".join(f"{count} {reason}" for reason, count in people.left_out.items())
    notes = [
        f"{len(people.labels)} labels of {len(people.pairs)} pairs on {people.instructions} instructions choose an "
        "output." + (f" Left out: {left_out}." if left_out else ""),
        "Told is the share of its prior's variance that the labels take from a parameter; below 25% it is kept at its "
        "prior. Length is in log-odds for the output that is twice as long, position for the one shown first.",
        "Held out: log loss in nats and how much more it is than the fit's; error is the expected calibration error; "
        "agrees is a label as it is drawn, likelier the output that is more probable.",
        f"The pool's verdicts in one order of the outputs have a reliability of {fit.data.reliability:.2f}, from those "
        "in the other: this much of their own chance is not counted as noise of people.",
    ]
    untold = [name for name, place in ((NOISE, -3), (LENGTH, -2), (POSITION, -1)) if not fit.free[place]]
    if len(fit.data.families) > 1 and not fit.free[: len(fit.data.families)].any():
        untold.insert(0, f"weights by {ROLE}")
    if untold:
        notes.append(f"The labels do not tell, and the fit keeps at its prior: {', '.join(untold)}.")
    if not fit.data.shown.any():
        notes.append(
            "Which output people saw first is not known (no 'order' in the rows): if it is output_1, say so with "
            "--shown output_1, and the bias of position is fitted."
        )
    if pool.unread:
        notes.append(f"{pool.unread} verdicts of {pool.wins.size} could not be read and count as draws.")
    return notes


def _notes_on_people(people: PeoplesLabels, data: Labelled, saw_none: Array) -> list[str]:
    agreed = agreement_of_people(people.labels)
    if agreed is None or agreed.low is None or agreed.high is None:
        return ["Each pair has the label of one person: what ceiling people's own disagreement sets is not known."]
    most = 100 * ceiling(agreed.value)
    own = 100 * float((saw_none**2 + (1 - saw_none) ** 2).mean())
    notes = [
        f"Two people agree on {100 * agreed.value:.1f}% of pairs ({100 * agreed.low:.1f} to {100 * agreed.high:.1f}), "
        f"two labels of the calibrated pool on {own:.1f}%. No annotator can agree with one person on more than "
        f"{most:.1f}%."
    ]
    if agreed.low <= 0.5:
        notes.append(
            "People's agreement cannot be told from chance: these labels hold nothing that a pool could be fitted to, "
            "and what comes of them is a coin."
        )
    return notes


def _notes_on_rankings(systems: SystemRates | None) -> list[str]:
    if systems is None:
        return ["The pairs do not name two systems (generator_1, generator_2): no ranking can be shown."]
    found = systems.spearman()
    rho = f" Spearman's ρ with people is {found.value:.2f} ({found.low:.2f} to {found.high:.2f})." if found else ""
    notes = [f"{100 * systems.same_order:.0f}% of the fits to resampled instructions rank all systems alike.{rho}"]
    if turned := systems.turned():
        pairs = ", ".join(f"{one} over {two} ({100 * share:.0f}%)" for (one, two), share in turned.items())
        notes.append(f"These orders do not survive the fit's uncertainty (share of fits that turn them): {pairs}.")
    else:
        notes.append("Every order of two systems survives the fit's uncertainty.")
    return notes
