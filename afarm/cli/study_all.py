"""`afarm study all`: every study in turn over shared artifacts, and an index of their pages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli.console import err, out, print_json
from afarm.cli.launchers import LOCAL, LauncherName
from afarm.cli.options import DryRun, FarmOptions, with_options
from afarm.core.errors import AfarmError, ConfigError
from afarm.storage.text import markdown, markup

if TYPE_CHECKING:
    from afarm.core.registry import Component
    from afarm.studies.times import MissingStages

Full = Annotated[bool, typer.Option("--full", help="Each study's whole grid, not a small one.")]
Names = Annotated[str | None, typer.Option("--only", help="These studies alone, with commas between.")]
Seeds = Annotated[
    str | None, typer.Option("--seeds", show_default="the recipe's", help="The seeds, with commas between.")
]


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


def add_to(group: typer.Typer) -> None:
    from afarm.cli.study import WITHOUT

    group.command("all", help="Every study in turn, small grids over shared artifacts, and an index of their pages.")(
        with_options(study_all, without=WITHOUT)
    )


def study_all(
    seeds: Seeds = None,
    launcher: LauncherName = LOCAL,
    only: Names = None,
    full: Full = False,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Run every study, or show how many runs, stages and minutes that would be."""
    from afarm.cli.study import conduct

    chosen = _chosen(only)
    if dry_run:
        _show_plan(chosen, full, options, seeds)
        return
    began, found = time.time(), list[StudyOutcome]()
    for number, (name, component) in enumerate(chosen.items(), start=1):
        err().print(f"[bold]study {number} of {len(chosen)}: {markup(name)}[/]", highlight=False)
        outcome, started = StudyOutcome(name, component.summary), time.time()
        found.append(outcome)
        try:
            own, is_shown = _own(component, full), not options.as_json
            conducted = conduct(component, name, own, seeds, launcher, None, True, options, is_shown=is_shown)
            assert conducted is not None
            progress, outcome.page = conducted
            outcome.runs, outcome.failed = len(progress.runs), len(progress.failed)
        except ConfigError as error:
            outcome.left_out = str(error)
        except AfarmError as error:
            outcome.error = str(error)
        outcome.seconds = time.time() - started
        if outcome.page is None:
            err().print(f"[yellow]{markup(name)}: {markup(outcome.words)}[/]", highlight=False, soft_wrap=True)
        index = write_index(options.output_dir / "studies", found)
    if options.as_json:
        print_json({"index": str(index), "studies": {one.name: one.words for one in found}})
    took = f"(took {(time.time() - began) / 60:.0f} min)"
    (err() if options.as_json else out()).print(f"Studies: {index} {took}", soft_wrap=True, highlight=False)
    if any(one.error or one.failed for one in found) or all(one.page is None for one in found):
        raise typer.Exit(1)


def _chosen(only: str | None) -> dict[str, Component]:
    """Return the studies by their names. Raises `ConfigError` for a name that is none."""
    from afarm.core.plugins import discover

    registry = discover(check_configs=False).registry
    known = {registry.names_of(c)[-1]: c for c in registry if c.kind == "studies"}
    names = [name.strip() for name in only.split(",")] if only is not None else list(known)
    if wrong := [name for name in names if name not in known]:
        raise ConfigError([f"--only: no study {wrong[0]!r}: {', '.join(known)}"])
    return {name: known[name] for name in names}


def _own(component: Component, full: bool) -> Mapping[str, Any]:
    return {} if full else dict(component.load().brief)


def write_index(directory: Path, found: list[StudyOutcome]) -> Path:
    """Write the index of studies as Markdown and HTML, with a link to each page. Returns the HTML's path."""
    from afarm.report.page_shell import render_page
    from afarm.storage.disk import write_whole

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


def _show_plan(chosen: Mapping[str, Component], full: bool, options: FarmOptions, seeds: str | None) -> None:
    """Show the runs and minutes of each study, counting a stage where it would be made first."""
    from afarm.storage.artifacts import Store
    from afarm.studies.times import seconds_by_label

    known = seconds_by_label(Store(options.output_dir).all()) if options.output_dir.is_dir() else {}
    seen: set[str] = set()
    plan = dict(_planned(chosen, full, options, seeds, seen))
    if options.as_json:
        print_json({name: one if isinstance(one, str) else one.to_json(known) for name, one in plan.items()})
        return
    for name, one in plan.items():
        text = f"left out: {one}" if isinstance(one, str) else one.sentence(known)
        out().print(f"{name:18} {text}", highlight=False, markup=False, soft_wrap=True)
    missing = [one for one in plan.values() if not isinstance(one, str)]
    total = sum(one.seconds(known) for one in missing)
    unknown = sum(one.unknown(known) for one in missing)
    more = f", and {unknown} stages whose time no stored one tells" if unknown else ""
    runs = sum(one.runs for one in missing)
    out().print(f"{runs} runs, about {total / 60:.0f} minutes{more}. Nothing was run.", highlight=False, soft_wrap=True)


def _planned(
    chosen: Mapping[str, Component], full: bool, options: FarmOptions, seeds: str | None, seen: set[str]
) -> Iterator[tuple[str, MissingStages | str]]:
    from afarm.cli.study import asked_study
    from afarm.studies.times import missing_stages

    for name, component in chosen.items():
        try:
            asked = asked_study(component, name, _own(component, full), options, seeds)
            yield name, missing_stages(asked.grid(), asked.look_at, seen)
        except AfarmError as error:
            yield name, str(error)
