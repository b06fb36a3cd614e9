"""`afarm tune`: the settings of methods, each chosen by the same number of trials."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli.console import err, out
from afarm.cli.cost import show_plan
from afarm.cli.options import DryRun, FarmOptions, Stray, parse_seeds, refuse_stray, with_options
from afarm.cli.run import command_line
from afarm.core.errors import ConfigError, DataError
from afarm.storage.disk import write_whole
from afarm.storage.text import markup, one_line

if TYPE_CHECKING:
    from afarm.experiment.search_space import SearchSpace
    from afarm.experiment.tuning import Trial, Tuning
    from afarm.experiment.workspace import Workspace

ALL = "all"
COLUMNS = ("method", "number", "win_rate", "standard_error", "excess", "seconds", "error", "values", "figures")
"""The columns of the CSV file: the fields of a trial, the last two as JSON."""

Methods = Annotated[str, typer.Option("--methods", help="Methods by name, with commas between, or all.")]
Trials = Annotated[int, typer.Option("--trials", min=2, help="Trials of each method, the recipe's own settings first.")]
Seeds = Annotated[
    str, typer.Option("--seeds", help="The seeds of trials, with commas between. Report others than these.")
]
Space = Annotated[
    list[str] | None,
    typer.Option(
        "--space",
        help="A range or values to search instead of the method's own, as NAME=LOW:HIGH or NAME=A,B,C; repeatable.",
        metavar="NAME=VALUES",
    ),
]
MaxKL = Annotated[
    float | None,
    typer.Option("--max-kl", min=0, help="The KL to the start that a choice may have, in nats per response."),
]
MaxLengthRatio = Annotated[
    float | None,
    typer.Option("--max-length-ratio", help="The mean length that a choice may have, over the reference's.", min=0),
]


def add_to(app: typer.Typer) -> None:
    app.command("tune")(with_options(tune, without={"method", "seed", "accelerate_config"}))


def tune(
    stray: Stray = None,
    methods: Methods = ALL,
    trials: Trials = 16,
    seeds: Seeds = "1001",
    space: Space = None,
    max_kl: MaxKL = None,
    max_length_ratio: MaxLengthRatio = None,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Choose the settings of methods by trials on the validation split, as many for each."""
    from afarm.experiment.method_comparison import account_of
    from afarm.experiment.tuning import Limits, Search, Tuning, tuning_directory
    from afarm.experiment.workspace import tell_once

    refuse_stray(stray)
    given = options.as_recipe()
    options = replace(options, settings=[*(options.settings or []), "evaluate.split=validation"])
    spaces, left_out = _spaces(methods, space or [])
    of_seeds = parse_seeds(seeds)
    for name, why in left_out.items():
        err().print(f"[yellow]Left out:[/] {markup(name)}: {markup(why)}", highlight=False, soft_wrap=True)
    if dry_run:
        _show_plan(options, list(spaces), of_seeds[0], trials * len(of_seeds))
        return
    told: set[str] = set()

    def open_with(method: str, seed: int, values: Mapping[str, Any]) -> Workspace:
        further = [f"{method}.{name}={json.dumps(value)}" for name, value in values.items()]
        chosen = replace(options, method=method, seed=seed, settings=[*(options.settings or []), *further])
        workspace = chosen.farm().workspace
        workspace.on_stage = partial(tell_once, told, workspace.on_stage)
        return workspace

    limits = Limits(max_kl, max_length_ratio)
    with open_with(next(iter(spaces)), of_seeds[0], {}) as workspace:  # sees what is wrong before the first trial
        _require_comparable(workspace)
        directory = tuning_directory(workspace, of_seeds, limits)
        recipe = workspace.settings.recipe
    search = Search(open_with, spaces, of_seeds, limits, directory, account_of([str(directory.name)]))
    started = time.time()
    made = search.run(trials, partial(_tell_trial, trials))
    tuning = Tuning(directory, recipe, made)
    page = _write(tuning, limits)
    tuned = tuning.write_recipe(given)
    if options.as_json:
        rows = {method: [trial.to_row() for trial in done] for method, done in made.items()}
        best = {method: b.number if (b := tuning.best(method)) else None for method in made}
        sys.stdout.write(
            json.dumps({"trials": rows, "best": best, "page": str(page), "recipe": tuned and str(tuned)}) + "\n"
        )
    _show(tuning, to_stderr=options.as_json)
    console = err() if options.as_json else out()
    names = ",".join(made)
    where = "" if str(options.output_dir) == "afarm-runs" else f" --output-dir {shlex.quote(str(options.output_dir))}"
    lines = [f"Trials: {page} (took {time.time() - started:.0f} s)"]
    if tuned:
        lines += [
            "Chosen on the validation split, where the best of several is too high by chance: compare elsewhere.",
            f"Recipe: {tuned}",
            f"Next:   afarm compare --recipe {shlex.quote(str(tuned))} --methods {names} --seeds 1,2,3{where}",
        ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if not all(tuning.best(method) for method in made):
        raise typer.Exit(1)


def _spaces(methods: str, given: Sequence[str]) -> tuple[dict[str, SearchSpace], dict[str, str]]:
    """Return the space of each method, and of those left out of `all` the reason.

    Raises `ConfigError` for every unknown method, one with nothing to search, and a space that its settings refuse.
    """
    from afarm.core.interfaces import Method
    from afarm.core.plugins import discover
    from afarm.experiment.search_space import parse_space, space_problems

    registry = discover(check_configs=False).registry
    own: dict[str, dict[str, Any]] = {}
    for method, setting, values in map(parse_space, given):
        own.setdefault(method, {})[setting] = values
    every = methods == ALL
    names = [c.name for c in registry if c.kind == "methods"] if every else [n.strip() for n in methods.split(",")]
    spaces: dict[str, SearchSpace] = {}
    left_out: dict[str, str] = {}
    problems: list[str] = []
    for name in filter(None, dict.fromkeys(names)):
        component = registry.get("methods", name)
        target = component.load()
        stated = dict(getattr(target, "search_space", Method.search_space)) | own.pop(name, {})
        if stated:
            problems += space_problems(component, stated)
            spaces[name] = stated
        else:
            left_out[name] = "it states no settings to search (search_space)"
    if not every:
        problems += [f"{name}: {why}: name some with --space {name}.SETTING=LOW:HIGH" for name, why in left_out.items()]
    problems += [f"--space {name}.…: {name} is not among --methods {methods}" for name in own]
    if problems:
        raise ConfigError(problems)
    if not spaces:
        raise ConfigError([f"--methods {methods!r} names none: give names with commas between, or all"])
    return spaces, left_out


def _require_comparable(workspace: Workspace) -> None:
    """Raise `ConfigError` if trials would have no win rate, or nothing to be compared on."""
    from afarm.experiment.method_comparison import require_win_rate

    require_win_rate(workspace, "tune chooses")
    try:
        workspace.data.rows("validation")
    except DataError as error:
        raise ConfigError([f"trials are compared on the validation split: {error}"]) from error


def _show_plan(options: FarmOptions, methods: Sequence[str], seed: int, times: int) -> None:
    """Show what the first trial of the first method would do, and how many there would be."""
    from afarm.experiment import preflight

    with replace(options, method=methods[0], seed=seed).dry_run(preflight.of_run()) as workspace:
        _require_comparable(workspace)
        show_plan(workspace, methods[0], options.as_json)
    if not options.as_json:
        out().print(
            f"That is one trial of {methods[0]}. Trained and compared {times} times: each of {', '.join(methods)}.",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )


def _tell_trial(of: int, trial: Trial, was_there: bool) -> None:
    result = f"failed: {trial.error}" if trial.error else _win_rate(trial)
    past = f", past a limit by {trial.excess:.0%}" if trial.excess > 0 else ""
    took = "made before" if was_there else f"{trial.seconds:.0f} s"
    text = f"{trial.method}, trial {trial.number + 1} of {of}: {result}{past} ({_values(trial)}; {took})"
    err().print(f"[bold]{markup(one_line(text, 400))}[/]", highlight=False, soft_wrap=True)


def _win_rate(trial: Trial) -> str:
    if trial.win_rate is None:
        return "failed"
    error = "" if trial.standard_error is None else f" ± {trial.standard_error:.1f}"
    return f"{trial.win_rate:.1f} %{error}"


def _values(trial: Trial) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in trial.values.items())


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _show(tuning: Tuning, to_stderr: bool) -> None:
    """Show the best trial of each method beside the recipe's own settings."""
    from rich import box
    from rich.table import Table

    table = Table(title="Win rate on the validation split, ± standard error", title_justify="left", box=box.SIMPLE)
    for heading in ("method", "trials", "the recipe's", "best", "its settings"):
        table.add_column(heading, overflow="fold")
    for method, trials in tuning.trials.items():
        best = tuning.best(method)
        cells = [method, str(len(trials)), _win_rate(trials[0])]
        cells += [_win_rate(best), _values(best) if best.number else "the recipe's"] if best else ["none", ""]
        table.add_row(*map(markup, cells))
    (err() if to_stderr else out()).print(table)


def _write(tuning: Tuning, limits: Any) -> Path:
    """Write all trials as a Markdown page and a CSV file beside the recipe. Returns the page's path."""
    remedy = "make room or choose another --output-dir"
    lines = [f"`{command_line()}`", ""]
    bounds = {"KL": limits.kl, "length ratio": limits.length_ratio}
    if kept := [f"{name} at most {value:g}" for name, value in bounds.items() if value is not None]:
        lines += [f"Limits: {', '.join(kept)}.", ""]
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(COLUMNS)
    for method, trials in tuning.trials.items():
        best = tuning.best(method)
        names = list(trials[0].values)
        figures = list(dict.fromkeys(name for trial in trials for name in trial.figures))
        header = ["trial", *names, "win rate, %", *figures, "seconds"]
        lines += [f"## {method}", "", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
        for trial in trials:
            values = [_short(trial.values.get(name)) for name in names]
            measured = [f"{trial.figures[name]:.3g}" if name in trial.figures else "" for name in figures]
            result = one_line(trial.error, 200) if trial.error else _win_rate(trial).replace(" %", "")
            number = f"{trial.number + 1}{' (chosen)' if trial is best else ''}"
            lines.append(f"| {' | '.join([number, *values, result, *measured, f'{trial.seconds:.0f}'])} |")
            row = trial.to_row() | {name: json.dumps(dict(getattr(trial, name))) for name in ("values", "figures")}
            rows.writerow([row[name] for name in COLUMNS])
        lines.append("")
    write_whole(tuning.directory / "trials.csv", text.getvalue(), remedy)
    page = tuning.directory / "trials.md"
    write_whole(page, "\n".join(lines), remedy)
    return page
