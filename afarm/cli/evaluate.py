"""`afarm evaluate`: a policy compared with its reference, or any files of outputs with any other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from afarm.cli import evaluate_options as output_files
from afarm.cli.console import err
from afarm.cli.evaluate_options import EvaluateOptions, OutputFiles
from afarm.cli.farm_options import with_options
from afarm.cli.plans import show_plan_of_files, warn_of_budget
from afarm.cli.recording import command_line
from afarm.cli.run import run_experiment
from afarm.cli.shared_options import DryRun, write_examples
from afarm.core.errors import ConfigError, DataError
from afarm.storage.text import markup, one_line

if TYPE_CHECKING:
    from afarm.experiment.comparison.outputs import SystemComparison
    from afarm.experiment.workspace import Workspace
    from afarm.storage.runs import RunRecord

MANY = 20
"""Systems of one command up to which each has a report at once, of some megabytes; `afarm report RUN` writes others."""


def add_commands(app: typer.Typer) -> None:
    app.command(
        "evaluate",
        no_args_is_help=True,
        epilog=write_examples(
            "evaluate", "mine.json --reference theirs.json --judge openai:gpt-4o", "--method dpo --seed 1"
        ),
    )(evaluate)


@with_options
def evaluate(
    outputs: output_files.Outputs = None,
    reference: output_files.Reference = None,
    annotations: output_files.Annotations = False,
    humans: output_files.Humans = None,
    until: output_files.Until = None,
    alpha: output_files.Alpha = None,
    *,
    options: EvaluateOptions,
    dry_run: DryRun = False,
) -> None:
    """Compare a policy, or files of outputs, with a reference."""
    started = time.time()
    if until and (annotations or not outputs):
        raise ConfigError(["--until decided needs files of outputs to judge"])
    if alpha is not None and not until:
        raise ConfigError(["--alpha says how sure to be with --until decided: give both, or neither"])
    if humans and (not annotations or not outputs):
        raise ConfigError(["--humans needs simulated labels to be put together with: --annotations FILE"])
    if options.labels is not None and outputs and not annotations:
        raise ConfigError(["--labels says how labels in files are read: files of outputs have none"])
    if annotations:
        if not outputs or dry_run:
            raise ConfigError(
                ["--annotations needs files after it" if not outputs else "--annotations asks nobody anything"]
            )
        evaluate_annotations(outputs, humans, reference, options, started)
    elif files := output_files.given(outputs, reference, options):
        evaluate_outputs(files, options.judging_files(), bool(until), alpha, dry_run, started)
    else:
        require_run(options)
        run_experiment(options, dry_run, started)


def require_run(options: EvaluateOptions) -> None:
    """Raise `ConfigError` if neither files nor a run were named: hours of training should be asked for."""
    if not options.names_a_run:
        raise ConfigError(
            ["evaluate needs files of outputs (afarm evaluate FILE --reference FILE) or a method (--method ppo)"]
        )


def evaluate_outputs(
    files: OutputFiles,
    options: EvaluateOptions,
    until_decided: bool,
    alpha: float | None,
    dry_run: bool,
    started: float,
) -> None:
    """Have files of outputs judged against a reference's, all of them or until it is decided."""
    from afarm.experiment import preflight
    from afarm.experiment.comparison.dry_run import plan_comparison
    from afarm.experiment.comparison.until_decided import ALPHA, SequentialComparison

    with options.dry_run(preflight.judging_checks()) if dry_run else options.judging_workspace() as workspace:
        compared = output_files.output_comparisons(workspace, files, options)
        sequential = SequentialComparison(compared, alpha or ALPHA) if until_decided else None
        if dry_run:
            show_plan_of_files(compared, options.as_json)
        else:
            if not sequential:
                warn_of_budget(workspace, lambda: [plan_comparison(one) for one in compared])
            _run(workspace, sequential.run() if sequential else compared, files.named, options.as_json, started)


def evaluate_annotations(
    files: Sequence[Path],
    humans: Sequence[Path] | None,
    reference: str | None,
    options: EvaluateOptions,
    started: float,
) -> None:
    """Evaluate stored annotations, with labels by `humans` of some instructions if there are any."""
    with (
        options.judging_files().judging_workspace() as workspace,
        output_files.stored_comparisons(workspace, files, reference, options) as compared,
    ):
        if humans:
            from afarm.cli import human_labels

            compared = human_labels.with_people(compared, humans, options.on_missing == "skip", options.labels or "")
        named = [{"outputs": ", ".join(one.stored.files), "reference": one.reference_name} for one in compared]
        _run(workspace, compared, named, options.as_json, started)


def _run(
    workspace: Workspace,
    compared: Sequence[SystemComparison],
    files: Sequence[Mapping[str, str]],
    as_json: bool,
    started: float,
) -> None:
    """Make each comparison, with a record and a report of its own, and show them all.

    Raises `DataError`, after those that could be made, where some could not.
    """
    from afarm import report
    from afarm.cli.screens import present
    from afarm.experiment.comparison.run_record import record_comparison
    from afarm.experiment.farm import read_result
    from afarm.judging.client import Spend
    from afarm.storage.runs import read_run

    for note in dict.fromkeys(note for one in compared for note in one.notes):
        err().print(f"[yellow]{markup(one_line(note, 1000))}[/]", highlight=False, soft_wrap=True)
    found: list[tuple[RunRecord, Path]] = []
    failed: list[DataError] = []
    for one, named in zip(compared, files, strict=True):
        client = workspace.judges.client
        bought, client.spend = client.spend, Spend()  # of this system alone, as its record says
        try:
            made = one.run()
        except DataError as error:
            failed.append(error)
            continue
        if one.before:
            client.spend = bought  # all was bought then
        result = read_result(one.system, [made.artifact])
        directory = record_comparison(one, made, result, named, command_line(), started)
        if len(compared) <= MANY:
            report.refresh(directory)
        found.append((read_run(directory), directory))
        started = time.time()
    if found:
        present(found, compared[0].together, as_json, len(compared) > 1)
    if len(failed) == 1 == len(compared):
        raise failed[0]
    if failed:
        raise DataError(
            f"no result for {len(failed)} of {len(compared)} systems:" + "".join(f"\n  {error}" for error in failed)
        )
