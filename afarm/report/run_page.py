"""The report page of a run: everything it shows is computed here, the template only lays it out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from afarm.core.seeding import digest
from afarm.evaluation.cut_off import cut_off
from afarm.evaluation.metrics import finite_number, undetectable_difference, win_rate_interval
from afarm.evaluation.red_flags import flag_sentences, judge_bias
from afarm.report import side_by_side
from afarm.report.charts import (
    best_of_n_chart,
    curve_charts,
    plotly_script,
    proxy_chart,
    selected_step,
    win_rate_chart,
)
from afarm.report.diagram import HEIGHT, WIDTH, diagrams
from afarm.report.format import FILTERS
from afarm.report.over_n import over_n_command
from afarm.report.page_shell import render_page
from afarm.report.reward_model_charts import chart_held_out, describe_held_out
from afarm.report.run import ReportedRun, degraded, not_finite, read_reported_run, training
from afarm.storage.disk import source_digest, write_whole
from afarm.storage.reuse import flatten
from afarm.storage.runs import RunRecord, RunResult, read_run

PAGE = "report.html"
"""The page of a run, in its directory."""
SHOWN_OUTPUTS = 24
MOST_CHARACTERS = 4000
"""Characters shown of one text. Longer ones are cut and say so, so that the page stays small enough to open."""
MOST_SUMMARY = 6
"""Figures of a stage's summary that its row has room for."""

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
    run_dir = Path(run_dir)
    run = read_reported_run(run_dir)
    own = {**describe_run(run), "charts": describe_charts(run)}
    page = render_page("run_page", ["charts", "tables", "run_page"], plotly_script(), FILTERS, **own)
    target = run_dir / PAGE
    write_whole(target, page + content_mark(run.record), "free some space or fix the rights, then `afarm report`")
    return target


def refresh(run_dir: Path) -> Path:
    """Write `report.html` unless it shows this run already, as after a command that reused everything.

    Raises as `build` does.
    """
    target, mark = run_dir / PAGE, content_mark(read_run(run_dir)).encode()
    with suppress(OSError), target.open("rb") as handle:
        handle.seek(-len(mark), os.SEEK_END)
        if handle.read() == mark:
            return target
    return build(run_dir)


def content_mark(record: RunRecord) -> str:
    """A comment that changes with what the page shows of a run, and with the code that shows it.

    When and by which command its stages were made or reused is left out.
    """
    values = {name: value for name, value in record.items() if name not in ("created", "finished")}
    values["spend"] = {name: value for name, value in record.section("spend").items() if name != "this_time"}
    values["stages"] = [
        {name: value for name, value in stage.items() if name not in ("reused", "seconds", "why")}
        for stage in record.stages
    ]
    code = [path for path in Path(__file__).parent.iterdir() if path.is_file()]
    shown = source_digest({path.name: path for path in code})
    content = digest([values, shown, find_spec("plotly") is not None], length=16)
    return f"<!-- shows {content} -->\n"


def describe_run(run: ReportedRun) -> dict[str, Any]:
    """Compute everything on the page but the charts."""
    record = run.record
    stages = [describe_stage(stage) for stage in record.stages]
    judges = [
        {**judge, "role": {None: "judge", "*": "all roles"}.get(judge.get("role"), judge.get("role"))}
        for judge in record.rows("judges")
        if isinstance(judge, dict)
    ]
    files = record.section("files")
    red_flags: dict[tuple[str, str], Mapping[str, Any]] = {}
    for result in record.results:
        red_flags.setdefault((result.system, result.reference), result.red_flags)
    created, finished = finite_number(record.get("created")), finite_number(record.get("finished"))
    took = None if created is None or finished is None else finished - created
    win_rates = list(describe_win_rates(record))
    return {
        "record": record,
        "files": files,
        "trains": not files,
        "stored": record.get("stored") is True,
        "degraded": degraded(record.stages),
        "cut_off": cut_off(record.stages),
        "not_finite": not_finite(record.stages),
        "red_flags": [
            {"system": system, "reference": reference, "flags": flags}
            for (system, reference), row in red_flags.items()
            if (flags := flag_sentences(row))
        ],
        "training": list(training(record.section("checkpoint"))),
        "notes": [_text(note) for note in record.rows("notes")],
        "rows": side_by_side.rows_compared(record),
        "judges": judges,
        "simulated": [judge for judge in judges if judge.get("simulated")],
        "headline": describe_headline(record, win_rates),
        "win_rates": win_rates,
        "other_results": list(describe_other_results(record)),
        "stages": stages,
        "most_seconds": max((s["seconds"] or 0 for s in stages if not s["reused"]), default=0),
        "total_seconds": took or sum(s["seconds"] or 0 for s in stages if not s["reused"]),
        "reused_stages": sum(s["reused"] for s in stages),
        "diagrams": diagrams(stages) if len(stages) > 1 else [],
        "box_width": WIDTH,
        "box_height": HEIGHT,
        "metrics": run.metrics,
        "held_out": describe_held_out(record),
        "over_n": over_n_command(record),
        "annotators": describe_annotators(record.section("annotators")),
        "spend": record.section("spend"),
        "outputs": describe_outputs(run),
        "most_characters": MOST_CHARACTERS,
        "config": [(name, _json(value)) for name, value in flatten(record.section("config")).items()],
        "versions": {"afarm": record.get("afarm_version"), **record.section("versions")},
        "machine": record.section("machine"),
    }


def describe_stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a stage with every key that the page reads, its summary cut short."""
    stored = stage.get("summary")
    summary = dict(stored) if isinstance(stored, dict) else {}
    summary.pop("members", None)  # the table of annotators has them
    summary.pop("degraded", None)  # a line of its own says it
    spend = stage.get("spend")
    return {
        **stage,
        "stage": _text(stage.get("stage")) or "unnamed",
        "reused": bool(stage.get("reused")),
        "seconds": finite_number(stage.get("seconds")),
        "spend": spend if isinstance(spend, dict) and spend.get("calls") else None,
        "rows": finite_number(summary.get("rows")),
        "summary": [(name.removeprefix("outcomes."), value) for name, value in flatten(summary).items()][:MOST_SUMMARY],
    }


def describe_charts(run: ReportedRun) -> dict[str, Any]:
    """Chart data by position: `win_rate` (one or None), and the lists `main`, `others` and `held_out`."""
    main, others = curve_charts(run.metrics, selected_step(run.record))
    win_rates = list(describe_win_rates(run.record))
    further = [best_of_n_chart(run.sample_rewards), proxy_chart(run.record)]
    return {
        "win_rate": win_rate_chart(win_rates) if len(win_rates) > 1 else None,  # of one the headline has all
        "main": [*main, *filter(None, further)],
        "others": others,
        "held_out": chart_held_out(run.record),
    }


def describe_win_rates(record: RunRecord) -> Iterator[dict[str, Any]]:
    """The win rates among the results, with the counts behind them and the 95% interval (percent)."""
    for result in record.results:
        metrics = result.metrics
        if "win_rate" in metrics:
            yield {
                "system": result.system,
                "reference": result.reference,
                "evaluator": result.evaluator,
                "wins": finite_number(metrics.get("n_wins")),
                "losses": finite_number(metrics.get("n_wins_base")),
                "draws": finite_number(metrics.get("n_draws")),
                "identical": finite_number(metrics.get("n_identical")),
                "unanswered": _sum(metrics.get("n_unparsed"), metrics.get("n_refused")),
                "total": finite_number(metrics.get("n_total")),
                "length": finite_number(metrics.get("avg_length")),
                "length_reference": finite_number(metrics.get("avg_length_reference")),
                "judge_bias": judge_bias(result.red_flags),
                "instructions": finite_number(metrics.get("n_instructions", metrics.get("n_total"))),
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
    main = {**headline, "n_total": first.get("instructions")} if headline.get("win_rate") is not None else first
    names = ("reward", "reward_reference", "kl", "length", "length_reference")
    return {
        **{name: headline.get(name) for name in names},
        **describe_interval(main),
        "undetectable": first.get("undetectable"),
        "system": first.get("system") or record.get("method") or "the system",
        "reference": first.get("reference") or "the reference",
        "total": first.get("total"),
        "gold": finite_number(gold.get("gold")),
        "gold_reference": finite_number(gold.get("gold_reference")),
        "gold_difference": finite_number(gold.get("gold_difference")),
        "gold_difference_se": finite_number(gold.get("gold_difference_se")),
    }


def describe_annotators(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Count each annotator's labels, in numbers and in shares, for training beside evaluation."""
    uses = {
        use: {k: finite_number(v) or 0 for k, v in by.items()} for use, by in counts.items() if isinstance(by, dict)
    }
    uses = {use: by for use, by in uses.items() if by}
    totals = {use: sum(by.values()) for use, by in uses.items()}
    names = {name: None for by in uses.values() for name in by}
    rows = [
        {
            "name": name,
            "meaning": SPECIAL_ANNOTATORS.get(name, ""),
            "special": name.startswith("("),
            "uses": [
                {"count": by.get(name, 0), "share": by.get(name, 0) / totals[use] if totals[use] else 0}
                for use, by in uses.items()
            ],
        }
        for name in names
    ]
    rows.sort(key=lambda row: row["special"])
    shares = [cell["share"] for row in rows for cell in row["uses"]]
    return {"uses": list(uses), "totals": list(totals.values()), "rows": rows, "most": max(shares, default=0) or 1}


def describe_outputs(run: ReportedRun) -> dict[str, Any]:
    """The rows shown side by side, with their verdicts, and the count of each verdict in all."""
    chosen, counts = side_by_side.sample_rows(run.outputs, SHOWN_OUTPUTS, run.record.get("seed"))
    shown = [
        {
            "number": place,
            "verdict": side_by_side.row_verdict(row),
            "turns": [
                {"role": str(turn.get("role", "")), "content": _text(turn.get("content"))}
                for turn in (row["messages"] if isinstance(row.get("messages"), list) else [])
                if isinstance(turn, Mapping)
            ],
            "instruction": _text(row.get("instruction")),
            "input": _text(row.get("input")),
            "reference": _text(row.get("output_1")),
            "system": _text(row.get("output_2")),
            "reference_name": _text(row.get("generator_1")) or "reference",
            "system_name": _text(row.get("generator_2")) or _text(run.record.get("method")) or "system",
            "member": _text(row.get("member")),
            "outcome": _text(row.get("outcome")),
        }
        for place, row in enumerate(chosen, start=1)
    ]
    return {
        "rows": shown,
        "total": sum(counts.values()),
        "all": counts,
        "shown": {v: sum(row["verdict"] == v for row in shown) for v in side_by_side.VERDICTS},
    }


def _sum(*values: object) -> float | None:
    known = [v for v in map(finite_number, values) if v is not None]
    return sum(known) if known else None


def _json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text(value: object) -> str:
    return "" if value is None else str(value)
