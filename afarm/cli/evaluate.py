"""`afarm evaluate`: a policy compared with its reference, or any files of outputs with any other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from afarm.cli import evaluate_options as output_files
from afarm.cli import human_labels
from afarm.cli.console import err
from afarm.cli.cost import show_plan_of_files
from afarm.cli.evaluate_options import EvaluateOptions, OutputFiles
from afarm.cli.options import DryRun, with_options
from afarm.cli.run import command_line, run_experiment
from afarm.cli.screens import present
from afarm.core.errors import ConfigError, DataError
from afarm.storage.text import markup

if TYPE_CHECKING:
    from afarm.comparison.outputs import Comparison
    from afarm.storage.runs import RunRecord

MANY = 20
"""Systems of one command up to which each has a report at once, of some megabytes; `afarm report RUN` writes others."""


def add_to(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


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
    if annotations:
        _read_annotations(outputs or [], humans, reference, options, dry_run, started)
        return
    files = output_files.given(outputs, reference, options)
    if files is not None:
        _compare(files, options.judging_files(), bool(until), alpha, dry_run, started)
        return
    run_experiment(options, dry_run, started)


def _compare(
    files: OutputFiles,
    options: EvaluateOptions,
    until_decided: bool,
    alpha: float | None,
    dry_run: bool,
    started: float,
) -> None:
    from afarm.comparison.until_decided import ALPHA, SequentialComparison

    with (options.only_look if dry_run else options.farm)(compares_only=True) as farm:
        compared = output_files.head_to_heads(farm, files, options)
        deciding = SequentialComparison(compared, alpha or ALPHA) if until_decided else None
        if dry_run:
            show_plan_of_files(compared, options.as_json)
        else:
            _run(deciding.run() if deciding else compared, files.named, options.as_json, started)


def _read_annotations(
    files: Sequence[Path],
    humans: Sequence[Path] | None,
    reference: str | None,
    options: EvaluateOptions,
    dry_run: bool,
    started: float,
) -> None:
    if not files or dry_run:
        raise ConfigError(["--annotations needs files after it" if not files else "--annotations asks nobody anything"])
    with (
        options.judging_files().farm(compares_only=True) as farm,
        output_files.stored_comparisons(farm, files, reference, options) as compared,
    ):
        if humans:
            compared = human_labels.with_people(compared, humans, options.on_missing == "skip")
        named = [{"outputs": ", ".join(one.stored.files), "reference": one.reference_name} for one in compared]
        _run(compared, named, options.as_json, started)


def _run(compared: Sequence[Comparison], files: Sequence[Mapping[str, str]], as_json: bool, started: float) -> None:
    """Make each comparison, with a record and a report of its own, and show them all.

    Raises `DataError`, after those that could be made, where some could not.
    """
    from afarm import report
    from afarm.experiment import run_record as runs
    from afarm.experiment.farm import read_result
    from afarm.judging.client import Spend
    from afarm.storage.runs import read_run

    for note in dict.fromkeys(note for one in compared for note in one.notes):
        err().print(f"[yellow]{markup(note)}[/]", highlight=False, soft_wrap=True)
    found: list[tuple[RunRecord, Path]] = []
    failed: list[DataError] = []
    for one, named in zip(compared, files, strict=True):
        asked = one.farm.ask
        bought, asked.spend = asked.spend, Spend()  # of this system alone, as its record says
        try:
            made = one.run()
        except DataError as error:
            failed.append(error)
            continue
        if one.before:
            asked.spend = bought  # all was bought then
        result = read_result(one.system, [made.artifact])
        directory = runs.record_of_two(one, made, result, named, command_line(), started)
        if len(compared) <= MANY:
            report.build(directory)
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
