"""The report page of a run: everything it shows is computed here, the template only lays it out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from afarm.core.errors import AfarmError, attribute_failures, require_promise
from afarm.core.plugins import discover
from afarm.core.seeding import digest
from afarm.evaluation.metrics import finite_number, undetectable_difference, win_rate_interval
from afarm.evaluation.red_flags import flag_sentences, judge_bias
from afarm.evaluation.run_stages import cut_off, degraded, not_finite, sum_costs
from afarm.evaluation.who_judged import are_formulas, judge_rows, who_judged
from afarm.report import side_by_side
from afarm.report.charts import (
    chart_held_out,
    curve_charts,
    describe_held_out,
    proxy_chart,
    selected_step,
    stored_over_n,
)
from afarm.report.diagram import diagrams
from afarm.report.page_shell import render_page
from afarm.report.run import group_curves, over_n_command, stage_figures, training
from afarm.storage.disk import source_digest, write_whole
from afarm.storage.reuse import flatten
from afarm.storage.rows import RowsOnDisk, read_rows
from afarm.storage.runs import METRICS, OUTPUTS, RunRecord, RunResult, read_run

PAGE = "report.html"
"""The page of a run, in its directory."""
SHOWN_OUTPUTS = 24
MOST_CHARACTERS = 4000
"""Characters shown of one text. Longer ones are cut and say so, so that the page stays small enough to open."""
MOST_SUMMARY = 6
"""Figures of a stage's summary that its row has room for."""

COUNTS = (
    *("n_wins", "n_wins_base", "n_draws", "n_identical", "n_total", "n_instructions"),
    *("avg_length", "avg_length_reference"),
)
"""What the table of win rates shows of an evaluation's metrics beside the rate."""
GOLD = ("gold", "gold_reference", "gold_difference", "gold_difference_se")

SPECIAL_ANNOTATORS = {
    "(noise)": "label noise: a fair coin, no call",
    "(identical)": "identical outputs: a draw, no call",
    "(no output)": "the system has no output: a loss, no call",
}


def build(run_dir: Path) -> Path:
    """Write `report.html` for the run in `run_dir` from its record, metrics and outputs.

    Only `run.json` must be there. Without plotly the page has its tables and says how to get the charts. Raises
    `DataError` if a file cannot be read, `StoreError` if the page cannot be written.
    """
    record = read_run(Path(run_dir))
    return _write(record, content_mark(record))


def _write(record: RunRecord, mark: str) -> Path:
    page = render_page("run_page", ["charts", "tables", "run_page"], **describe_run(record))
    write_whole(record.directory / PAGE, page + mark, "free some space or fix the rights, then `afarm report`")
    return record.directory / PAGE


def refresh(run_dir: Path) -> Path:
    """Write `report.html` unless it shows this run already, as after a command that reused everything.

    Raises as `build` does.
    """
    mark = content_mark(record := read_run(run_dir))
    with suppress(OSError), (run_dir / PAGE).open("rb") as handle:
        handle.seek(-len(mark.encode()), os.SEEK_END)
        if handle.read() == mark.encode():
            return run_dir / PAGE
    return _write(record, mark)


def content_mark(record: RunRecord) -> str:
    """A comment that changes with what the page shows of a run, and with the code that shows it."""
    code = [path for path in Path(__file__).parent.iterdir() if path.is_file()]
    shown = source_digest({path.name: path for path in code})
    content = digest([record, shown, find_spec("plotly") is not None, plugin_sections(record)], length=16)
    return f"<!-- shows {content} -->\n"


def plugin_sections(record: RunRecord) -> list[tuple[str, str]]:
    """Return the title and the HTML of each section that plugins add, or why it cannot be shown."""
    sections: dict[str, Any] = {}
    found = []
    with attribute_failures("hook", "register_sections"):
        discover(check_configs=False, kinds=()).manager.hook.register_sections(sections=sections)
    for title, section in sections.items():
        try:
            with attribute_failures("section", title, section):
                html = section(record)
            require_promise(isinstance(html, str), "section", title, "it must return HTML as text", section)
        except AfarmError as error:
            html = f"<p>{escape(str(error))}</p>"
        found += [(title, html)] if html else []
    return found


def describe_run(record: RunRecord) -> dict[str, Any]:
    """Compute everything on the page, from the record, the metrics and the outputs of a run."""
    metrics_file, outputs_file = record.directory / METRICS, record.directory / OUTPUTS
    metrics = group_curves(read_rows(metrics_file) if metrics_file.is_file() else ())
    stages = [describe_stage(stage) for stage in record.stages]
    judges, formulas = judge_rows(record), are_formulas(record)
    red_flags = {(r.system, r.reference): flag_sentences(r.red_flags) for r in record.results}
    win_rates = list(describe_win_rates(record))
    judged = RowsOnDisk(outputs_file, lambda row, where: row) if outputs_file.is_file() else ()
    chosen, verdicts = side_by_side.sample_rows(judged, SHOWN_OUTPUTS, record.get("seed"))
    main_charts, other_charts = curve_charts(metrics, selected_step(record))
    return {
        "record": record,
        "trains": not record.section("files"),
        "warnings": {
            "Degraded": degraded(record.stages),
            "Not finite": not_finite(record.stages),
            "Cut off": cut_off(record.stages),
        },
        "red_flags": {players: flags for players, flags in red_flags.items() if flags},
        "training": list(training(record.section("checkpoint"))),
        "rows": side_by_side.rows_compared(record),
        "judged_by": record.get("judged_by"),
        "judges": judges,
        "simulated": [judge for judge in judges if judge.get("simulated")],
        "headline": describe_headline(record, win_rates),
        "win_rates": win_rates,
        "other_results": list(describe_other_results(record)),
        "stages": stages,
        "most_seconds": max((s["seconds"] or 0 for s in stages if not s["reused"]), default=0),
        "total_seconds": sum_costs(stages)[0],
        "diagrams": diagrams(stages),
        "metrics": metrics,
        "held_out": describe_held_out(record),
        "over_n": over_n_command(record),
        "annotators": describe_annotators(record.section("annotators")),
        "outputs": [(row, side_by_side.row_verdict(row), who_judged([row], formulas)) for row in chosen],
        "verdicts": verdicts,
        "most_characters": MOST_CHARACTERS,
        "config": flatten(record.section("config")),
        "plugin_sections": plugin_sections(record),
        "charts": {
            "main": [*main_charts, *filter(None, [stored_over_n(record.directory, record), proxy_chart(record)])],
            "others": other_charts,
            "held_out": chart_held_out(record),
        },
    }


def describe_stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a stage with every key that the page reads, its summary cut short."""
    stored = stage.get("summary")
    elsewhere = ("members", "degraded")  # the table of annotators has them, and a line of its own says it
    summary = {k: v for k, v in stored.items() if k not in elsewhere} if isinstance(stored, dict) else {}
    spend = stage.get("spend")
    return {
        **stage,
        "stage": str(stage.get("stage") or "unnamed"),
        "reused": bool(stage.get("reused")),
        "seconds": finite_number(stage.get("seconds")),
        "spend": spend if isinstance(spend, dict) and spend.get("calls") else None,
        "rows": finite_number(summary.get("rows")),
        "summary": list(stage_figures(summary).items())[:MOST_SUMMARY],
    }


def describe_win_rates(record: RunRecord) -> Iterator[dict[str, Any]]:
    """The win rates among the results, with the counts behind them and the 95% interval (percent)."""
    for result in record.results:
        metrics = result.metrics
        if "win_rate" in metrics:
            unread = [n for key in ("n_unparsed", "n_refused") if (n := finite_number(metrics.get(key))) is not None]
            yield {
                "system": result.system,
                "reference": result.reference,
                "evaluator": result.evaluator,
                **{name: finite_number(metrics.get(name)) for name in COUNTS},
                "unanswered": sum(unread) if unread else None,
                "judge_bias": judge_bias(result.red_flags),
                "undetectable": undetectable_difference(metrics),
                **describe_interval(metrics),
            }


def describe_other_results(record: RunRecord) -> Iterator[dict[str, Any]]:
    """A table per other evaluator and system: its metrics in rows, the references in columns."""
    tables: dict[tuple[str, str], list[RunResult]] = {}
    for result in record.results:
        if "win_rate" not in result.metrics:
            tables.setdefault((result.evaluator, result.system), []).append(result)
    for (evaluator, system), results in tables.items():
        names = {name: None for result in results for name in result.metrics}
        yield {
            "evaluator": evaluator,
            "system": system,
            "comparisons": [f"against {r.reference}" if r.reference else "value" for r in results],
            "rows": [(name, [r.metrics.get(name) for r in results]) for name in names],
        }


def describe_interval(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """`win_rate`, `standard_error` and the ends of the 95% interval, in percent; None if unknown."""
    rate, error = finite_number(metrics.get("win_rate")), finite_number(metrics.get("standard_error"))
    low, high = win_rate_interval(metrics) or (None, None)
    return {"win_rate": rate, "standard_error": error, "low": low, "high": high}


def describe_headline(record: RunRecord, win_rates: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers on top: the record's `headline`, else the first win rate; gold if evaluated."""
    headline = {name: finite_number(value) for name, value in record.section("headline").items()}
    first = win_rates[0] if win_rates else {}
    gold: Mapping[str, Any] = next((r.metrics for r in record.results if r.evaluator == "gold"), {})
    n = first.get("n_instructions") or first.get("n_total")
    rate = headline if headline.get("win_rate") is not None else first
    return {
        **{name: headline.get(name) for name in ("reward", "reward_reference", "kl", "length", "length_reference")},
        **{name: finite_number(gold.get(name)) for name in GOLD},
        **describe_interval({**rate, "n_total": n, "n_instructions": n}),
        "undetectable": first.get("undetectable"),
        "system": first.get("system") or record.get("method") or "the system",
        "reference": first.get("reference") or "the reference",
        "total": first.get("n_total"),
    }


def describe_annotators(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Count each annotator's labels, in numbers and in shares, for training beside evaluation."""
    uses = {
        use: {k: finite_number(v) or 0 for k, v in by.items()} for use, by in counts.items() if isinstance(by, dict)
    }
    uses = {use: by for use, by in uses.items() if by}
    totals = {use: sum(by.values()) for use, by in uses.items()}
    names = sorted({name: None for by in uses.values() for name in by}, key=lambda name: name.startswith("("))
    rows = [
        {
            "name": name,
            "meaning": SPECIAL_ANNOTATORS.get(name, ""),
            "uses": [
                {"count": by.get(name, 0), "share": by.get(name, 0) / totals[use] if totals[use] else 0}
                for use, by in uses.items()
            ],
        }
        for name in names
    ]
    shares = [cell["share"] for row in rows for cell in row["uses"]]
    return {"uses": list(uses), "totals": list(totals.values()), "rows": rows, "most": max(shares, default=0) or 1}
