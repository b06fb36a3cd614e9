"""`afarm drift`: ask a judge again about pairs that it has labelled, and test if it has shifted."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afarm.cli.options import (
    DryRun,
    FarmOptions,
    complete_runs,
    err,
    option,
    out,
    print_json,
    show_plan,
    warn_of_budget,
    with_options,
    write_examples,
)
from afarm.results import find_run

if TYPE_CHECKING:
    from afarm_plugins.drift.drift import Probe


def add_commands(app: typer.Typer) -> None:
    app.command(
        "drift",
        no_args_is_help=True,
        epilog=write_examples(
            "drift", "afarm-runs/runs/NAME/outputs.jsonl --dry-run", "labels.jsonl --judge openai:gpt-4o --budget 1"
        ),
    )(drift)


@with_options
def drift(
    file: Annotated[
        Path,
        typer.Argument(
            autocompletion=complete_runs,
            help="Stored labels to ask about again: a file of judgements, or a run, by name or path.",
        ),
    ],
    pairs: Annotated[int, option("--pairs", "Labels to ask about, each twice.", min=1)] = 100,
    epoch: Annotated[
        str | None, option("--epoch", "The probe's name: the same goes on, another asks anew.", None, "today")
    ] = None,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Ask a judge again about pairs that it has labelled, and show whether it has shifted."""
    from afarm.experiments import judging_checks
    from afarm_plugins.drift.drift import plan_probe, probe

    labels = file if file.exists() else find_run(str(file), options.output_dir)
    name = epoch or datetime.now(UTC).date().isoformat()
    if dry_run:
        with options.dry_run(judging_checks()) as workspace:
            account, planned = plan_probe(workspace, labels, options.annotator, pairs, name)
            with workspace.judges.client.charge_run(account):
                show_plan(workspace, "", options.as_json, all_stages=False, planned=[planned], step="drift")
        return
    with options.judging_workspace() as workspace:
        if options.budget is not None:
            account, planned = plan_probe(workspace, labels, options.annotator, pairs, name)
            with workspace.judges.client.charge_run(account):
                warn_of_budget(workspace, lambda: [planned])
        found = probe(workspace, labels, options.annotator, pairs, name)
        spent = workspace.judges.client.spend
    if options.as_json:
        row = {**asdict(found), "p_value": found.p_value, "calls": spent.calls, "dollars": spent.dollars}
        print_json(row)
    _show(found, spent.calls, spent.dollars, to_stderr=options.as_json)


def _show(found: Probe, calls: int, dollars: float, to_stderr: bool) -> None:
    from afarm.cli.options import dollars as in_dollars
    from afarm_plugins.drift.drift import ALPHA

    unread = f" ({found.unread} could not be read)" if found.unread else ""
    lines = [
        f"{found.annotator}, {' + '.join(dict.fromkeys(found.judges.values()))}, probe {found.epoch}: "
        f"{found.pairs} pairs asked twice more{unread}",
        f"  disagreement with the stored labels {found.disagreement:.1f} %, with itself {found.noise:.1f} % "
        f"(p {found.p_disagreement:.4f})",
        f"  win rate of output_2 {found.win_rate_before:.1f} % before, {found.win_rate_now:.1f} % now "
        f"(p {found.p_win_rate:.4f})",
        f"The judge has shifted (p {found.p_value:.4f}, at most {ALPHA:g}): what is evaluated from now on stands on "
        "boards of its own."
        if found.shifted
        else f"No shift is shown (p {found.p_value:.4f}, above {ALPHA:g}).",
        f"{calls} calls, {in_dollars(dollars)}",
    ]
    for line in lines:
        (err() if to_stderr else out()).print(line, markup=False)
