"""`afarm study NAME`: a grid of runs over shared artifacts, and the tables and plots of what it shows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm import ConfigError, DataError, PluginError
from afarm.cli.options import (
    FarmOptions,
    build_launcher,
    command_line,
    confirm,
    err,
    launch_stages,
    markup,
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

OWN_LABELS = "preferences="
"""The setting of a run that learns from preferences of its own."""

BETWEEN = 20
"""The time between two reports on an unfinished study, in times of what the last one took."""


def conduct(
    component: Component,
    name: str,
    own: Mapping[str, Any],
    seeds: str | None,
    launcher: str,
    plots: str | None,
    yes: bool,
    options: FarmOptions,
    dry_run: bool = False,
    is_shown: bool = True,
) -> tuple[GridProgress, Path] | None:
    """Run a study, and show its findings if `is_shown`. Returns runs and page; None for a dry run."""
    from afarm import DataStudy, JudgingStudy
    from afarm_plugins.grids.grid import MANY, require_possible, study_directory

    started = time.time()
    formats = parse_formats(plots)
    asked = configure_study(component, name, own, options, seeds)
    runs = asked.grid()
    directory = study_directory(options.output_dir, name, runs, options.as_recipe(), asked.recipe, dict(own))
    account = f"study-{directory.name}"  # whose budget it has
    prepare, judging, simulated = None, dict[str, Any](), list[str]()
    if isinstance(asked.study, JudgingStudy):
        judging, simulated = _have_judged(asked, account, dry_run)
    elif isinstance(asked.study, DataStudy) and not dry_run:
        judging = _have_read(asked)
    elif not runs:
        if dry_run:
            out().print(f"Study {name} makes no run: it reads files.", markup=False)
            return None
    elif dry_run or (len(runs) > MANY and not yes):
        _show_plan(asked, runs, account, launcher)
    else:
        require_possible(runs, asked.inspect_run)
    if dry_run:
        return None
    if len(runs) > MANY and not yes:
        confirm(f"{len(runs):,} runs")
    if runs:
        prepare = _prepared(asked, runs, account, launcher)
    progress, findings, page = _run(asked, runs, directory, account, prepare, formats, judging, simulated)
    if is_shown:
        _show(asked, progress, findings, page, started)
    return progress, page


def configure_study(
    component: Component, name: str, own: Mapping[str, Any], options: FarmOptions, seeds: str | None
) -> AskedStudy:
    """Return a study configured by the command's options. Raises `ConfigError` for wrong settings."""
    from pydantic import ValidationError

    from afarm import StudyRequest, explain_validation_error
    from afarm.experiments import RunConfig, read_recipe

    recipe = read_recipe(options.recipe_or_default)
    given = {**recipe, **options.as_recipe()}
    section = given.get(name)
    try:
        config = component.settings({**(section if isinstance(section, Mapping) else {}), **own})
    except ValidationError as error:
        assert component.config is not None
        problems = explain_validation_error(error, component.config, f"{name}.", unknown="", missing="")
        raise ConfigError(problems) from error
    with attribute_failures("studies", name, component.load()):
        study = component.load()(config) if component.config else component.load()()
    defaults = {field: RunConfig.model_fields[field].default for field in ("method", "seed")}
    numbers = parse_seeds(seeds) if seeds is not None else [int(given.get("seed", defaults["seed"]))]
    request = StudyRequest(str(given.get("method", defaults["method"])), tuple(numbers), options.output_dir)
    settings = config.model_dump(mode="json") if config else {}
    return AskedStudy(name, options, study, request, options.recipe_or_default, settings)


@dataclass(frozen=True)
class AskedStudy:
    """A study as asked for, with its `settings`; the `options` of its runs and the recipe's name."""

    name: str
    options: FarmOptions
    study: Study
    request: StudyRequest
    recipe: str
    settings: Mapping[str, Any]

    def grid(self) -> list[StudyRun]:
        """State the runs. Raises `ConfigError`, and `PluginError` for a fault of the study's."""
        from afarm_plugins.grids.grid import checked_grid

        with attribute_failures("studies", self.name, self.study):
            runs = checked_grid(self.study, self.request)
        labels = [text for run in runs for text in run.settings if text.startswith(("annotate.", OWN_LABELS))]
        if labels and self.options.preferences:
            raise ConfigError(
                [
                    f"--preferences would train every run of study {self.name}, whose runs differ in their labels "
                    f"({labels[0]}): rankings and transfer take people's labels as --people-preferences FILE"
                ]
            )
        return runs

    def findings(self, progress: GridProgress) -> Findings:
        """Read the findings off the runs that are there. Raises `PluginError` for a fault of the study's."""
        with attribute_failures("studies", self.name, self.study):
            return self.study.analyse(progress.finished)

    def of(self, run: StudyRun) -> FarmOptions:
        """Return the options of a run: if some learn from preferences, each has the options of its own labels."""
        settings = [*(self.options.settings or []), *run.settings]
        options = replace(self.options, method=run.method, seed=run.seed, settings=settings)
        if any(setting.startswith(OWN_LABELS) for setting in run.settings):
            return replace(options, annotator=None, label_noise=None)
        return replace(options, on_unusable=None, labels=None) if self._some_have_own_labels else options

    @cached_property
    def _some_have_own_labels(self) -> bool:
        return any(setting.startswith(OWN_LABELS) for run in self.grid() for setting in run.settings)

    def inspect_run(self, run: StudyRun) -> Any:
        """Open a run's workspace as for a dry run; a context manager."""
        from afarm.experiments import run_checks

        return self.of(run).dry_run(run_checks())


def _have_judged(asked: AskedStudy, account: str, dry_run: bool) -> tuple[dict[str, Any], list[str]]:
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
        workspace.judges.client.charge_run(account),
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


def _show_plan(asked: AskedStudy, runs: Sequence[StudyRun], account: str, launcher: str) -> None:
    """Show how many runs there are, which stages are missing and what judges would cost."""
    from afarm_plugins.grids.grid import AT_ONCE, plan_grid, sample_runs

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


def _prepared(asked: AskedStudy, runs: Sequence[StudyRun], account: str, launcher: str) -> Any:
    """Say if the budget is too small. Returns what has a launcher make stages; None for this process."""
    from afarm_plugins.grids.grid import plan_grid

    with asked.of(runs[0]).farm() as farm, farm.workspace.judges.client.charge_run(account):
        there = build_launcher(launcher, [(runs[0].method, farm.workspace)])
        warn_of_budget(farm.workspace, lambda: plan_grid(runs, asked.inspect_run))
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
    asked: AskedStudy,
    runs: Sequence[StudyRun],
    directory: Path,
    account: str,
    prepare: Any,
    formats: Sequence[str],
    judging: Mapping[str, Any],
    simulated: Sequence[str],
) -> tuple[GridProgress, Findings, Path]:
    """Run the grid and write the findings as they come, so that a stopped study leaves some."""
    from afarm import Findings
    from afarm.experiments import GridProgress, StudyRecord, write_study_record
    from afarm.report import ShownStudy, write_study
    from afarm_plugins.grids.grid import run_grid

    command, told = command_line(), set[str]()
    with attribute_failures("studies", asked.name, asked.study):
        asked.study.know(facts := asked.study.look_up())
    record = StudyRecord(asked.name, command, asked.settings, asked.request, judging=judging, facts=facts)

    def pages(progress: GridProgress, findings: Findings, formats: Sequence[str]) -> Path:
        page = write_study(directory, ShownStudy(asked.name, command, progress, findings, formats))
        write_study_record(directory, replace(record, formats=formats), progress)
        return page

    def written(progress: GridProgress, formats: Sequence[str] = ()) -> tuple[GridProgress, Findings, Path]:
        try:
            findings = asked.findings(progress)
            return progress, findings, pages(progress, findings, formats)
        except (DataError, PluginError) as error:  # the runs are kept, and go on
            page = pages(progress, Findings(notes=[f"No findings: {error}"]), ())
            if not progress.missing:
                raise
            return progress, Findings(), page

    def lay_out_run(run: StudyRun) -> Workspace:
        from afarm.experiments import tell_once

        workspace = asked.of(run).farm().workspace
        workspace.on_stage = partial(tell_once, told, workspace.on_stage)
        return workspace

    def tell(heading: str) -> None:
        err().print(f"[bold]{markup(heading)}[/]")

    progress, waited, took = GridProgress(runs, simulated=set(simulated)), time.monotonic(), 0.0
    try:
        for progress in run_grid(runs, lay_out_run, _evaluate, account, prepare, tell):
            if progress.missing and time.monotonic() - waited >= BETWEEN * took:
                began = time.monotonic()
                written(progress)
                waited = time.monotonic()
                took = waited - began
    except BaseException:
        if progress.finished and progress.missing:
            written(progress)
        raise
    return written(progress, formats)


def _evaluate(run: StudyRun, workspace: Workspace) -> RunRecord:
    from afarm import Farm

    return record_run(Farm.over(workspace), run.method, time.time())[0]


def _show(asked: AskedStudy, progress: GridProgress, findings: Findings, page: Path, started: float) -> None:
    """Show the tables and where everything is."""
    if asked.options.as_json:
        print_json(_as_json(progress, findings, page))
    console = err() if asked.options.as_json else out()
    for table in findings.tables:
        if table.rows:  # none if every run failed, which is told below
            _show_table(console, table)
    for note in findings.notes:
        console.print(markup(note), style="dim")
    for label, why in progress.failed.items():
        err().print(f"[red]Failed:[/] {markup(one_line(label))}: {markup(why)}")
    took = f"(took {time.time() - started:.0f} s)"
    console.print(f"Study: {page.with_suffix('.html')} {took}", markup=False)


def _show_table(console: Console, table: StudyTable) -> None:
    from afarm.report import short_text

    forms = table.columns.values()
    rows = [[short_text(cell, form) for cell, form in zip(row, forms, strict=True)] for row in table.rows]
    print_table(console, table.title, {name: bool(form) for name, form in table.columns.items()}, rows)


def _as_json(progress: GridProgress, findings: Findings, page: Path) -> dict[str, Any]:
    tables = {
        table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in findings.tables
    }
    runs = [{**asdict(done.run), "record": done.name, "figures": dict(done.figures)} for done in progress.finished]
    return {"tables": tables, "runs": runs, "failed": progress.failed, "notes": list(findings.notes), "page": str(page)}
