"""All that the page of one run shows but its outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from os.path import isfile
from pathlib import Path
from typing import Any

from afarm import Row, RunRecord
from afarm.report import (
    HEIGHT,
    PAGE,
    WIDTH,
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
    stored_over_n,
    training,
)
from afarm.results import METRICS, OUTPUTS, finite_number, flag_sentences, flatten
from afarm_plugins.view.run_table import describe_row, write_run_command
from afarm_plugins.view.sources import SeenRun
from afarm_plugins.view.values import as_shown, json_row, mapping, only_texts, rows, text

MOST_BYTES = 32 << 20
"""Bytes of a file of metrics that are read, the last ones."""

OF_LIVE = ("updated", "calls_per_second", "budget", "committed", "refusals")
"""Figures of a run that is being made."""

_ARTIFACT = re.compile(r"(?:artifacts/)?([A-Za-z][\w -]{0,60}/[0-9a-f]{8,64})")


def describe_details(run: SeenRun) -> Row:
    """Describe a run: figures, stages with time and cost, curves, judges, settings, and what it is at."""
    about, record = run.about, run.record if run.record is not None else RunRecord(run.directory, {})
    stages = describe_stages(run)
    main, others = run_charts(run)
    further = [stored_over_n(run.directory, record), proxy_chart(record)]
    held_out = describe_held_out(record) or {}
    win_rates = list(describe_win_rates(record))
    live = run.live or {}
    return {
        **describe_row(run),
        "command": text(about.get("command")),
        "part_of": name_purpose(text(about.get("command"))),
        "commands": list_part_commands(run),
        "headline": describe_headline(record, win_rates),
        "win_rates": win_rates,
        "other_results": list(describe_other_results(record)),
        "flags": [sentence for result in record.results for sentence in flag_sentences(result.red_flags)],
        "notes": [*map(text, record.rows("notes")), *degraded(record.stages), *not_finite(record.stages)],
        "training": list(training(record.section("checkpoint"))),
        "stages": stages,
        "diagrams": describe_diagrams(stages),
        "charts": {
            "main": [*main, *filter(None, further)],
            "others": others,
            "held_out": chart_held_out(record),
        },
        "held_out": held_out.get("figures", []),
        "over_n": over_n_command(record) if run.status == "finished" else "",
        "annotators": describe_annotators(record.section("annotators")),
        "spend": dict(mapping(about.get("spend"))),
        "judges": [dict(judge) for judge in rows(about.get("judges"))],
        "config": [(name, as_shown(value)) for name, value in flatten(mapping(about.get("config"))).items()],
        "versions": {"afarm": about.get("afarm_version"), **mapping(about.get("versions"))},
        "machine": dict(mapping(about.get("machine"))),
        "live": describe_live(live) if run.status != "finished" else None,
        "log": [line for line in live.get("log") or [] if isinstance(line, list) and len(line) == 2],
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


def name_purpose(command: str) -> str:
    """Name what a command makes, as "study lengths"; empty if that is the run alone."""
    _, name, what, *_ = [*command.split(), "", "", ""]
    return {"study": f"study {what}", "compare": "comparison of methods", "tune": "search for settings"}.get(name, "")


def describe_live(live: Mapping[str, Any]) -> Row:
    """Describe a run that is being made: loops, spend, budget, pace, and waits."""
    loops = rows(live.get("loops"))
    return {
        "pid": live.get("pid"),
        **{name: text(live.get(name)) for name in ("host", "error")},
        **{name: finite_number(live.get(name)) for name in OF_LIVE},
        "loops": [{"description": text(loop.get("description")), "done": finite_number(loop.get("done")),
                   "total": finite_number(loop.get("total"))} for loop in loops],
        "spend": dict(mapping(live.get("spend"))),
        "waits": [text(line) for line in live.get("slowed") or []] if isinstance(live.get("slowed"), list) else [],
    }  # fmt: skip


def describe_stages(run: SeenRun) -> list[Row]:
    """The stages in their order: how each went or goes, its time, its cost and what it was made from."""
    finished = run.status == "finished" and run.record is not None
    if run.record is not None and finished:
        named = [(stage.get("stage"), stage) for stage in run.record.stages]
    else:
        named = [(name, mapping(stage)) for name, stage in mapping((run.live or {}).get("stages")).items()]
    described = []
    for name, stage in named:
        summary = mapping(stage.get("summary"))
        reused = bool(stage.get("reused")) if finished else stage.get("status") != "made"
        described.append(
            {
                "stage": text(name) or "unnamed",
                "kind": text(stage.get("kind")),
                "status": ("reused" if reused else "made") if finished else text(stage.get("status")) or "waiting",
                "reused": reused,
                "seconds": finite_number(stage.get("seconds")),
                "began": finite_number(stage.get("began")),
                "spend": dict(mapping(stage.get("spend"))),
                "rows": finite_number(summary.get("rows", stage.get("rows"))),
                "inputs": only_texts(stage.get("inputs")),
                "artifact": text(stage.get("artifact")),
                "key": text(stage.get("key")) or text(stage.get("artifact")).rpartition("/")[2],
                "why": text(stage.get("why")),
                "summary": [(name, as_shown(value)) for name, value in flatten(summary).items()][:24],
            }
        )
    return described


def describe_diagrams(stages: list[Row]) -> list[Row]:
    """The pipeline as boxes and arrows, wide and narrow, with time and cost per stage."""
    if len(stages) < 2 or not any(stage["inputs"] for stage in stages):
        return []
    return [
        {
            "direction": diagram.direction,
            "width": diagram.width,
            "height": diagram.height,
            "box": [WIDTH, HEIGHT],
            "arrows": diagram.arrows,
            "boxes": [
                {"x": b.x, "y": b.y, "kind": b.kind, "subject": b.subject, "stage": stages.index(b.stage)}  # type: ignore[arg-type]
                for b in diagram.boxes
            ],
        }
        for diagram in diagrams(stages)
    ]


def run_charts(run: SeenRun) -> tuple[list[Chart], list[Chart]]:
    """The curves of a run, those to show first apart; of one that is being made, as far as they go."""
    return curve_charts(group_curves(list(metric_rows(run))), None if run.record is None else selected_step(run.record))


def metric_rows(run: SeenRun) -> Iterator[Row]:
    """Yield the rows that stages logged: the run's own, or its artifacts' while it is being made."""
    if run.status == "finished":
        yield from whole_lines(run.directory / METRICS)
        return
    live = run.live or {}
    for label, stage in mapping(live.get("stages")).items():
        stage = mapping(stage)
        name = stage.get("artifact") or (live.get("artifact") if stage.get("status") == "working" else "")
        if not (found := _ARTIFACT.fullmatch(text(name))):
            continue
        directory = run.output_dir / "artifacts" / found[1]
        if stage.get("status") == "working":
            directory = directory.with_name(f"{directory.name}.partial")
        for row in whole_lines(directory / METRICS):
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
