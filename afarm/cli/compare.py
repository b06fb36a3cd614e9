"""`afarm compare`: several systems under one recipe, on shared artifacts, in one table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afarm import experiments, report
from afarm.cli.completion import complete_methods
from afarm.cli.console import command_line, err, out, print_json
from afarm.cli.farm_options import FarmOptions, record_run, with_options
from afarm.cli.launch import LOCAL, process_info
from afarm.cli.launchers import LauncherName, build_launcher, launch_stages, preview_launch
from afarm.cli.leaderboard import show_board
from afarm.cli.plans import show_plan, warn_of_budget
from afarm.cli.shared_options import DryRun, model_option, parse_seeds
from afarm.core.errors import AfarmError, ConfigError, DataError
from afarm.core.records import Row
from afarm.storage.disk import write_json, write_whole
from afarm.storage.runs import RunRecord
from afarm.storage.text import markup

if TYPE_CHECKING:
    from rich.console import Console

    from afarm.evaluation.boards import Leaderboard

ALL = "all"

Methods = Annotated[
    str,
    model_option(
        "--methods NAMES",
        "Methods by name, with commas between, or all; a judge LLM (openai:MODEL) answers as a system of its own.",
        complete_methods,
    ),
]
Seeds = Annotated[str | None, model_option("--seeds NUMBERS", "Several seeds, with commas between: means over them.")]


@partial(with_options, without={"method"})
def compare(
    methods: Methods = ALL,
    seeds: Seeds = None,
    launcher: LauncherName = LOCAL,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Run several methods on the same samples, preferences and reward model, and rank them."""
    from afarm.evaluation.boards.from_runs import board_of_systems
    from afarm.experiment.farm import Farm
    from afarm.experiment.method_comparison import name_account, run_each

    started = time.time()

    def run(system: str, workspace: experiments.Workspace) -> RunRecord | None:
        """Evaluate a system and write its record and report; of several processes the main one does."""
        if made is not None:
            made.hand_over(workspace)
        if workspace.process_info.is_main_process:
            return record_run(Farm.over(workspace), system, started)[0]
        Farm.over(workspace).evaluate(system)
        return None

    def tell(heading: str) -> None:
        if process_info().is_main_process and made is None:
            err().print(f"[bold]{markup(heading)}[/]")

    records: list[RunRecord] = []
    with ExitStack() as farms:
        if seeds is not None and options.seed is not None:
            raise ConfigError(["--seed and --seeds contradict each other: give one"])
        wanted: Sequence[int | None] = [options.seed] if seeds is None else parse_seeds(seeds)
        laid_out, left_out = _lay_out(options, methods, wanted, farms, dry_run)
        account = name_account(workspace.run_name(system) for system, workspace in laid_out)
        for name, why in left_out.items():
            err().print(f"[yellow]Left out:[/] {markup(name)}: {markup(why)}")
        with laid_out[0][1].judges.client.charge_run(account):
            if dry_run:
                asked = preview_launch(launcher, laid_out, account)
                show_plan(laid_out[0][1], methods, options.as_json, planned=_planned(laid_out), launcher=asked)
                return
            build_launcher(launcher, laid_out)  # which sees what is wrong with it, before what takes longer
            warn_of_budget(laid_out[0][1], lambda: _planned(laid_out))
        failed: dict[str, AfarmError] = {}
        made = launch_stages(launcher, laid_out, account)
        for system, workspace, outcome in run_each(laid_out, run, tell):
            if isinstance(outcome, RunRecord):
                records.append(outcome)
            elif outcome is not None:
                name = f"{system} (seed {workspace.config.seed})" if seeds else system
                failed[name] = outcome
                err().print(f"[red]Failed:[/] {markup(name)}: {markup(str(outcome))}")
    if not records and failed:
        raise next(iter(failed.values()))
    if not process_info().is_main_process:
        return
    left_out |= {name: str(error) for name, error in failed.items()}
    board, path = board_of_systems(records), options.output_dir / "boards" / f"{account}.md"
    page = _write(path, board, records, left_out)
    if options.as_json:
        tasks = {} if made is None else {"tasks": [asdict(outcome) for outcome in made.outcomes.values()]}
        places = {"board": str(path), "page": str(page)}
        print_json({"standings": _list_standings(board), "left_out": left_out, **places, **tasks})
    console = err() if options.as_json else out()
    _show(console, board, records)
    console.print(f"Board: {path} (took {time.time() - started:.0f} s)", markup=False)
    console.print(f"Page, with each run’s report: {page}", markup=False)
    if failed:
        raise typer.Exit(1)


def _show(console: Console, board: Leaderboard, records: Sequence[RunRecord]) -> None:
    """Show the board, and what to know of it."""
    from afarm.cli.screens import warn_of_simulation
    from afarm.evaluation.run_stages import cut_off
    from afarm.report.run import chosen_checkpoints

    show_board(console, board, "the board has them")
    for line in chosen_checkpoints(records):
        console.print(line, markup=False)
    for line in dict.fromkeys(line for record in records for line in cut_off(record["stages"])):
        console.print(f"[yellow]Cut off:[/] {markup(line)}")
    warn_of_simulation(console, records[0])


def _lay_out(
    options: FarmOptions, methods: str, seeds: Sequence[int | None], farms: ExitStack, dry_run: bool = False
) -> tuple[list[tuple[str, experiments.Workspace]], dict[str, str]]:
    """Lay out every system with a workspace of its own, seed by seed, before anything runs.

    Also returns why methods were left out of "all". Raises `ConfigError` if a named method cannot be run.
    """
    from afarm.experiment import preflight
    from afarm.experiment.llm_baselines import is_llm_system
    from afarm.experiment.method_comparison import is_reference_system
    from afarm.experiment.pipeline import plan_evaluations

    every = methods == ALL
    registry = experiments.discover(check_configs=False).registry
    names = [c.name for c in registry if c.kind == "methods"] if every else experiments.named_methods(methods)
    llm_systems = [name for name in names if is_llm_system(name)]
    found: list[tuple[str, experiments.Workspace]] = []
    left_out: dict[str, str] = {}
    problems: list[str] = []
    for seed in seeds:
        for name in names:
            if name in left_out:
                continue
            method = None if is_llm_system(name) else name  # a judge LLM trains nothing: the recipe's method will do
            try:
                chosen = replace(options, method=method, seed=seed)
                looked_at = chosen.dry_run(preflight.run_checks(llm_systems)) if dry_run else None
                workspace = farms.enter_context(looked_at or chosen.farm(llm_systems).workspace)
                if is_reference_system(workspace, name):
                    if not every:
                        left_out[name] = "it is what the others are compared with"
                    continue
                experiments.require_win_rate(workspace)
                plan_evaluations(workspace, name)  # lays out its stages, which need their splits of the data set
                found.append((name, workspace))
            except (ConfigError, DataError) as error:
                reasons = error.problems if isinstance(error, ConfigError) else [str(error)]
                left_out[name] = "; ".join(reasons)
                problems += reasons
    if problems and (not every or not found):
        raise ConfigError(dict.fromkeys(problems))
    if not found:
        raise ConfigError(f"--methods {methods} leaves nothing to compare: {names[0]} is what others are compared with")
    return found, left_out


def _planned(laid_out: Sequence[tuple[str, experiments.Workspace]]) -> list[experiments.PlannedStage]:
    """The stages of all systems, those that they share once."""
    several = len({workspace.config.seed for _, workspace in laid_out}) > 1
    found: dict[str, experiments.PlannedStage] = {}
    for system, workspace in laid_out:
        for stage in experiments.plan_run(workspace, system):
            label = f"{stage.label}, seed {workspace.config.seed}" if several else stage.label
            found.setdefault(label, replace(stage, label=label))
    return list(found.values())


def _list_standings(board: Leaderboard) -> list[Row]:
    """Return the entries as rows of JSON, each with its reference and its differences from that."""
    from afarm.evaluation.boards.board import DIFFERENCE

    rows = []
    for entry in board.entries:
        metrics = {name: metric.value for name, metric in entry.metrics.items() if name.startswith(DIFFERENCE)}
        differences = {name.removeprefix(DIFFERENCE): value for name, value in metrics.items()}
        rows.append({**entry.to_row(), "reference": entry.source.reference, "differences": differences})
    return rows


def _write(path: Path, board: Leaderboard, records: Sequence[RunRecord], left_out: Mapping[str, str]) -> Path:
    """Write the board as Markdown, JSON and a page with plots and links to reports; return its path."""
    from afarm.report.comparison_findings import build_progress, comparison_findings
    from afarm.report.leaderboard_page import markdown_leaderboards
    from afarm.report.run import chosen_checkpoints
    from afarm.report.study_page import write_comparison

    command = command_line()
    absent = [f"Left out: {name}: {why}" for name, why in left_out.items()]
    lines = [f"`{command}`", "", markdown_leaderboards([board]), *chosen_checkpoints(records), *absent]
    write_whole(path, "\n".join(lines).rstrip() + "\n", "make room or choose another --output-dir")
    rows = {"command": command, "runs": [record["name"] for record in records], "standings": _list_standings(board)}
    write_json(path.with_suffix(".json"), {**rows, "left_out": left_out})
    progress = build_progress(records)
    findings = comparison_findings(board, records, progress)
    name = ", ".join(dict.fromkeys(run.method for run in progress.runs))
    findings = replace(findings, notes=[*findings.notes, *absent])
    return write_comparison(path.with_suffix(".html"), report.ShownStudy(name, command, progress, findings))
