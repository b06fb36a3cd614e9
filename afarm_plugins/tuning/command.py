"""`afarm tune`: the settings of methods, each chosen by the same number of trials."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm import ConfigError, DataError, write_whole
from afarm.cli.options import (
    LOCAL,
    DryRun,
    FarmOptions,
    LauncherName,
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
    show_plan,
    warn_of_budget,
    with_options,
    without_passwords,
    write_examples,
)
from afarm.report import markdown, one_line

if TYPE_CHECKING:
    from afarm.experiments import Workspace
    from afarm_plugins.tuning.search_space import SearchSpace
    from afarm_plugins.tuning.tuning import Limits, Trial, Tuning

ALL = "all"
COLUMNS = ("method", "number", "seeds", "win_rate", "standard_error", "excess", "seconds", "error", "values", "figures")
"""The columns of the CSV file: the fields of a trial, the last two as JSON."""

EARLIER = "By an earlier search"
"""The beginning of the line with the command of trials that a page keeps."""

BY_CHANCE = 0.05
"""The share of searches from which on differences like those of the trials count as chance."""

Methods = Annotated[str, option("--methods", "Methods by name, with commas between, or all.")]
Trials = Annotated[int, option("--trials", "Trials of each method, the recipe's own settings first.", min=2)]
Seeds = Annotated[
    str, option("--seeds", "The seed of trials, and with commas between those of finalists. Report others.")
]
Finalists = Annotated[int, option("--finalists", "The best trials of each method that are made with all seeds.", min=2)]
SPACE_HELP = "A range or values to search instead of the method's own, as NAME=LOW:HIGH or NAME=A,B,C; repeatable."
Space = Annotated[list[str] | None, option("--space NAME=VALUES", SPACE_HELP)]
By = Annotated[
    str, option("--by EVALUATOR", "The evaluator whose win rate chooses: win_rate, length_controlled, fitted …")
]
MaxKL = Annotated[
    float | None, option("--max-kl", "The KL to the start that a choice may have, in nats per response.", min=0)
]
MaxLengthRatio = Annotated[
    float | None,
    option("--max-length-ratio", "The mean length that a choice may have, over the reference's.", min=0),
]


def add_commands(app: typer.Typer) -> None:
    examples = write_examples(
        "tune", "--methods dpo,ppo --trials 16", "--methods dpo --space dpo.beta=0.05:0.5 --dry-run"
    )
    app.command("tune", epilog=examples)(with_options(tune, without={"method", "seed", "accelerate_config"}))


def tune(
    methods: Methods = ALL,
    trials: Trials = 16,
    seeds: Seeds = "1001,1002,1003",
    finalists: Finalists = 4,
    space: Space = None,
    by: By = "win_rate",
    max_kl: MaxKL = None,
    max_length_ratio: MaxLengthRatio = None,
    launcher: LauncherName = LOCAL,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Choose the settings of methods by trials on the validation split, as many for each."""
    from afarm.experiments import run_checks, tell_once
    from afarm_plugins.tuning.search_space import require_optuna
    from afarm_plugins.tuning.tuning import Search, count_trials, plan_search, tuning_account, tuning_directory

    require_optuna()  # before the first trial, which needs none
    given = options.as_recipe()
    options = replace(options, settings=[*(options.settings or []), "evaluate.split=validation"])
    limits = _limits(max_kl, max_length_ratio)
    spaces, left_out = _spaces(methods, space or [], limits)
    of_seeds = parse_seeds(seeds)
    for name, why in left_out.items():
        err().print(f"[yellow]Left out:[/] {markup(name)}: {markup(why)}")
    told: set[str] = set()

    def lay_out_run(method: str, seed: int, values: Mapping[str, Any]) -> Workspace:
        further = [f"{method}.{name}={json.dumps(value)}" for name, value in values.items()]
        chosen = replace(options, method=method, seed=seed, settings=[*(options.settings or []), *further])
        workspace = chosen.farm().workspace
        workspace.on_stage = partial(tell_once, told, workspace.on_stage)
        return workspace

    def open_trial(method: str) -> AbstractContextManager[Workspace]:
        if dry_run:
            return replace(options, method=method, seed=of_seeds[0]).dry_run(run_checks())
        return lay_out_run(method, of_seeds[0], {})

    first, *others = spaces
    for name in others:  # sees what is wrong before the first trial
        with open_trial(name):
            pass
    with open_trial(first) as workspace:
        _require_comparable(workspace, by)
        directory = tuning_directory(workspace, of_seeds[0], limits, by)
        account = tuning_account(directory)
        if dry_run:
            asked = preview_launch(launcher, [(first, workspace)], account)
            show_plan(workspace, first, options.as_json, launcher=asked)
        with workspace.judges.client.charge_run(account):
            warn_of_budget(workspace, lambda: plan_search(workspace, first, spaces, trials, finalists, len(of_seeds)))
        if dry_run:
            if not options.as_json:
                _show_counts(first, spaces, trials, finalists, len(of_seeds))
            return
        prepare = partial(launch_stages, launcher) if build_launcher(launcher, [(first, workspace)]) else None
        recipe = workspace.settings.recipe
        components = workspace.components
        identities = {name: components.identity(components.component("methods", name)) for name in spaces}
    search = Search(lay_out_run, spaces, identities, of_seeds, finalists, limits, directory, recipe, by, prepare)
    started = time.time()
    tuning = search.run(
        trials, lambda trial, there: _tell_trial(count_trials(spaces[trial.method], trials), trial, there)
    )
    page = _write(tuning, limits, trials)
    _report(tuning, trials, page, tuning.write_recipe(given), options, time.time() - started)


def _report(tuning: Tuning, trials: int, page: Path, tuned: Path | None, options: FarmOptions, seconds: float) -> None:
    """Show what was chosen and the command that goes on with it. Exits with 1 if a method has no choice."""
    if options.as_json:
        print_json({**_as_json(tuning), "page": str(page), "recipe": tuned and str(tuned)})
    _show(tuning, to_stderr=options.as_json)
    console = err() if options.as_json else out()
    names = ",".join(method for method in tuning.trials if tuning.best(method))
    places = {"--output-dir": str(options.output_dir), "--ledger": without_passwords(options.ledger or "")}
    given_places = {option: text for option, text in places.items() if text not in ("", "afarm-runs")}
    where = "".join(f" {option} {shlex.quote(text)}" for option, text in given_places.items())
    lines = [*_notes(tuning, trials), f"Trials: {page} (took {seconds:.0f} s)"]
    if tuned:
        lines += [
            "Chosen on the validation split, where the best of several is too high by chance: compare elsewhere.",
            f"Recipe: {tuned}",
            f"Next:   afarm compare --recipe {shlex.quote(str(tuned))} --methods {names} --seeds 1,2,3{where}",
        ]
    for line in lines:
        console.print(line, markup=False)
    if not all(tuning.best(method) for method in tuning.trials):
        raise typer.Exit(1)


def _as_json(tuning: Tuning) -> dict[str, Any]:
    trials, finals = (
        {
            method: [{name: v for name, v in trial.to_row().items() if name != "by_instruction"} for trial in made]
            for method, made in of.items()
        }
        for of in (tuning.trials, tuning.finals)
    )
    best = {method: chosen.number if (chosen := tuning.best(method)) else None for method in trials}
    return {
        "by": tuning.by,
        "trials": trials,
        "finals": finals,
        "best": best,
        "p_equal": {name: tuning.p_equal(name) for name in best},
    }


def _limits(kl: float | None, length_ratio: float | None) -> Limits:
    """Return the limits. Raises `ConfigError` for one that nothing can keep, or that bounds nothing."""
    from afarm_plugins.tuning.tuning import Limits

    given = {"--max-kl": kl, "--max-length-ratio": length_ratio}
    bounds = {name: value for name, value in given.items() if value is not None}
    if wrong := [f"{n} {v:g}: a number above 0" for n, v in bounds.items() if not (math.isfinite(v) and v > 0)]:
        raise ConfigError(wrong)
    return Limits(kl, length_ratio)


def _spaces(methods: str, given: Sequence[str], limits: Limits) -> tuple[dict[str, SearchSpace], dict[str, str]]:
    """Return the space of each method, and of those left out of `all` the reason.

    Raises `ConfigError` for every unknown method, one with nothing to search or without a figure for a limit, and a
    space that its settings refuse.
    """
    from afarm import Method
    from afarm.experiments import discover, named_methods
    from afarm_plugins.tuning.search_space import parse_space, space_problems

    registry = discover(check_configs=False).registry
    own: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for method, setting, values in map(parse_space, given):
        if setting in own.setdefault(method, {}):
            problems.append(f"--space {method}.{setting} is given twice: name all its values in one")
        own[method][setting] = values
    every = methods == ALL
    names = [c.name for c in registry if c.kind == "methods"] if every else named_methods(methods)
    spaces: dict[str, SearchSpace] = {}
    left_out: dict[str, str] = {}
    for name in names:
        component = registry.get("methods", name)
        target = component.load()
        stated, named = getattr(target, "search_space", Method.search_space), own.pop(name, {})
        if isinstance(stated, Mapping) or not stated:
            stated = {**(stated or {}), **named}
        if not stated:
            remedy = f"name some with --space {name}.SETTING=LOW:HIGH"
            left_out[name] = f"it states no settings to search (search_space): {remedy}"
        elif limits.kl is not None and not getattr(target, "measures_kl", Method.measures_kl):
            why = "it measures no KL to the start (measures_kl), so no limit on it can be kept"
            left_out[name] = f"{why}: leave --max-kl or the method out"
        else:
            problems += space_problems(component, stated)
            spaces[name] = stated
    unfit = [f"{name}: {why}" for name, why in left_out.items()]
    problems += [] if every else unfit
    problems += [f"--space {name}.…: {name} is not among --methods {methods}" for name in own]
    if problems or not spaces:
        raise ConfigError(problems or unfit)
    return spaces, left_out


def _require_comparable(workspace: Workspace, by: str) -> None:
    """Raise `ConfigError` if trials would have no win rate, or nothing to be compared on.

    Raises `PluginError` for an unknown evaluator.
    """
    from afarm.experiments import require_win_rate

    needs = workspace.components.evaluator(by).needs
    if "judgements" not in needs:
        raise ConfigError(f"--by {by}: it reads no judgements, and settings are chosen by a win rate")
    require_win_rate(workspace, "tune measures lengths, and compare ranks,")
    there = workspace.config.evaluate.evaluators
    if by not in there:
        setting = shlex.quote(f"evaluate.evaluators={json.dumps([*there, by])}")
        raise ConfigError(f"--by {by}: it is not among the evaluators: add --set {setting}")
    try:
        workspace.data.instructions("validation")
    except DataError as error:
        raise ConfigError([f"trials are compared on the validation split: {error}"]) from error


def _show_counts(first: str, spaces: Mapping[str, SearchSpace], trials: int, finalists: int, seeds: int) -> None:
    """Say how often each method would be trained and compared."""
    from afarm_plugins.tuning.tuning import count_trainings

    times = {name: count_trainings(space, trials, finalists, seeds) for name, space in spaces.items()}
    counts = ", ".join(f"{name} {count} times" for name, count in times.items())
    text = f"That is one trial of {first}. Trained and compared: {counts}."
    out().print(text, markup=False)


def _tell_trial(of: int, trial: Trial, was_there: bool) -> None:
    result = f"failed: {trial.error}" if trial.error else _win_rate(trial)
    past = f", past a limit by {trial.excess:.0%}" if trial.excess > 0 else ""
    took = "made before" if was_there else f"{trial.seconds:.0f} s"
    over = f" with {trial.seeds} seeds" if trial.seeds > 1 else ""
    text = f"{trial.method}, trial {trial.number + 1} of {of}{over}: {result}{past} ({_values(trial)}; {took})"
    err().print(f"[bold]{markup(one_line(text, 400))}[/]")


def _notes(tuning: Tuning, trials: int) -> Iterator[str]:
    """Say which methods have fewer trials than were asked for, and of which nothing is chosen."""
    for method, made in tuning.trials.items():
        if line := _exhausted(method, len(made), trials):
            yield line
        if tuning.best(method) is None:
            what = "finalist with all seeds" if tuning.finals[method] else "trial"
            yield f"{method}: nothing is chosen, since every {what} failed or is past a limit."
        elif (p := tuning.p_equal(method)) is not None and p >= BY_CHANCE:
            yield f"{method}: {_as_far_apart(p)}"


def _as_far_apart(p: float) -> str:
    """Say how often trials of equal settings would differ as much, by the draw of instructions and labels."""
    percent = 100 * p
    share = "less than 0.1" if percent < 0.1 else f"{percent:.2g}" if percent < 10 else f"{percent:.0f}"
    found = f"Equal settings would lie as far apart in {share} % of searches"
    return f"{found}: no trial is known to be better than another." if p >= BY_CHANCE else f"{found}."


def _exhausted(method: str, made: int, trials: int) -> str:
    """Say that a method has no more configurations to try; empty if it has."""
    if made >= trials:
        return ""
    return f"{method}: {made} trials instead of {trials}, which are all configurations of its space."


def _win_rate(trial: Trial) -> str:
    if trial.win_rate is None:
        return "failed"
    error = "" if trial.standard_error is None else f" ± {trial.standard_error:.1f}"
    return f"{trial.win_rate:.1f} %{error}"


def _name_evaluator(evaluator: str) -> str:
    """Name the evaluator, to follow "win rate"; empty for the default one."""
    return "" if evaluator == "win_rate" else f" by {evaluator}"


def _values(trial: Trial) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in trial.values.items())


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _show(tuning: Tuning, to_stderr: bool) -> None:
    """Show the best trial of each method beside the recipe's own settings."""
    rows = []
    for method, trials in tuning.trials.items():
        best = tuning.best(method)
        cells = [_win_rate(best), _values(best) if best.number else "the recipe's"] if best else ["none", ""]
        rows.append([method, str(len(trials)), _win_rate(tuning.recipes_own(method)), *cells])
    columns = {"method": False, "trials": True, "the recipe's": True, "best": True, "its settings": False}
    title = f"Win rate{_name_evaluator(tuning.by)} on the validation split, ± standard error"
    print_table(err() if to_stderr else out(), title, columns, rows)


def _write(tuning: Tuning, limits: Limits, of: int) -> Path:
    """Write all trials as a Markdown page and a CSV file beside the recipe. Returns the page's path.

    Trials of other methods, which an earlier search wrote there and the recipe keeps, stay below.
    """
    remedy = "make room or choose another --output-dir"
    page, table = tuning.directory / "trials.md", tuning.directory / "trials.csv"
    lines = [f"`{command_line()}`", ""]
    bounds = {"KL": limits.kl, "length ratio": limits.length_ratio}
    if kept := [f"{name} at most {value:g}" for name, value in bounds.items() if value is not None]:
        lines += [f"Limits: {', '.join(kept)}.", ""]
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(COLUMNS)
    for method, trials in tuning.trials.items():
        best = tuning.best(method)
        lines += [f"## {method}", ""]
        lines += [line, ""] if (line := _exhausted(method, len(trials), of)) else []
        lines += [_as_far_apart(p), ""] if (p := tuning.p_equal(method)) is not None else []
        lines += _table(trials, best, tuning.by)
        if finals := tuning.finals[method]:
            lines += [f"The finalists with {finals[0].seeds} seeds, ± standard error over seeds:", ""]
            lines += _table(finals, best, tuning.by)
        for trial in (*trials, *finals):
            row = trial.to_row() | {name: json.dumps(dict(getattr(trial, name))) for name in ("values", "figures")}
            rows.writerow([row[name] for name in COLUMNS])
    earlier = table.read_text(encoding="utf-8", errors="replace") if table.is_file() else ""
    columns, *earlier_rows = [*csv.reader(io.StringIO(earlier))] or [[]]
    rows.writerows(row for row in earlier_rows if columns == list(COLUMNS) and row[0] not in tuning.trials)
    lines += [line for name, section in _earlier_sections(page) if name not in tuning.trials for line in section]
    write_whole(table, text.getvalue(), remedy)
    write_whole(page, "\n".join(lines), remedy)
    return page


def _earlier_sections(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the methods of a page with the lines of each, the command that made them first."""
    if not page.is_file():
        return
    head, *sections = page.read_text(encoding="utf-8", errors="replace").split("\n## ")
    command, _, _ = head.partition("\n")
    for section in sections:
        name, *lines = section.strip().splitlines()
        if not any(line.startswith(EARLIER) for line in lines):
            lines = ["", f"{EARLIER}: {command}", *lines]
        yield name, [f"## {name}", *lines, ""]


def _table(trials: Sequence[Trial], best: Trial | None, by: str) -> list[str]:
    """Return the lines of a Markdown table of trials."""
    names = list(trials[0].values)
    figures = list(dict.fromkeys(name for trial in trials for name in trial.figures))
    header = ["trial", *names, f"win rate{_name_evaluator(by)}, %", *figures, "seconds"]
    headings = " | ".join(heading.replace("|", r"\|") for heading in header)
    lines = [f"| {headings} |", f"|{'---|' * len(header)}"]
    for trial in trials:
        values = [_short(trial.values.get(name)) for name in names]
        measured = [f"{trial.figures[name]:.3g}" if name in trial.figures else "" for name in figures]
        result = markdown(one_line(trial.error, 200)) if trial.error else _win_rate(trial).replace(" %", "")
        chosen = best is not None and trial.number == best.number
        mark = " (chosen)" if chosen else " (past a limit)" if trial.excess > 0 else ""
        number = f"{trial.number + 1}{mark}"
        lines.append(f"| {' | '.join([number, *values, result, *measured, f'{trial.seconds:.0f}'])} |")
    return [*lines, ""]
