"""Several runs beside each other: settings, curves, paired differences, outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from afarm import AfarmError, Row
from afarm.report import MAIN_CURVES, TRAIN
from afarm.results import flatten
from afarm_plugins.view.commands import quote_command
from afarm_plugins.view.outputs_index import OutputsIndex
from afarm_plugins.view.pairs import Pairs
from afarm_plugins.view.run_details import list_part_commands, run_charts
from afarm_plugins.view.run_diff import diff_runs
from afarm_plugins.view.run_table import describe_row
from afarm_plugins.view.sources import SeenRun
from afarm_plugins.view.values import as_shown, text

MOST_RUNS = 8
"""Runs that are compared at once: as many as there are colours."""

MOST_SHARED = 60
"""Instructions whose outputs are shown side by side."""

EXCERPT = 3000
"""Characters of an output side by side."""

WAIT = 30.0


def compare_runs(runs: Sequence[SeenRun], pairs: Pairs) -> Row:
    """Compare runs with the first of them. Nothing is raised: what cannot be compared says why."""
    rows = [describe_row(run) for run in runs]
    return {
        "runs": rows,
        "settings": differing_settings(runs),
        "charts": overlaid(runs),
        "differences": [paired(runs[0], run) for run in runs[1:]],
        "outputs": side_by_side(runs, pairs),
        "command": "\n".join(_diff(runs[0], run) for run in runs[1:]),
        "commands": {
            "curves": "\n".join(list_part_commands(run)["report"] for run in runs),
            "outputs": "\n".join(_diff(runs[0], run, "--flips", str(MOST_SHARED)) for run in runs[1:]),
        },
    }


def _diff(first: SeenRun, second: SeenRun, *more: str) -> str:
    return quote_command("diff", str(first.directory), str(second.directory), *more)


def differing_settings(runs: Sequence[SeenRun]) -> list[Row]:
    """The settings that are not the same in all runs; None where a run has none of that name."""
    flat = [flatten(run.about.section("config")) for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    values = {name: [as_shown(s[name]) if name in s else None for s in flat] for name in names}
    return [{"name": name, "values": row} for name, row in sorted(values.items()) if len(set(row)) > 1]


def overlaid(runs: Sequence[SeenRun]) -> list[Row]:
    """Curves of two runs or more, main ones first. A stage that all runs share has none."""
    merged: dict[tuple[str, str], Row] = {}
    for place, run in enumerate(runs):
        main, others = run_charts(run)
        for chart in (*main, *others):
            named = merged.setdefault(
                (chart["stage"], chart["name"]),
                {**{k: chart[k] for k in ("stage", "name", "title", "x_title", "y_title")}, "series": []},
            )
            named["series"].append({"run": place, "name": run.name, "x": chart["x"], "y": chart["y"]})
    keys: list[dict[str, str]] = []
    for run in runs:
        made = {text(stage.get("stage")): text(stage.get("key")) for stage in run.about.stages if stage.get("key")}
        keys.append({TRAIN if name.startswith(f"{TRAIN} ") else name: key for name, key in made.items()})
    shared = []
    for chart in merged.values():
        of_stages = {keys[series["run"]].get(chart["stage"], f"none {series['run']}") for series in chart["series"]}
        if len(chart["series"]) > 1 and len(of_stages) > 1:
            shared.append(chart)
    return sorted(shared, key=lambda chart: (chart["name"] not in MAIN_CURVES, chart["stage"] != "train"))


def paired(first: SeenRun, second: SeenRun) -> Row:
    """The paired difference of two runs in points, and what it comes from; why there is none, if so."""
    names = [first.name, second.name]
    about = {"first": first.id, "second": second.id, "names": names, "command": _diff(first, second)}
    try:
        diff = diff_runs(first.directory, second.directory)
    except (AfarmError, OSError, RecursionError) as error:
        return {**about, "problem": str(error)}
    return {
        **about,
        "problem": "",
        "difference": diff.difference,
        "standard_error": diff.standard_error,
        "shared": diff.shared,
        "incomparable": list(diff.incomparable),
        "contributions": [
            {"reason": reason, "changed": c.changed, "flips": c.flips, "points": c.points}
            for reason, c in diff.contributions.items()
        ],
    }


def side_by_side(runs: Sequence[SeenRun], pairs: Pairs) -> Row:
    """The outputs of all runs to the same instructions, those first on which verdicts differ."""
    indices = [pairs.index(run) for run in runs]
    if not all(index.ready.wait(WAIT) for index in indices):
        return {"rows": [], "shared": 0, "flips": 0}
    by_key = [index.rows_by_key for index in indices]
    shared = [key for key in by_key[0] if all(key in rows for rows in by_key[1:])]
    flips = [
        key
        for key in shared
        if len({index.verdicts[rows[key]] for index, rows in zip(indices, by_key, strict=True)}) > 1
    ]
    chosen = list(dict.fromkeys([*flips, *shared]))[:MOST_SHARED]
    rows = [_beside(key, indices, by_key) for key in chosen]
    return {"rows": rows, "shared": len(shared), "flips": len(flips)}


def _beside(key: int, indices: Sequence[OutputsIndex], by_key: Sequence[dict[int, int]]) -> Row:
    outputs: list[dict[str, Any]] = []
    task: Row = {}
    for index, rows in zip(indices, by_key, strict=True):
        number = rows[key]
        row = next(index.rows([number]), {})
        task = task or row
        whole = text(row.get("output_2"))
        outputs.append(
            {"number": number, "verdict": index.verdicts[number], "text": whole[:EXCERPT], "length": len(whole)}
        )
    return {
        "instruction": text(task.get("instruction"))[:EXCERPT],
        "input": text(task.get("input"))[:EXCERPT],
        "outputs": outputs,
    }
