"""Leaderboards from runs: from records in a directory, or from what `afarm compare` has just run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError, PluginError
from afarm.evaluation.boards.board import DIFFERENCE, Entry, Leaderboard, Metric, Source, ranked, read_main_metric
from afarm.evaluation.boards.from_csv import COLUMNS, COUNTS
from afarm.evaluation.boards.ranking import with_ranks
from afarm.evaluation.metrics import WIN_RATE, finite_number, main_metric, warnings
from afarm.evaluation.protocol import EvaluationProtocol
from afarm.evaluation.red_flags import flag_sentences
from afarm.evaluation.run_stages import sum_costs
from afarm.evaluation.who_judged import known_agreement, page_finder
from afarm.storage.runs import OUTPUTS, RECORD, RunRecord, RunResult, read_run, run_directories

NO_PROTOCOL = "results that say nothing of how they were judged: no two of them may be compared"
OWN_FIELDS = ("win_rate", "length_controlled")
"""The evaluators whose metrics an entry has fields for."""


def boards_of_runs(directory: Path) -> tuple[list[Leaderboard], list[str]]:
    """Leaderboards of all runs below `directory` (the output directory, `runs` in it, or a single run's).

    Only the small record of each is read. Runs that cannot be read or have no win rate are returned as sentences.
    """
    entries: dict[str, list[Entry]] = {}
    protocols: dict[str, EvaluationProtocol] = {}
    agreements: dict[str, str] = {}
    left_out, find_pages = [], page_finder()
    runs = directory / "runs" if (directory / "runs").is_dir() else directory
    for run in [directory] if (directory / RECORD).is_file() else run_directories(runs):
        try:
            record = read_run(run)
            record.require_results()
            results = list(_entries(record, find_pages(record)))
        except DataError as error:
            left_out.append(str(error))
            continue
        if not results:
            left_out.append(f"{run.name}: it has no win rate")
        for protocol, entry in results:
            protocols[protocol.id] = protocol
            agreements[protocol.id] = known_agreement(record) or agreements.get(protocol.id, "")
            entries.setdefault(protocol.id, []).append(entry)
    return [
        ranked(Leaderboard(protocol, tuple(entries[key]), "" if protocol.known else NO_PROTOCOL, agreements[key]))
        for key, protocol in protocols.items()
    ], left_out


def _entries(record: RunRecord, pages: Mapping[str, Path]) -> Iterator[tuple[EvaluationProtocol, Entry]]:
    """One entry for each reference of a run's system, with the `pages` about its judges."""
    by_reference: dict[tuple[str, str], list[RunResult]] = {}
    for result in record.results:
        by_reference.setdefault((result.system, result.reference), []).append(result)
    for players, results in by_reference.items():
        entry = _entry(results, record)
        if entry is not None:
            # Only the pairs of the first comparison lie beside the record; and if judging stopped at a moment that
            # suited it, ranks would be too sure.
            has_pairs = players == next(iter(by_reference)) and not record.get("until")
            pairs = str(record.directory / OUTPUTS) if has_pairs else ""
            created = finite_number(record.get("created")) or 0
            source = Source(str(record.directory), pairs, players[1], created, pages)
            yield EvaluationProtocol.from_row(results[0].protocol), replace(entry, source=source)


def _entry(results: Sequence[RunResult], record: RunRecord) -> Entry | None:
    """The entry of one system against one reference; None without a win rate."""
    metrics: dict[str, Any] = {}
    for result in results:
        metrics = {**result.metrics, **metrics}
    if metrics.get("lc_sampling_error") is not None:  # AlpacaEval's own leaves out the uncertainty of the fit
        metrics["lc_standard_error"] = metrics["lc_sampling_error"]
    values = {name: finite_number(metrics.get(column)) for name, column in COLUMNS.items()}
    numbers: dict[str, Any] = {
        name: round(value) if name in COUNTS else float(value) for name, value in values.items() if value is not None
    }
    if not 0 <= numbers.get("win_rate", -1) <= 100:
        return None
    if refused := _count(metrics.get("n_refused")):
        numbers["unparsed"] = numbers.get("unparsed", 0) + refused
    coverage, until, red_flags = record.section("coverage"), record.section("until"), results[0].red_flags
    others, warning = _other_metrics(results, bool(coverage)), str(metrics.get("lc_warning") or "")
    stated = {
        f"{r.evaluator}: {text}" for r in results if r.evaluator in others for text in warnings(r.metrics).values()
    }
    stated.add(f"length_controlled: {warning}")
    entry = Entry(
        results[0].system,
        **numbers,
        length_controlled_source=str(metrics.get("lc_source") or ""),
        length_controlled_warning=warning,
        prefers_longer=_value(red_flags, "prefers_longer"),
        prefers_lists=_value(red_flags, "prefers_lists"),
        flags=tuple(sentence for sentence in flag_sentences(red_flags) if sentence not in stated),
        metrics=others,
        of=_count(coverage.get("reference")),
    )
    return replace(entry, stopped_early=(entry.n_asked or 0) < (_count(until.get("of")) or 0))


def _other_metrics(results: Sequence[RunResult], of_files: bool) -> dict[str, Metric]:
    """The main metrics of other evaluators, plugins' included, that two runs can be compared by.

    Those follow from outputs and judgements alone; a run's own reward model's do not, and files of outputs (`of_files`)
    have none.
    """
    metrics = {}
    for result in results:
        comparable = of_files if result.needs is None else "reward_model" not in result.needs
        metric = read_main_metric(result.evaluator, result.metrics) if comparable else None
        if metric and result.evaluator not in OWN_FIELDS:
            metrics[result.evaluator] = metric
    return metrics


def _value(red_flags: Mapping[str, Any], name: str) -> float | None:
    estimate = red_flags.get(name)
    return finite_number(estimate.get("value")) if isinstance(estimate, Mapping) else None


def _count(value: Any) -> int | None:
    finite = finite_number(value)
    return None if finite is None else round(finite)


def board_of_systems(records: Iterable[RunRecord]) -> Leaderboard:
    """The leaderboard of several systems' runs under one recipe, each against its first reference.

    Several seeds of a system are one entry. Other evaluators' differences from the reference's figure, the wall
    `seconds` of making all stages (reused ones at what they took when they were made) and the seeds stand beside.
    """
    by_system: dict[str, list[tuple[EvaluationProtocol, Entry]]] = {}
    agreement, find_pages = "", page_finder()
    for record in records:
        agreement = known_agreement(record)
        protocol, entry = next(_entries(record, find_pages(record)))
        by_system.setdefault(entry.system, []).append((protocol, _of_system(record, entry)))
    entries = tuple(_over_seeds([entry for _, entry in runs]) for runs in by_system.values())
    references = sorted({entry.source.reference for entry in entries})
    protocol = _shared([protocol for runs in by_system.values() for protocol, _ in runs])
    note = f"{agreement[:1].upper()}{agreement[1:]}. " if agreement else ""
    note += f"Percent against {' or '.join(references)}; {_kind_of_error(entries)}."
    for system, runs in by_system.items():
        names = dict.fromkeys(name for _, entry in runs for name in entry.metrics)
        left_out = [name for name in names if not all(name in entry.metrics for _, entry in runs)]
        note += f" No {', '.join(left_out)} of {system}: not every seed has one." if left_out else ""
    board = ranked(Leaderboard(protocol, entries, "Win rates", note))
    with suppress(PluginError):  # without scipy there are no tests
        board = with_ranks(board)[0]
    # Systems that are equally good stay in the order in which they were named.
    order = {system: number for number, system in enumerate(by_system)}
    entries = tuple(sorted(board.entries, key=lambda entry: (-(entry.win_rate or 0), order[entry.system])))
    return replace(board, entries=entries)


def _kind_of_error(entries: Sequence[Entry]) -> str:
    """Say over how many seeds figures are means, and what their errors are."""
    seeds = len({seed for entry in entries for seed in entry.seeds})
    if seeds < 2:
        return "one seed, standard errors over instructions"
    said = f"means over {seeds} seeds, with their standard errors"
    for entry in entries:
        if len(entry.seeds) < seeds:
            said += f"; {entry.system} has {len(entry.seeds)} of them"
            said += " and errors over instructions" if len(entry.seeds) == 1 else ""
    return said


def _of_system(record: RunRecord, entry: Entry) -> Entry:
    """Add what needs one recipe: paired differences where they are shown, seconds and seeds."""
    metrics = dict(entry.metrics)
    for result in record.results:
        main = main_metric(result.evaluator, result.metrics)
        gain = None if result.evaluator == WIN_RATE or main is None else main.difference
        if main is not None and gain is not None and result.reference == entry.source.reference:
            metrics.pop(result.evaluator, None)
            metrics[f"{DIFFERENCE}{result.evaluator}"] = Metric(
                gain, main.difference_error, flag="; ".join(warnings(result.metrics).values()), unit=main.unit
            )
    seconds, _ = sum_costs(record.stages)
    rates = () if entry.win_rate is None else (entry.win_rate,)
    return replace(entry, metrics=metrics, seconds=seconds, seeds=(record["seed"],), win_rates=rates)


def _over_seeds(entries: Sequence[Entry]) -> Entry:
    """The mean over seeds with its standard error; of other metrics those that every seed has."""
    first, *more = entries
    if not more:
        return first
    win_rates = [rate for entry in entries for rate in entry.win_rates]
    metrics = {}
    for name in first.metrics:
        if all(name in entry.metrics for entry in more):
            given = [entry.metrics[name] for entry in entries]
            flag, unit = _joined(metric.flag for metric in given), given[0].unit
            metrics[name] = Metric(*_mean_and_error([metric.value for metric in given]), flag=flag, unit=unit)
    controlled = [entry.length_controlled for entry in entries if entry.length_controlled is not None]
    of_all = len(controlled) == len(entries)
    controlled_rate, controlled_error = _mean_and_error(controlled) if of_all else (None, None)
    return Entry(
        first.system,
        *_mean_and_error(win_rates),
        length=_mean([entry.length for entry in entries]),
        length_controlled=controlled_rate,
        length_controlled_error=controlled_error,
        length_controlled_source=_joined(entry.length_controlled_source for entry in entries if of_all),
        length_controlled_warning=_joined(entry.length_controlled_warning for entry in entries if of_all),
        prefers_longer=_mean([entry.prefers_longer for entry in entries]),
        prefers_lists=_mean([entry.prefers_lists for entry in entries]),
        flags=tuple(dict.fromkeys(flag for entry in entries for flag in entry.flags)),
        metrics=metrics,
        seeds=tuple(seed for entry in entries for seed in entry.seeds),
        win_rates=tuple(win_rates),
        seconds=_mean([entry.seconds for entry in entries]),
        source=Source(reference=first.source.reference, pages=first.source.pages),
    )


def _joined(texts: Iterable[str]) -> str:
    """Join what several seeds say, each text once."""
    return "; ".join(dict.fromkeys(filter(None, texts)))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean of two values or more, with its standard error: s / √n with n − 1 in s."""
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _shared(protocols: Sequence[EvaluationProtocol]) -> EvaluationProtocol:
    """The protocol with the fields that all of `protocols` have in common, the others unknown."""
    first, unknown = protocols[0], EvaluationProtocol()
    different = [f.name for f in fields(first) if any(getattr(p, f.name) != getattr(first, f.name) for p in protocols)]
    return replace(first, **{name: getattr(unknown, name) for name in different})
