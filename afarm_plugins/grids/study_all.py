"""`afarm study all`: every study in turn over shared artifacts, and an index of their pages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm import AfarmError, ConfigError
from afarm.cli.options import LOCAL, DryRun, FarmOptions, LauncherName, confirm, err, markup, option, out, print_json
from afarm.report import markdown
from afarm_plugins.grids.options import Formats, Seeds, Yes
from afarm_plugins.grids.study import AskedStudy, conduct, configure_study, parse_formats

if TYPE_CHECKING:
    from afarm import StudyRun
    from afarm.experiments import Component

Full = Annotated[bool, option("--full", "Each study's whole grid, not a small one.")]
Names = Annotated[str | None, option("--only", "These studies alone, with commas between.")]


@dataclass(slots=True)
class StudyOutcome:
    """The end of one study: its `page` and how many runs it has, or why it has none."""

    name: str
    question: str = ""
    runs: int = 0
    failed: int = 0
    seconds: float = 0.0
    page: Path | None = None
    left_out: str = ""
    error: str = ""

    @property
    def words(self) -> str:
        """Its end in words."""
        if self.left_out:
            return f"left out: {self.left_out}"
        if self.error:
            return f"failed: {self.error}"
        return f"{self.failed} of {self.runs} runs failed" if self.failed else "whole"


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

    parse_formats(plots)  # refused once, not by each study
    chosen = _chosen(only)
    asked: dict[str, tuple[AskedStudy, list[StudyRun]] | str] = {}
    for name, component in chosen.items():
        try:
            study = configure_study(component, name, _own(component, full), options, seeds)
            asked[name] = study, study.grid()
        except AfarmError as error:
            asked[name] = str(error)
    runs = len({_key(run) for one in asked.values() if not isinstance(one, str) for run in one[1]})
    if dry_run or (runs > MANY and not yes):
        _show_plan(asked, runs, options, dry_run)
    if dry_run:
        return
    if runs > MANY and not yes:
        confirm(f"{runs:,} runs")
    began, found = time.time(), list[StudyOutcome]()
    for number, (name, component) in enumerate(chosen.items(), start=1):
        err().print(f"[bold]study {number} of {len(chosen)}: {markup(name)}[/]")
        outcome, started = StudyOutcome(name, component.summary), time.time()
        found.append(outcome)
        try:
            own, is_shown = _own(component, full), not options.as_json
            conducted = conduct(component, name, own, seeds, launcher, plots, True, options, is_shown=is_shown)
            assert conducted is not None
            progress, outcome.page = conducted
            outcome.runs, outcome.failed = len(progress.runs), len(progress.failed)
        except ConfigError as error:
            outcome.left_out = str(error)
        except AfarmError as error:
            outcome.error = str(error)
        outcome.seconds = time.time() - started
        if outcome.page is None:
            err().print(f"[yellow]{markup(name)}: {markup(outcome.words)}[/]")
        index = write_index(options.output_dir / "studies", found)
    if options.as_json:
        print_json({"index": str(index), "studies": {one.name: one.words for one in found}})
    took = f"(took {(time.time() - began) / 60:.0f} min)"
    (err() if options.as_json else out()).print(f"Studies: {index} {took}")
    if any(one.error or one.failed for one in found) or all(one.page is None for one in found):
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


def _own(component: Component, full: bool) -> Mapping[str, Any]:
    return {} if full else dict(component.load().brief)


def write_index(directory: Path, found: list[StudyOutcome]) -> Path:
    """Write the index of studies as Markdown and HTML, with a link to each page. Returns the HTML's path."""
    from afarm import write_whole
    from afarm.report import render_page

    lines = ["# Studies", "", "| study | question | runs | minutes | end |", "|---|---|---:|---:|---|"]
    rows = []
    for one in found:
        page = one.page.with_suffix(".html").relative_to(directory).as_posix() if one.page else ""
        name = f"[{markdown(one.name)}]({page})" if page else markdown(one.name)
        minutes = one.seconds / 60
        lines.append(f"| {name} | {markdown(one.question)} | {one.runs} | {minutes:.1f} | {markdown(one.words)} |")
        own = {"name": one.name, "question": one.question, "page": page, "runs": one.runs}
        rows.append({**own, "minutes": minutes, "end": one.words})
    directory.mkdir(parents=True, exist_ok=True)
    remedy = "make room or choose another --output-dir"
    write_whole(directory / "index.md", "\n".join([*lines, ""]), remedy)
    write_whole(directory / "index.html", render_page("studies_index", ["tables"], studies=rows), remedy)
    return directory / "index.html"


# ------------------------------------------------------------------------------------------------------------ dry run


def _key(run: StudyRun) -> tuple[str, int, tuple[str, ...]]:
    """Return what makes runs of two studies the same run."""
    return run.method, run.seed, run.settings


def _show_plan(
    asked: Mapping[str, tuple[AskedStudy, list[StudyRun]] | str], runs: int, options: FarmOptions, dry_run: bool
) -> None:
    """Show the runs, minutes and dollars of each study; what several share is the first one's."""
    from afarm.results import Store
    from afarm_plugins.grids.times import MissingStages, add_prices, price_words, seconds_by_label

    known = seconds_by_label(Store(options.output_dir).all()) if options.output_dir.is_dir() else {}
    console, missing, left_out = out() if dry_run else err(), dict[str, MissingStages](), dict[str, str]()
    stages, planned = set[str](), set[tuple[str, int, tuple[str, ...]]]()
    for name, one in asked.items():
        if isinstance(one, str):
            left_out[name] = one
            continue
        study, grid = one
        new = [run for run in grid if _key(run) not in planned]
        planned.update(map(_key, new))
        try:
            missing[name] = MissingStages.of(len(grid), new, study.inspect_run, stages, known)
        except AfarmError as error:
            left_out[name] = str(error)
    if dry_run and options.as_json:
        print_json({name: left_out.get(name) or asdict(missing[name]) for name in asked})
        return
    for name in asked:
        text = f"left out: {left_out[name]}" if name in left_out else missing[name].sentence
        console.print(f"{name:18} {text}", markup=False)
    total = sum(one.seconds for one in missing.values())
    unknown = sum(one.unknown for one in missing.values())
    about = f"about {total / 60:.0f} minutes" if total or not unknown else ""
    untold = f"{unknown:,} stages whose time is unknown until one of their kind was made in {options.output_dir}"
    more = ", and ".join(filter(None, [about, untold if unknown else ""]))
    expected, most = (add_prices([getattr(one, n) for one in missing.values()]) for n in ("dollars", "most_dollars"))
    text = f"{runs:,} runs, those that studies share once, {more}{price_words(expected, most)}. Nothing was run."
    console.print(text, markup=False)
