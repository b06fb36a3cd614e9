"""All that the page of one run shows but its outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from os.path import isfile
from pathlib import Path

from afarm import Row, RunRecord
from afarm.report import (
    PAGE,
    Chart,
    chart_held_out,
    curve_charts,
    degraded,
    describe_annotators,
    describe_headline,
    describe_held_out,
    describe_other_results,
    describe_win_rates,
    diagrams,
    group_curves,
    not_finite,
    over_n_command,
    proxy_chart,
    selected_step,
    stage_figures,
    stored_over_n,
    training,
)
from afarm.results import METRICS, OUTPUTS, finite_number, flatten
from afarm_plugins.view.run_table import describe_row, write_run_command
from afarm_plugins.view.sources import SeenRun
from afarm_plugins.view.values import as_shown, json_row, mapping, only_texts, rows, text

MOST_BYTES = 32 << 20
"""Bytes of a file of metrics that are read, the last ones."""

OF_LIVE = ("calls_per_second", "budget", "committed", "refusals")
"""Figures of a run that is being made."""

_ARTIFACT = re.compile(r"(?:artifacts/)?([A-Za-z][\w -]{0,60}/[0-9a-f]{8,64})")


def describe_details(run: SeenRun) -> Row:
    """Describe a run: figures, stages with time and cost, curves, judges, settings, and what it is at."""
    about, record, live = run.about, run.record, run.live
    stages = describe_stages(run)
    main, others = run_charts(run)
    further = [stored_over_n(run.directory, record), proxy_chart(record)]
    held_out = describe_held_out(record) or {}
    win_rates = list(describe_win_rates(record))
    return {
        **describe_row(run),
        "command": text(about.get("command")),
        "part_of": name_whole(text(about.get("command"))),
        "commands": list_part_commands(run),
        "headline": describe_headline(record, win_rates),
        "win_rates": win_rates,
        "other_results": list(describe_other_results(record)),
        "notes": [*map(text, record.rows("notes")), *degraded(record.stages), *not_finite(record.stages)],
        "training": list(training(record.section("checkpoint"))),
        "stages": stages,
        "diagrams": diagrams(stages),
        "charts": {
            "main": [*main, *filter(None, further)],
            "others": others,
            "held_out": chart_held_out(record),
        },
        "held_out": held_out.get("figures", []),
        "over_n": over_n_command(record) if run.status == "finished" else "",
        "annotators": describe_annotators(record.section("annotators")),
        "spend": dict(about.section("spend")),
        "judges": [dict(judge) for judge in rows(about.get("judges"))],
        "config": [(name, as_shown(value)) for name, value in flatten(about.section("config")).items()],
        "versions": {"afarm": about.get("afarm_version"), **about.section("versions")},
        "machine": dict(about.section("machine")),
        "live": describe_live(live) if run.status != "finished" else None,
        "log": [line for line in live.rows("log") if isinstance(line, list) and len(line) == 2],
        "outputs": isfile(run.directory / OUTPUTS),
        "report": isfile(run.directory / PAGE),
    }


def list_part_commands(run: SeenRun) -> dict[str, str]:
    return {
        "result": text(run.about.get("command")),
        "stages": write_run_command(run, "artifacts", "list"),
        "report": write_run_command(run, "report", run.name),
        "ledger": write_run_command(run, "ledger"),
        "outputs": write_run_command(run, "export", run.name, f"{run.name}-export"),
    }


def name_whole(command: str) -> str:
    """Name what a command makes, as "study lengths"; empty if that is the run alone."""
    _, name, what, *_ = [*command.split(), "", "", ""]
    return {"study": f"study {what}", "compare": "comparison of methods", "tune": "search for settings"}.get(name, "")


def describe_live(live: RunRecord) -> Row:
    """Describe a run that is being made: loops, spend, budget, pace, and waits."""
    loops = rows(live.get("loops"))
    return {
        **{name: finite_number(live.get(name)) for name in OF_LIVE},
        "loops": [{"description": text(loop.get("description")),
                   **{name: finite_number(loop.get(name)) for name in ("done", "total", "seconds_left")}}
                  for loop in loops],
        "spend": dict(live.section("spend")),
        "waits": [text(line) for line in live.rows("slowed")],
    }  # fmt: skip


def describe_stages(run: SeenRun) -> list[Row]:
    """The stages in their order: how each went or goes, its time, its cost and what it was made from."""
    described = []
    for stage in run.about.stages:
        summary, status = mapping(stage.get("summary")), text(stage.get("status"))
        if "reused" in stage or run.status == "finished":
            status = "reused" if stage.get("reused") else "made"
        described.append(
            {
                "stage": text(stage.get("stage")) or "unnamed",
                "kind": text(stage.get("kind")),
                "status": status or "waiting",
                "reused": status != "made",
                "seconds": finite_number(stage.get("seconds")),
                "began": finite_number(stage.get("began")),
                "spend": dict(mapping(stage.get("spend"))),
                "rows": finite_number(summary.get("rows")),
                "inputs": only_texts(stage.get("inputs")),
                "artifact": text(stage.get("artifact")),
                "key": text(stage.get("key")),
                "why": text(stage.get("why")),
                "summary": [(name, as_shown(value)) for name, value in stage_figures(summary).items()][:24],
            }
        )
    return described


def run_charts(run: SeenRun) -> tuple[list[Chart], list[Chart]]:
    """The curves of a run, those to show first apart; of one that is being made, as far as they go."""
    return curve_charts(group_curves(list(metric_rows(run))), selected_step(run.record))


def metric_rows(run: SeenRun) -> Iterator[Row]:
    """Yield the rows that stages logged: the run's own, or its artifacts' while it is being made."""
    if run.status == "finished":
        yield from whole_lines(run.directory / METRICS)
        return
    for stage in run.about.stages:
        label, at_work = text(stage.get("stage")), stage.get("status") == "working"
        if found := _ARTIFACT.fullmatch(text(run.about.get("artifact") if at_work else stage.get("artifact"))):
            path = run.output_dir / "artifacts" / f"{found[1]}{'.partial' if at_work else ''}" / METRICS
            for row in whole_lines(path):
                yield {"stage": "train" if label.startswith("train ") else label, **row}


def whole_lines(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of JSON lines that may be being written, without those that are not whole."""
    try:
        if not path.is_file():
            return
        with path.open("rb") as handle:
            size = handle.seek(0, 2)
            handle.seek(max(0, size - MOST_BYTES))
            lines = handle.read(MOST_BYTES).split(b"\n")
    except OSError:
        return
    for line in lines:
        if (row := json_row(line)) is not None:
            yield row
