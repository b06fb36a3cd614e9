"""`afarm run`: the whole experiment, and one screen of results."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.cli.console import err, out, print_json
from afarm.cli.farm_options import FarmOptions, with_options
from afarm.cli.launch import LOCAL
from afarm.cli.launchers import LauncherName, build_launcher, launch_stages
from afarm.cli.plans import warn_of_budget
from afarm.cli.recording import record_run
from afarm.cli.shared_options import DryRun
from afarm.storage.text import dollars, markup, one_line

if TYPE_CHECKING:
    from rich.console import Console


OUTCOMES = {"wins": "won", "wins_base": "lost", "draws": "drawn", "unparsed": "unparsed"}


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
        options.show_plan(launcher=launcher)
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
    if options.as_json:
        print_json({**record, "report": str(report)})
    _show(record, report, err() if options.as_json else out())


def _show(record: Mapping[str, Any], report: Path, console: Console) -> None:
    """Show one screen: the numbers, what they cost, where the report is, and what to try next."""
    from rich.table import Table
    from rich.text import Text

    title = f"{record['method']} against {record['results'][0]['reference']}"
    table = Table(title=markup(one_line(title)), title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for label, text in _rows(record):
        table.add_row(markup(label), text)
    console.print(table)
    warn_of_simulation(console, record)
    # A link, on a line of its own if the screen is narrow.
    apart = "\n" if console.is_terminal and len(f"Report: {report}") > console.width else " "
    link = Text(str(report), style=f"link {report.resolve().as_uri()}")
    console.print(Text.assemble("Report:", apart, link), soft_wrap=True)
    console.print(f"Next:   {_next_command(record)}", markup=False)


def _rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines of the screen: labels, and texts with rich's markup."""
    from afarm.evaluation.cut_off import cut_off
    from afarm.evaluation.metrics import undetectable_difference
    from afarm.evaluation.red_flags import red_flag_lines
    from afarm.report.run import STOPPED_AT, degraded, not_finite, training

    head, stages, results = record["headline"], record["stages"], record["results"]
    main = next((result for result in results if result["evaluator"] == "win_rate"), None)
    if main is not None:
        yield "win rate", f"{head['win_rate']:.1f} %{format_error(head)}"
        if blind := undetectable_difference(main["metrics"]):
            yield "", f"not clear from 50 %: {blind}"
        yield "", outcomes(main["metrics"])
        yield from ((label, markup(line)) for label, line in red_flag_lines(main.get("red_flags")))
    for result in results:
        if result is not main:
            label, text = result_row(result, results[0]["reference"])
            yield label, markup(text)
    yield from (("degraded", markup(line)) for line in degraded(stages))
    yield from (("cut off", f"[yellow]{markup(line)}[/]") for line in cut_off(stages))
    yield from (("not finite", f"[yellow]{markup(line)}[/]") for line in not_finite(stages))
    for line in training(record.get("checkpoint", {})):
        yield "training", f"[yellow]{line}[/]" if line.startswith(STOPPED_AT) else line
    if head["kl"] is not None:
        yield "KL to the start", f"{head['kl']:.3f} nats a response"
    if head["length"] is not None:
        yield "mean length", f"{head['length']:.0f} characters (reference {head['length_reference']:.0f})"
    yield "spend", spent(record["spend"])
    ran = [f"{s['stage']} {s['seconds']:.0f} s" for s in stages if not s["reused"] and s["seconds"] >= 0.5]
    yield "time", f"{record['finished'] - record['created']:.0f} s" + (f": {', '.join(ran)}" if ran else "")
    yield "reused", f"{sum(s['reused'] for s in stages)} of {len(stages)} stages"


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
