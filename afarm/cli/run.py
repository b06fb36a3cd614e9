"""`afarm run`: the whole experiment, and one screen of results."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from afarm.cli.console import err, out, print_json
from afarm.cli.farm_options import FarmOptions, with_options
from afarm.cli.launch import LOCAL
from afarm.cli.launchers import LauncherName, build_launcher, launch_stages, preview_launch
from afarm.cli.plans import show_plan, warn_of_budget
from afarm.cli.recording import record_run
from afarm.cli.shared_options import DryRun, write_examples
from afarm.storage.text import dollars, markup, one_line

if TYPE_CHECKING:
    from rich.console import Console


OUTCOMES = {"wins": "won", "wins_base": "lost", "draws": "drawn", "unparsed": "unparsed"}


def add_commands(app: typer.Typer) -> None:
    examples = write_examples("run", "--method dpo --seed 1", "--judge openai:gpt-4o --budget 5 --dry-run")
    app.command("run", epilog=examples)(run)


@with_options
def run(
    launcher: LauncherName = LOCAL,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Run the whole experiment, from SFT to the report."""
    started = time.time()
    run_experiment(options, dry_run, started, launcher)


def run_experiment(options: FarmOptions, dry_run: bool, started: float, launcher: str = LOCAL) -> None:
    """The whole experiment with the options' method and its results, or only the plan of it."""
    if dry_run:
        from afarm.experiment import preflight

        with options.dry_run(preflight.run_checks()) as workspace:
            systems = [(workspace.config.method, workspace)]
            asked = preview_launch(launcher, systems, workspace.run_name())
            show_plan(workspace, workspace.config.method, options.as_json, launcher=asked)
        return
    from afarm.experiment.dry_run import plan_run

    with options.farm() as farm:
        workspace = farm.workspace
        systems = [(workspace.config.method, workspace)]
        build_launcher(launcher, systems)  # which sees what is wrong with it, before what takes longer
        warn_of_budget(workspace, lambda: plan_run(workspace, workspace.config.method))
        if (made := launch_stages(launcher, systems, workspace.run_name())) is not None:
            made.hand_over(workspace)
        record, report = record_run(farm, workspace.config.method, started)
    show_run(record, report, options.as_json)


def show_run(record: Mapping[str, Any], report: Path, as_json: bool) -> None:
    """The result screen; with `as_json` the record on stdout, and the screen on stderr."""
    if as_json:
        print_json({**record, "report": str(report)})
    show_results(record, report, to_stderr=as_json)


def show_results(record: Mapping[str, Any], report: Path, to_stderr: bool = False) -> None:
    """One screen: the numbers, what they cost, where the report is, and what to try next."""
    from rich.table import Table

    from afarm.evaluation.cut_off import cut_off
    from afarm.evaluation.metrics import undetectable_difference
    from afarm.evaluation.red_flags import red_flag_lines
    from afarm.report.run import STOPPED_AT, degraded, not_finite, training

    console = err() if to_stderr else out()
    head, spend = record["headline"], record["spend"]
    results = record["results"]
    reference = results[0]["reference"]
    main = next((result for result in results if result["evaluator"] == "win_rate"), None)
    table = Table(
        title=markup(one_line(f"{record['method']} against {reference}")), title_justify="left", show_header=False
    )
    table.add_column(style="bold")
    table.add_column()
    if main is not None:
        table.add_row("win rate", f"{head['win_rate']:.1f} %{format_error(head)}")
        if blind := undetectable_difference(main["metrics"]):
            table.add_row("", f"not clear from 50 %: {blind}")
        table.add_row("", outcomes(main["metrics"]))
        for label, line in red_flag_lines(main.get("red_flags")):
            table.add_row(label, markup(line))
    for result in results:
        if result is not main:
            table.add_row(*map(markup, result_row(result, reference)))
    for line in degraded(record["stages"]):
        table.add_row("degraded", markup(line))
    for line in cut_off(record["stages"]):
        table.add_row("cut off", f"[yellow]{markup(line)}[/]")
    for line in not_finite(record["stages"]):
        table.add_row("not finite", f"[yellow]{markup(line)}[/]")
    for line in training(record.get("checkpoint", {})):
        table.add_row("training", f"[yellow]{line}[/]" if line.startswith(STOPPED_AT) else line)
    if head["kl"] is not None:
        table.add_row("KL to the start", f"{head['kl']:.3f} nats a response")
    if head["length"] is not None:
        table.add_row("mean length", f"{head['length']:.0f} characters (reference {head['length_reference']:.0f})")
    table.add_row("spend", spent(spend))
    ran = [f"{s['stage']} {s['seconds']:.0f} s" for s in record["stages"] if not s["reused"] and s["seconds"] >= 0.5]
    reused = sum(s["reused"] for s in record["stages"])
    table.add_row("time", f"{record['finished'] - record['created']:.0f} s" + (f": {', '.join(ran)}" if ran else ""))
    table.add_row("reused", f"{reused} of {len(record['stages'])} stages")
    console.print(table)
    warn_of_simulation(console, record)
    show_path(console, "Report:", report)
    console.print(f"Next:   {_next_command(record)}", soft_wrap=True, highlight=False, markup=False)


def show_path(console: Console, label: str, path: Path) -> None:
    """Print where something is: a link, on a line of its own if the screen is narrow."""
    from rich.text import Text

    name = str(path)
    apart = "\n" if console.is_terminal and len(label) + 1 + len(name) > console.width else " "
    link = Text(name, style=f"link {path.resolve().as_uri()}")
    console.print(Text.assemble(label, apart, link), soft_wrap=True, highlight=False)


def format_error(metrics: Mapping[str, Any]) -> str:
    """Format the standard error of a win rate; empty if there is none, as with a single pair."""
    return f" ± {metrics['standard_error']:.1f} (standard error)" if metrics["standard_error"] else ""


def outcomes(metrics: Mapping[str, Any]) -> str:
    """Count the comparisons by outcome; draws that nobody judged are told apart."""
    counts = [f"{metrics[f'n_{what}']} {word}" for what, word in OUTCOMES.items()]
    if identical := metrics.get("n_identical"):
        counts[list(OUTCOMES).index("draws")] += f" ({identical} of identical outputs, not judged)"
    return ", ".join(counts + ([f"{metrics['n_refused']} refused"] if metrics.get("n_refused") else []))


def spent(spend: Mapping[str, Any]) -> str:
    """Say what judges cost in all, and what of that this command bought."""
    now = spend["this_time"]
    unpriced = f", {spend['unpriced_calls']} of unknown price" if spend["unpriced_calls"] else ""
    part = f" (this time {dollars(now['dollars'])} for {now['calls']})" if now["calls"] != spend["calls"] else ""
    total = f"{dollars(spend['dollars'])} for {spend['calls']} calls"
    return f"{total}{unpriced}{part}; {now['answers_reused']} answers reused"


def warn_of_simulation(console: Console, record: Mapping[str, Any]) -> None:
    from afarm.storage.runs import simulated_judges

    if formulas := simulated_judges(record):
        names = markup(" and the ".join(formulas))
        console.print(
            f"[yellow]The {names} judge is a formula, no person or language model: a gain is a gain in that formula.[/]"
        )


def result_row(result: Mapping[str, Any], main_reference: str) -> tuple[str, str]:
    """A further evaluation in one line: its main figure, the reference's, and their paired difference."""
    from afarm.evaluation.metrics import main_metric, with_error

    metrics, name = result["metrics"], result["evaluator"]
    label = name if result["reference"] == main_reference else f"{name}, against {result['reference']}"
    if name == "win_rate":
        return label, f"{metrics['win_rate']:.1f} % ± {metrics['standard_error'] or 0:.1f}"
    found = main_metric(name, metrics)
    if found is None and next(iter(metrics.values()), "") is None:
        return label, "not defined"
    if found is None:
        shown = [f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in list(metrics.items())[:4]]
        return label, ", ".join(shown)
    text = found.text if found.name == name else f"{found.name} {found.text}"
    if found.reference is not None:
        text += f" (reference {found.reference:.3f}"
        gap = found.difference
        text += ")" if gap is None else f"; paired difference {with_error(gap, found.difference_error)})"
    said = [value for key, value in metrics.items() if isinstance(value, str) and not key.endswith("_warning")]
    return label, ", ".join([text, *said])


def _next_command(record: Mapping[str, Any]) -> str:
    """Another method on the same samples, preferences and reward model, for the screen.

    Without the settings of this one, and without --json: what took its output is not part of the command.
    """
    other = "best_of_n" if record["method"] == "ppo" else "ppo"
    words: list[str] = []
    for word in shlex.split(record["command"]):
        if words and words[-1] == "--set" and word.startswith(f"{record['method']}."):
            words.pop()
        elif word != "--json" and not word.startswith(f"--set={record['method']}."):
            words.append(word)
    if "--method" in words[:-1]:
        words[words.index("--method") + 1] = other
    else:
        words += ["--method", other]
    return shlex.join(words)
