"""The study `costs`: costs of stored runs by method and stage, the frontier, and a plan for a budget.

Source: Dubois et al. 2023 (AlpacaFarm), appendix E.2, for the question; figures are those of the runs' own records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from afarm import (
    Bounded,
    DataError,
    Findings,
    FinishedRun,
    RunRecord,
    Study,
    StudyRequest,
    StudyRun,
    StudyTable,
    mean_interval,
    read_run,
    run_directories,
    undominated,
)
from afarm.report import frontier_plot
from afarm_plugins.costs.planner import plan_difference, plan_within
from afarm_plugins.costs.settings import CostsConfig

SHARED = "shared"
GIGABYTE = 2**30
HOUR = 3600.0

KEPT_OF_STAGES = ("stage", "kind", "key", "reused", "seconds", "spend", "gpu_memory", "memory")

TYPICAL_RUN_SPREAD = 2.0
"""Points that a win rate varies by over seeds, if no stored runs tell."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Costs of one artifact. `on_gpu` and `memory`, the most bytes on a GPU or in RAM, may be unknown."""

    system: str
    stage: str
    seconds: float
    dollars: float
    calls: int
    unpriced: int
    on_gpu: bool | None
    memory: float | None


class Costs(Study):
    """Reads what stored runs have cost, and plans others.

    What it reads of their records are its facts, so that it is replayed without them.
    """

    reads_files = True
    never_opened = ("runs",)

    def __init__(self, config: CostsConfig):
        self.config = config
        self.output_dir = Path("afarm-runs")
        self.records: list[RunRecord] = []
        self.unread: list[str] = []

    def grid(self, request: StudyRequest) -> Sequence[StudyRun]:
        self.output_dir = request.output_dir
        return []

    def look_up(self) -> Mapping[str, Any]:
        places = [Path(place) for place in self.config.runs] or [self.output_dir]
        unread: list[str] = []
        records = [record for place in places for record in _records(place, unread)]
        if not records and self.config.runs:
            raise DataError(f"{', '.join(self.config.runs)}: no finished run there; `afarm run` makes one")
        compared = [record for record in records if not record.get("method")]
        if compared:
            unread.append(f"{len(compared)} comparisons of files or stored labels, which train nothing")
        kept = [  # the values that costs are computed from, as JSON
            {
                **{name: record.get(name) for name in ("recipe", "method", "config")},
                "machine": {"device": record.section("machine").get("device", "")},
                "stages": [{name: stage[name] for name in KEPT_OF_STAGES if name in stage} for stage in record.stages],
                "results": [{"metrics": {"win_rate": rate}} for rate in _win_rates(record)],
            }
            for record in records
            if record not in compared
        ]
        return {"runs": kept, "unread": unread}

    def know(self, facts: Mapping[str, Any]) -> None:
        self.records = [RunRecord(Path(), run) for run in facts.get("runs", [])]
        self.unread = list(facts.get("unread", []))

    def analyse(self, finished: Sequence[FinishedRun]) -> Findings:
        findings = tabulate_costs(self.records, self.config)
        return replace(findings, notes=[*findings.notes, *(f"Left out: {why}" for why in self.unread)])


def _records(place: Path, unread: list[str]) -> Iterator[RunRecord]:
    """Yield the records of a run's directory, of a directory of runs, or of an output directory.

    Adds what is wrong with each of several that cannot be read to `unread`. Raises `DataError` for one that is named.
    """
    if (place / "run.json").is_file():
        yield read_run(place)
        return
    for found in (run for directory in (place, place / "runs") for run in run_directories(directory)):
        try:
            yield read_run(found)
        except DataError as error:
            unread.append(str(error))


def _win_rates(record: RunRecord) -> list[float]:
    """Return the win rate of a run's main evaluation, if it has one."""
    rates = [result.metrics["win_rate"] for result in record.results if "win_rate" in result.metrics][:1]
    return [float(rate) for rate in rates if isinstance(rate, int | float)]


def tabulate_costs(records: Sequence[RunRecord], config: CostsConfig) -> Findings:
    """Tabulate the costs of runs, each stage once, and plan if there is a budget."""
    stages = _stages(records)
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(f"{record.get('recipe', '')} · {record.get('method', '')}", []).append(record)
    methods = [_method(name, runs, stages, config) for name, runs in sorted(groups.items())]
    tables = [_method_table(methods), _stage_table(stages.values(), config)] if records else []
    costs = {method.name: method.dollars if config.hour else method.seconds for method in methods}
    rates = {method.name: method.rate for method in methods if method.rate is not None}
    unit = "dollars per run" if config.hour else "seconds per run"
    plots = [frontier_plot(rates, costs, frontier(methods), unit)] if rates else []
    notes = _notes(records, stages.values(), config) if records else ["There is no stored run to read costs from."]
    answers = [_say_frontier(methods, costs, unit)]
    if config.spend or config.minutes:
        table, more, payable = _plan(methods, config)
        tables.append(table)
        notes += more
        answers.insert(0, payable)
    return Findings(tables, plots, notes, answer=" ".join(filter(None, answers)))


def _say_frontier(methods: Sequence[MethodCost], costs: Mapping[str, float], unit: str) -> str:
    """Say which method has the highest win rate, and which is the cheapest that none beats; or nothing."""
    best = frontier(methods)
    rates = {one.name: one.rate.value for one in methods if one.rate and one.name in best}
    if not rates:
        return ""
    first, cheapest = max(rates, key=lambda name: rates[name]), min(rates, key=lambda name: costs[name])
    figures = {
        name: f"{rates[name]:.1f} % at {costs[name]:,.{2 if 'dollars' in unit else 0}f} {unit}" for name in rates
    }
    if len(methods) == 1:
        return f"{first}: win rate {figures[first]}."
    text = f"{first} has the highest win rate, {figures[first]}"
    if first == cheapest:
        return f"{text}, and none costs less."
    return f"{text}; {cheapest} is the cheapest that no other beats at its cost, {figures[cheapest]}."


# ------------------------------------------------------------------------------------------------------- reading


def _stages(records: Sequence[RunRecord]) -> dict[str, StageCost]:
    """Return what each artifact has cost, by its name; the record that made it says on which device."""
    found: dict[str, StageCost] = {}
    for record in sorted(records, key=lambda record: all(stage.get("reused") for stage in record.stages)):
        device, method = str(record.section("machine").get("device", "")), str(record.get("method", ""))
        for stage in record.stages:
            name, label = f"{stage.get('kind')}/{stage.get('key')}", str(stage.get("stage", ""))
            made_here = not stage.get("reused") and not device.startswith("none")
            on_gpu = "cuda" in device if made_here else None
            if name in found and (found[name].on_gpu is not None or on_gpu is None):
                continue
            own = label in (f"train {method}", f"outputs {method}") or label.startswith(f"evaluate {method} ")
            spent = spend if isinstance(spend := stage.get("spend"), Mapping) else {}
            memory = stage.get("gpu_memory", stage.get("memory"))
            found[name] = StageCost(
                f"{record.get('recipe', '')} · {method}" if own else SHARED,
                str(stage.get("kind", "")) if own else label,
                float(stage.get("seconds") or 0.0),
                float(spent.get("dollars") or 0.0),
                int(spent.get("calls") or 0),
                int(spent.get("unpriced_calls") or 0),
                on_gpu,
                float(memory) if isinstance(memory, int | float) else None,
            )
    return found


class MethodCost(NamedTuple):
    """A method's runs and win rate; and per run seconds of own stages and of all, GPU-hours and dollars.

    `spreads` are the standard deviations of win rates over seeds, for each of its settings that has several.
    """

    name: str
    runs: int
    rate: Bounded | None
    own_seconds: float
    seconds: float
    gpu_hours: float | None
    judge_dollars: float
    dollars: float
    spreads: Sequence[float]


def _method(name: str, runs: Sequence[RunRecord], stages: Mapping[str, StageCost], config: CostsConfig) -> MethodCost:
    per_run = [[stages[f"{s.get('kind')}/{s.get('key')}"] for s in run.stages] for run in runs]
    is_known = any(stage.on_gpu is not None for some in per_run for stage in some)
    hours = fmean(sum(config.gpus * stage.seconds / HOUR for stage in some if stage.on_gpu) for some in per_run)
    own_seconds = fmean(sum(stage.seconds for stage in some if stage.system != SHARED) for some in per_run)
    seconds = fmean(sum(stage.seconds for stage in some) for some in per_run)
    judge = fmean(sum(stage.dollars for stage in some) for some in per_run)
    by_settings: dict[str, list[float]] = {}
    for run in runs:
        settings = repr({key: value for key, value in run.section("config").items() if key != "seed"})
        by_settings.setdefault(settings, []).extend(_win_rates(run))
    rates = [rate for run in runs for rate in _win_rates(run)]
    rate = mean_interval(rates) if rates else None
    spreads = [stdev(some) for some in by_settings.values() if len(some) > 1]
    dollars = judge + config.hour * seconds / HOUR
    return MethodCost(name, len(runs), rate, own_seconds, seconds, hours if is_known else None, judge, dollars, spreads)


# -------------------------------------------------------------------------------------------------------- tables


def _stage_table(stages: Iterable[StageCost], config: CostsConfig) -> StudyTable:
    groups: dict[tuple[str, str], list[StageCost]] = {}
    for stage in stages:
        groups.setdefault((stage.system, stage.stage), []).append(stage)
    rows: list[list[Any]] = []
    for (system, what), some in sorted(groups.items(), key=lambda item: (item[0][0] != SHARED, item[0])):
        known = [one for one in some if one.on_gpu is not None]
        hours = fmean(config.gpus * one.seconds / HOUR if one.on_gpu else 0.0 for one in known) if known else None
        memory = [one.memory / GIGABYTE for one in some if one.memory is not None]
        rows.append(
            [
                system,
                what,
                len(some),
                fmean(one.seconds for one in some),
                hours,
                max(memory) if memory else None,
                fmean(one.calls for one in some),
                fmean(one.dollars for one in some),
            ]
        )
    columns = {
        "system": "",
        "stage": "",
        "times made": "d",
        "seconds": ",.1f",
        "GPU-hours": ".3f",
        "most memory, GiB": ".2f",
        "judge calls": ",.0f",
        "judge, $": ",.2f",
    }
    return StudyTable("stages", "What each stage costs, in the mean", columns, rows)


def frontier(methods: Sequence[MethodCost]) -> set[str]:
    """Name the methods that no other beats at the same or a lower cost, in dollars and then in seconds."""
    return undominated({one.name: (-one.rate.value, one.dollars, one.seconds) for one in methods if one.rate})


def _method_table(methods: Sequence[MethodCost]) -> StudyTable:
    best = frontier(methods)
    ordered = sorted(methods, key=lambda method: -method.rate.value if method.rate else 1.0)
    rows = [[*method[:-1], "yes" if method.name in best else ""] for method in ordered]
    columns = {
        "method": "",
        "runs": "d",
        "win rate": ".1f",
        "own seconds": ",.0f",
        "all seconds": ",.0f",
        "GPU-hours": ".3f",
        "judge, $": ",.2f",
        "all, $": ",.2f",
        "frontier": "",
    }
    return StudyTable("methods", "What a run of each method costs, made alone", columns, rows)


def _notes(records: Sequence[RunRecord], stages: Iterable[StageCost], config: CostsConfig) -> list[str]:
    found = list(stages)
    notes = [
        f"{len(records)} runs and {len(found)} artifacts, each counted once; seconds are those of the making, also of "
        "what was reused. All seconds are those of a run that shares nothing.",
        f"GPU-hours count {config.gpus} GPU{'s' if config.gpus > 1 else ''} per stage made on one (--gpus); stages of "
        "which no record says the device are left out.",
    ]
    if unpriced := sum(stage.unpriced for stage in found):
        notes.append(f"{unpriced:,} judge calls of unknown price are not in the dollars.")
    if not config.hour:
        notes.append("Dollars are the judges' alone: --hour gives the machine a price.")
    if len({repr(record.section("config")) for record in records}) > len({str(r.get("method")) for r in records}):
        notes.append("Runs of one method may differ in settings and seeds: --runs names those that are to be read.")
    return notes


# ---------------------------------------------------------------------------------------------------------- plan


def _plan(methods: Sequence[MethodCost], config: CostsConfig) -> tuple[StudyTable, list[str], str]:
    """Plan for the difference asked for, or for what the budget pays if it is too much; say what it pays."""
    trained = [method for method in methods if method.rate]
    seconds = config.steps * config.step_seconds or (fmean(m.seconds for m in trained) if trained else 0.0)
    judge = config.judge_dollars
    if judge is None:
        judge = fmean(m.judge_dollars for m in trained) if trained else 0.0
    spreads = [spread for method in methods for spread in method.spreads]
    spread = config.run_spread or (fmean(spreads) if spreads else 0.0) or TYPICAL_RUN_SPREAD
    price = config.hour * seconds / HOUR + judge
    wanted = plan_difference(config, price, spread, config.difference)
    possible = plan_within(config, price, spread)
    pays, budget = wanted.fits(config), _budget(config)
    plans = {"as asked": wanted.cells()}
    if possible and possible.difference != config.difference:
        plans["all that it pays" if pays else "what it pays"] = possible.cells()
    rows: list[list[Any]] = [[name, *(cells[name] for cells in plans.values())] for name in wanted.cells()]
    table = StudyTable("plan", f"Plan for {budget}", {"plan": "", **dict.fromkeys(plans, ",.6g")}, rows)
    source = "--run-spread" if config.run_spread else "stored runs over seeds" if spreads else "a guess: --run-spread"
    notes = [
        f"A simulated run costs ${price:,.2f}: {seconds:,.0f} s at ${config.hour:g} per hour, and ${judge:,.2f} "
        "for judges.",
        f"Seeds: enough that two candidates whose simulated win rates differ by the difference are told apart (80% "
        f"power, 95% level) at a standard deviation of {spread:.1f} points over seeds ({source}).",
        f"Finalists: enough that the best of {config.candidates} by people is among them in 90% of cases, if win rates "
        f"vary by {config.spread:g} points and simulation and people correlate by {config.faith:g} but for chance.",
        f"Labels each: enough that two finalists are told apart by people, at {config.label_spread:g} points over "
        "instructions; both are labelled against one reference on the same instructions.",
        f"A label takes {config.label_seconds:g} s (--label-seconds) and costs ${config.dollars_per_label:,.2f} "
        + ("(--label-price)." if config.pay is None else f"at ${config.pay:g} per hour (--pay)."),
    ]
    paid = f"A budget of {budget}" if config.minutes else budget
    if pays:
        needs = f"${wanted.total:,.2f}, {wanted.minutes:,.0f} minutes of people"
        return table, notes, f"{paid} pays for a difference of {config.difference:g} points ({needs})."
    lacking = f"{paid} does not pay for a difference of {config.difference:g} points."
    lacking += f" It pays for one of {possible.difference:.1f}." if possible else " It pays for no plan at all."
    return table, notes, lacking


def _budget(config: CostsConfig) -> str:
    """Name what there is to spend: dollars, people's minutes or both."""
    some = [f"${config.spend:,.2f}"] if config.spend else []
    return " and ".join(some + ([f"{config.minutes:,.0f} minutes of people"] if config.minutes else []))
