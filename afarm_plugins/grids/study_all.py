"""`afarm study all`: every study in turn over shared artifacts, and an index of their pages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm import AfarmError, ConfigError
from afarm.cli.options import LOCAL, DryRun, FarmOptions, LauncherName, err, markup, option, out, print_json
from afarm.report import markdown
from afarm_plugins.grids.study import AskedStudy, Formats, Seeds, Yes, conduct, configure_study, confirm, parse_formats

if TYPE_CHECKING:
    from afarm import StudyRun
    from afarm.experiments import Component

Full = Annotated[bool, option("--full", "Each study's whole grid, not a small one.")]
Names = Annotated[str | None, option("--only", "These studies alone, with commas between.")]


def study_all(
    seeds: Seeds = None,
    launcher: LauncherName = LOCAL,
    only: Names = None,
    full: Full = False,
    plots: Formats = None,
    yes: Yes = False,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Run every study, or show how many runs, stages and minutes that would be."""
    from afarm_plugins.grids.grid import MANY

    formats, chosen = parse_formats(plots), _chosen(only)
    asked: dict[str, AskedStudy | AfarmError] = {}
    for name, component in chosen.items():
        try:
            own = {} if full else dict(component.load().brief)
            asked[name] = configure_study(component, name, own, options, seeds)
        except AfarmError as error:
            asked[name] = error
    runs = len({_key(run) for one in asked.values() if not isinstance(one, AfarmError) for run in one.runs})
    if dry_run or (runs > MANY and not yes):
        _show_plan(asked, runs, options, dry_run)
    if dry_run:
        return
    if runs > MANY and not yes:
        confirm(f"{runs:,} runs")
    began, directory, rows, has_failed = time.time(), options.output_dir / "studies", list[dict[str, Any]](), False
    for number, (name, one) in enumerate(asked.items(), start=1):
        err().print(f"[bold]study {number} of {len(asked)}: {markup(name)}[/]")
        row, started = {"name": name, "question": chosen[name].summary, "page": "", "runs": 0}, time.time()
        try:
            if isinstance(one, AfarmError):
                raise one
            conducted = conduct(one, launcher, formats, True, is_shown=not options.as_json)
            assert conducted is not None
            progress, page = conducted
            row |= {"page": page.with_suffix(".html").relative_to(directory).as_posix(), "runs": len(progress.runs)}
            end = f"{len(progress.failed)} of {len(progress.runs)} runs failed" if progress.failed else "whole"
            has_failed |= bool(progress.failed)
        except ConfigError as error:
            end = f"left out: {error}"
        except AfarmError as error:
            end, has_failed = f"failed: {error}", True
        if not row["page"]:
            err().print(f"[yellow]{markup(name)}: {markup(end)}[/]")
        rows.append({**row, "minutes": (time.time() - started) / 60, "end": end})
        index = write_index(directory, rows)
    if options.as_json:
        print_json({"index": str(index), "studies": {row["name"]: row["end"] for row in rows}})
    took = f"(took {(time.time() - began) / 60:.0f} min)"
    (err() if options.as_json else out()).print(f"Studies: {index} {took}")
    if has_failed or not any(row["page"] for row in rows):
        raise typer.Exit(1)


def _chosen(only: str | None) -> dict[str, Component]:
    """Return the studies by their names. Raises `ConfigError` for a name that is none."""
    from afarm.experiments import discover

    registry = discover(check_configs=False).registry
    known = {registry.list_names(c)[-1]: c for c in registry if c.kind == "studies"}
    names = [name.strip() for name in only.split(",")] if only is not None else list(known)
    if wrong := [name for name in names if name not in known]:
        raise ConfigError([f"--only: no study {wrong[0]!r}: {', '.join(known)}"])
    return {name: known[name] for name in names}


def write_index(directory: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the index of studies as Markdown and HTML, with a link to each page. Returns the HTML's path."""
    from afarm import write_whole
    from afarm.report import render_page

    lines = ["# Studies", "", "| study | question | runs | minutes | end |", "|---|---|---:|---:|---|"]
    for row in rows:
        name, question, end = (markdown(row[key]) for key in ("name", "question", "end"))
        name = f"[{name}]({row['page']})" if row["page"] else name
        lines.append(f"| {name} | {question} | {row['runs']} | {row['minutes']:.1f} | {end} |")
    directory.mkdir(parents=True, exist_ok=True)
    remedy = "make room or choose another --output-dir"
    write_whole(directory / "index.md", "\n".join([*lines, ""]), remedy)
    write_whole(directory / "index.html", render_page("studies_index", ["tables"], studies=list(rows)), remedy)
    return directory / "index.html"


# ------------------------------------------------------------------------------------------------------------ dry run


def _key(run: StudyRun) -> tuple[str, int, tuple[str, ...]]:
    """Return what makes runs of two studies the same run."""
    return run.method, run.seed, run.settings


def _show_plan(asked: Mapping[str, AskedStudy | AfarmError], runs: int, options: FarmOptions, dry_run: bool) -> None:
    """Show the runs, minutes and dollars of each study; what several share is the first one's."""
    from afarm.results import Store
    from afarm_plugins.grids.times import MissingStages, add_up, seconds_by_label

    known = seconds_by_label(Store(options.output_dir).all()) if options.output_dir.is_dir() else {}
    console, missing, left_out = out() if dry_run else err(), dict[str, MissingStages](), dict[str, str]()
    stages, planned = set[str](), set[tuple[str, int, tuple[str, ...]]]()
    for name, one in asked.items():
        try:
            if isinstance(one, AfarmError):
                raise one
            new = [run for run in one.runs if _key(run) not in planned]
            planned.update(map(_key, new))
            missing[name] = MissingStages.of(len(one.runs), new, one.inspect_run, stages, known)
        except AfarmError as error:
            left_out[name] = str(error)
    if dry_run and options.as_json:
        print_json({name: left_out.get(name) or asdict(missing[name]) for name in asked})
        return
    for name in asked:
        text = f"left out: {left_out[name]}" if name in left_out else missing[name].sentence
        console.print(f"{name:18} {text}", markup=False)
    names = ("stages", "seconds", "unknown", "dollars", "most_dollars")
    totals: list[Any] = [add_up([getattr(one, name) for one in missing.values()]) for name in names]
    text = f"Together, what studies share once: {MissingStages(runs, *totals).sentence}. Nothing was run."
    console.print(text, markup=False)
