"""`afarm study NAME`: a grid of runs over shared artifacts, and the tables and plots of what it shows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm import ConfigError, DataError, PluginError
from afarm.cli.options import (
    FarmOptions,
    build_launcher,
    command_line,
    err,
    launch_stages,
    markup,
    option,
    out,
    parse_seeds,
    preview_launch,
    print_json,
    print_table,
    record_run,
    show_plan,
    warn_of_budget,
)
from afarm.experiments import Component, attribute_failures
from afarm.report import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from afarm import Findings, RunRecord, Study, StudyRequest, StudyRun, StudyTable
    from afarm.experiments import GridProgress, Workspace

    Shown = tuple[GridProgress, Findings, Path]

Seeds = Annotated[str | None, option("--seeds", "The seeds, with commas between.", default="the recipe's")]
Formats = Annotated[str | None, option("--plots FORMATS", "Plots also as png, pdf, or both with a comma between.")]
Yes = Annotated[bool, option("--yes", "Begin without asking, however many runs there are.")]

WITHOUT = {"method", "seed", "accelerate_config"}
"""The options of a farm that a study has otherwise: its grid names methods and seeds."""

OWN_LABELS = "preferences="
"""The setting of a run that learns from preferences of its own."""

BETWEEN = 20
"""The time between two reports on an unfinished study, in times of what the last one took."""


def confirm(what: str) -> None:
    """Ask before what costs much begins: "1,200 runs". Raises `ConfigError` if nobody is there to answer."""
    if not err().is_terminal:
        raise ConfigError([f"{what}: look at the plan above, and begin with --yes"])
    typer.confirm(f"Begin {what}?", abort=True, err=True)


def conduct(
    asked: AskedStudy,
    launcher: str,
    formats: Sequence[str],
    yes: bool,
    dry_run: bool = False,
    is_shown: bool = True,
) -> tuple[GridProgress, Path] | None:
    """Run a study, and show its findings if `is_shown`. Returns runs and page; None for a dry run."""
    from afarm import DataStudy, JudgingStudy
    from afarm_plugins.grids.grid import MANY, require_possible

    started, runs = time.time(), asked.runs
    is_large = len(runs) > MANY and not yes
    judging, simulated = dict[str, Any](), list[str]()
    if isinstance(asked.study, JudgingStudy):
        judging, simulated = _have_judged(asked, dry_run)
    elif isinstance(asked.study, DataStudy) and not dry_run:
        judging = _have_read(asked)
    elif not runs and dry_run:
        out().print(f"Study {asked.name} makes no run: it reads files.", markup=False)
    elif runs and (dry_run or is_large):
        _show_plan(asked, launcher)
    elif runs:
        require_possible(runs, asked.inspect_run)
    if dry_run:
        return None
    if is_large:
        confirm(f"{len(runs):,} runs")
    prepare = _prepared(asked, launcher) if runs else None
    progress, findings, page = _run(asked, prepare, formats, judging, simulated)
    if is_shown:
        _show(asked, progress, findings, page, started)
    return progress, page


def configure_study(
    component: Component, name: str, own: Mapping[str, Any], options: FarmOptions, seeds: str | None
) -> AskedStudy:
    """Return a study configured by the command's options.

    Raises `ConfigError` for wrong settings or a grid that cannot be, and `PluginError` for a fault of the study's.
    """
    from pydantic import ValidationError

    from afarm import StudyRequest, explain_validation_error
    from afarm.experiments import RunConfig, read_recipe
    from afarm_plugins.grids.grid import checked_grid, study_directory

    recipe = read_recipe(options.recipe_or_default)
    given = {**recipe, **options.as_recipe()}
    section = given.get(name)
    try:
        config = component.settings({**(section if isinstance(section, Mapping) else {}), **own})
    except ValidationError as error:
        assert component.config is not None
        problems = explain_validation_error(error, component.config, f"{name}.", unknown="", missing="")
        raise ConfigError(problems) from error
    defaults = {field: RunConfig.model_fields[field].default for field in ("method", "seed")}
    numbers = parse_seeds(seeds) if seeds is not None else [int(given.get("seed", defaults["seed"]))]
    request = StudyRequest(str(given.get("method", defaults["method"])), tuple(numbers), options.output_dir)
    with attribute_failures("studies", name, component.load()):
        study = component.load()(config) if component.config else component.load()()
        runs = checked_grid(study, request)
    own_labels = [text for run in runs for text in run.settings if text.startswith(("annotate.", OWN_LABELS))]
    if own_labels and options.preferences:
        raise ConfigError(
            [
                f"--preferences would train every run of study {name}, whose runs differ in their labels "
                f"({own_labels[0]}): rankings and transfer take people's labels as --people-preferences FILE"
            ]
        )
    directory = study_directory(
        options.output_dir, name, runs, options.as_recipe(), options.recipe_or_default, dict(own)
    )
    return AskedStudy(name, options, study, request, config.model_dump(mode="json") if config else {}, runs, directory)


@dataclass(frozen=True)
class AskedStudy:
    """A study as asked for: `settings`, `runs` with their `options`, and the findings' directory."""

    name: str
    options: FarmOptions
    study: Study
    request: StudyRequest
    settings: Mapping[str, Any]
    runs: Sequence[StudyRun]
    directory: Path

    @property
    def account(self) -> str:
        """The account whose budget it has."""
        return f"study-{self.directory.name}"

    def of(self, run: StudyRun) -> FarmOptions:
        """Return the options of a run: if some learn from preferences, each has the options of its own labels."""
        settings = [*(self.options.settings or []), *run.settings]
        options = replace(self.options, method=run.method, seed=run.seed, settings=settings)
        if any(setting.startswith(OWN_LABELS) for setting in run.settings):
            return replace(options, annotator=None, label_noise=None)
        some_have = any(setting.startswith(OWN_LABELS) for run in self.runs for setting in run.settings)
        return replace(options, on_unusable=None, labels=None) if some_have else options

    def inspect_run(self, run: StudyRun) -> Any:
        """Open a run's workspace as for a dry run; a context manager."""
        from afarm.experiments import run_checks

        return self.of(run).dry_run(run_checks())


def _have_judged(asked: AskedStudy, dry_run: bool) -> tuple[dict[str, Any], list[str]]:
    """Have judges label the pairs of a study, on its account, or show what they would be asked.

    Returns the settings that they were asked with, and the names of those that are formulas.
    """
    from afarm import AnnotateContext, JudgingStudy
    from afarm.experiments import PlannedStage, estimates, formula_judges, judging_checks, reading_client

    study, step = asked.study, f"study {asked.name}"
    assert isinstance(study, JudgingStudy)
    options = replace(asked.options, seed=asked.request.seeds[0])

    def planned(workspace: Workspace) -> list[PlannedStage]:
        client = reading_client(workspace, workspace.judges.by_role)
        with attribute_failures("studies", asked.name, study):
            requests = study.plan(AnnotateContext(workspace.seed(step), client, workspace.progress))
        return [PlannedStage("judge", "labels", False, judges=estimates(client, [requests]))]

    with (
        options.dry_run(judging_checks(), trains=False) if dry_run else options.judging_workspace() as workspace,
        workspace.judges.client.charge_run(asked.account),
    ):
        if dry_run:
            show_plan(workspace, "", options.as_json, planned=planned(workspace), step=step)
            return {}, []
        warn_of_budget(workspace, lambda: planned(workspace))
        with attribute_failures("studies", asked.name, study):
            study.judge(AnnotateContext(workspace.seed(step), workspace.judges.client, workspace.progress))
        return _dump_settings(workspace), formula_judges(workspace)


def _have_read(asked: AskedStudy) -> dict[str, Any]:
    """Have a study read the recipe's data set. Returns the settings of that."""
    from afarm import DataStudy

    assert isinstance(asked.study, DataStudy)
    with (
        asked.options.dry_run((), trains=False) as workspace,
        attribute_failures("studies", asked.name, asked.study),
    ):
        asked.study.read(workspace.data.load)
        return _dump_settings(workspace)


def _dump_settings(workspace: Workspace) -> dict[str, Any]:
    return {**workspace.config.model_dump(mode="json"), **workspace.settings.sections}


def _show_plan(asked: AskedStudy, launcher: str) -> None:
    """Show how many runs there are, which stages are missing and what judges would cost."""
    from afarm_plugins.grids.grid import AT_ONCE, plan_grid, sample_runs

    runs, account = asked.runs, asked.account
    with ExitStack() as looks:
        workspace = looks.enter_context(asked.inspect_run(runs[0]))
        systems = [(runs[0].method, workspace)]
        if build_launcher(launcher, systems):  # sees what is wrong with it, before what takes longer
            systems += [(run.method, looks.enter_context(asked.inspect_run(run))) for run in runs[1:AT_ONCE]]
        plan = plan_grid(runs, asked.inspect_run)
        demanded = preview_launch(launcher, systems, account, len(runs))
        looks.enter_context(workspace.judges.client.charge_run(account))
        step, as_json = f"study {asked.name}", asked.options.as_json
        show_plan(workspace, runs[0].method, as_json, planned=plan, step=step, launcher=demanded)
    console = err() if asked.options.as_json else out()
    looked_at = len(sample_runs(runs))
    text = f"Study {asked.name}: {len(runs):,} run{'s' * (len(runs) != 1)}"
    text += f", estimated from {looked_at} of them." if looked_at < len(runs) else "."
    console.print(text, markup=False)


def _prepared(asked: AskedStudy, launcher: str) -> Any:
    """Say if the budget is too small. Returns what has a launcher make stages; None for this process."""
    from afarm_plugins.grids.grid import plan_grid

    first = asked.runs[0]
    with asked.of(first).farm() as farm, farm.workspace.judges.client.charge_run(asked.account):
        there = build_launcher(launcher, [(first.method, farm.workspace)])
        warn_of_budget(farm.workspace, lambda: plan_grid(asked.runs, asked.inspect_run))
        return partial(launch_stages, launcher) if there else None


def parse_formats(text: str | None) -> list[str]:
    """Parse the formats of plots, SVG first; none without Matplotlib.

    Raises `ConfigError` for unknown ones, `PluginError` for any without Matplotlib.
    """
    from afarm.experiments import PICTURES
    from afarm.report import can_draw

    formats = [part.strip().lower() for part in text.split(",")] if text is not None else []
    if wrong := [form for form in formats if form not in PICTURES]:
        raise ConfigError([f"--plots {wrong[0]!r}: png or pdf; SVG is always written"])
    if formats and not can_draw():
        raise PluginError("--plots needs Matplotlib: pip install 'afarm[plots]'")
    return list(dict.fromkeys(["svg", *formats])) if can_draw() else []


def _run(
    asked: AskedStudy, prepare: Any, formats: Sequence[str], judging: Mapping[str, Any], simulated: Sequence[str]
) -> Shown:
    """Run the grid and write the findings as they come, so that a stopped study leaves some."""
    from afarm import Farm, Findings
    from afarm.experiments import GridProgress, StudyRecord, tell_once, write_study_record
    from afarm.report import ShownStudy, write_study
    from afarm_plugins.grids.grid import run_grid

    command, told = command_line(), set[str]()
    with attribute_failures("studies", asked.name, asked.study):
        facts = dict(asked.study.look_up())
        json.dumps(facts)  # its record keeps them
        asked.study.know(facts)
    record = StudyRecord(asked.name, command, asked.settings, asked.request, judging=judging, facts=facts)

    def write(progress: GridProgress, findings: Findings, formats: Sequence[str]) -> Shown:
        page = write_study(asked.directory, ShownStudy(asked.name, command, progress, findings, formats, asked.study))
        write_study_record(asked.directory, replace(record, formats=formats), progress)
        return progress, findings, page

    def analyse(progress: GridProgress, formats: Sequence[str] = ()) -> Shown:
        try:
            with attribute_failures("studies", asked.name, asked.study):
                findings = asked.study.analyse(progress.finished)
            return write(progress, findings, formats)
        except (DataError, PluginError) as error:  # the runs are kept, and go on
            shown = write(progress, Findings(notes=[f"No findings: {error}"]), ())
            if not progress.missing:
                raise
            return shown

    def lay_out_run(run: StudyRun) -> Workspace:
        workspace = asked.of(run).farm().workspace
        workspace.on_stage = partial(tell_once, told, workspace.on_stage)
        return workspace

    def evaluate(run: StudyRun, workspace: Workspace) -> RunRecord:
        return record_run(Farm.over(workspace), run.method, time.time())[0]

    def tell(heading: str) -> None:
        err().print(f"[bold]{markup(heading)}[/]")

    progress, waited, took = GridProgress(asked.runs, simulated=set(simulated)), time.monotonic(), 0.0
    try:
        for progress in run_grid(asked.runs, lay_out_run, evaluate, asked.account, prepare, tell):
            if progress.missing and time.monotonic() - waited >= BETWEEN * took:
                began = time.monotonic()
                analyse(progress)
                waited = time.monotonic()
                took = waited - began
    except BaseException:
        if progress.finished and progress.missing:
            analyse(progress)
        raise
    return analyse(progress, formats)


def _show(asked: AskedStudy, progress: GridProgress, findings: Findings, page: Path, started: float) -> None:
    """Show the tables and where everything is."""
    if asked.options.as_json:
        tables = {
            table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in findings.tables
        }
        runs = [{**asdict(done.run), "record": done.name, "figures": dict(done.figures)} for done in progress.finished]
        print_json(
            {
                "answer": findings.answer,
                "tables": tables,
                "runs": runs,
                "failed": progress.failed,
                "notes": list(findings.notes),
                "page": str(page),
            }
        )
    console = err() if asked.options.as_json else out()
    if findings.answer:
        console.print(findings.answer, style="bold", markup=False)
    for table in filter(lambda table: table.rows, findings.tables):  # none if every run failed, which is told below
        _show_table(console, table)
    for note in findings.notes:
        console.print(markup(note), style="dim")
    for label, why in progress.failed.items():
        err().print(f"[red]Failed:[/] {markup(one_line(label))}: {markup(why)}")
    took = f"(took {time.time() - started:.0f} s)"
    console.print(f"Study: {page.with_suffix('.html')} {took}", markup=False)


def _show_table(console: Console, table: StudyTable) -> None:
    from afarm.report import cell_text

    forms = table.columns.values()
    rows = [[cell_text(cell, form) for cell, form in zip(row, forms, strict=True)] for row in table.rows]
    print_table(console, table.title, {name: bool(form) for name, form in table.columns.items()}, rows)
