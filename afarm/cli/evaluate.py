"""`afarm evaluate` compares a policy or files of outputs with a reference; `afarm cost` prices a run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from afarm import report
from afarm.cli import evaluate_options as output_files
from afarm.cli.console import command_line, err
from afarm.cli.evaluate_options import EvaluateOptions
from afarm.cli.farm_options import with_options
from afarm.cli.plans import show_plan, show_plan_of_files, warn_of_budget
from afarm.cli.run import run_experiment
from afarm.cli.shared_options import DryRun
from afarm.core.errors import ConfigError, DataError
from afarm.storage.runs import RunRecord
from afarm.storage.text import markup, one_line

if TYPE_CHECKING:
    from afarm.experiment.comparison.outputs import SystemComparison
    from afarm.experiment.workspace import Workspace

MANY = 20
"""Systems of one command up to which each has a report at once, of some megabytes; `afarm report RUN` writes others."""


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
    stored, judged = bool(outputs) and annotations, bool(outputs) and not annotations
    contradictions = {
        "--until decided needs files of outputs to judge": until and not judged,
        "--alpha says how sure to be with --until decided: give both, or neither": alpha is not None and not until,
        "--humans needs simulated labels to be put together with: --annotations FILE": humans and not stored,
        "--labels says how labels in files are read: files of outputs have none": options.labels is not None and judged,
        "--annotations needs files after it": annotations and not outputs,
        "--annotations asks nobody anything: leave out --dry-run": stored and dry_run,
    }
    if problems := [problem for problem, is_there in contradictions.items() if is_there]:
        raise ConfigError(problems)
    if annotations:
        evaluate_annotations(outputs or [], humans, reference, options, started)
    elif against := output_files.find_reference(outputs, reference, options):
        evaluate_outputs(outputs or [], against, options.judging_files(), bool(until), alpha, dry_run, started)
    elif options.recipe is None and not options.settings and not output_files.list_given(options, output_files.RUNS):
        raise ConfigError(  # hours of training should be asked for
            "evaluate needs files of outputs (afarm evaluate FILE --reference FILE) or a method (--method ppo)"
        )
    else:
        run_experiment(options, dry_run)


@with_options
def cost(
    outputs: output_files.Outputs = None, reference: output_files.Reference = None, *, options: EvaluateOptions
) -> None:
    """Estimate what the judges of a run, or of files of outputs, would cost, and send nothing."""
    from afarm.experiment import preflight

    if against := output_files.find_reference(outputs, reference, options):
        options = options.judging_files()
        with options.dry_run(options.judging_checks(outputs or [], against)) as workspace:
            compared = output_files.output_comparisons(workspace, outputs or [], against, options)
            show_plan_of_files(compared, options.as_json, all_stages=False)
    else:
        with options.dry_run(preflight.run_checks()) as workspace:
            show_plan(workspace, workspace.config.method, options.as_json, all_stages=False)


def evaluate_outputs(
    outputs: Sequence[Path],
    reference: str,
    options: EvaluateOptions,
    until_decided: bool,
    alpha: float | None,
    dry_run: bool,
    started: float,
) -> None:
    """Have files of outputs judged against a reference's, all of them or until it is decided."""
    from afarm.experiment.comparison.until_decided import ALPHA, judge_until_decided
    from afarm.experiment.dry_run import plan_stage

    checks = options.judging_checks(outputs, reference)
    with options.dry_run(checks) if dry_run else options.judging_workspace(checks) as workspace:
        compared = output_files.output_comparisons(workspace, outputs, reference, options)
        if until_decided and (names := compared[0].together):
            raise ConfigError(
                f"--until decided and --evaluator {name} contradict each other: it looks at all systems on the same "
                "instructions, and asking stops for each system where that is decided; give one of the two"
                for name in names
            )
        if dry_run:
            show_plan_of_files(compared, options.as_json)
        else:
            if not until_decided:
                warn_of_budget(workspace, lambda: [p for one in compared for p in plan_stage(workspace, one.stage())])
            named = [{"outputs": str(path), "reference": reference} for path in outputs]
            found = judge_until_decided(compared, alpha or ALPHA) if until_decided else compared
            _run(workspace, found, named, options.as_json, started)


def evaluate_annotations(
    files: Sequence[Path],
    humans: Sequence[Path] | None,
    reference: str | None,
    options: EvaluateOptions,
    started: float,
) -> None:
    """Evaluate stored annotations, with labels by `humans` of some instructions if there are any."""
    from afarm.experiment import preflight

    with (
        options.judging_files().judging_workspace(preflight.reading_checks()) as workspace,
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
    """Make and show each comparison, with its own record. Raises `DataError` at the end if some failed."""
    from afarm.cli.screens import present
    from afarm.experiment.farm import read_result
    from afarm.experiment.run_record import record_comparison
    from afarm.judging.client import Spend

    for note in dict.fromkeys(note for one in compared for note in one.notes):
        err().print(f"[yellow]{markup(one_line(note, 1000))}[/]")
    for one in compared:
        workspace.plan(one.stage())  # so that each is counted as one of all
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
        record = record_comparison(one, made, result, named, command_line(), started)
        if len(compared) <= MANY:
            report.refresh(record.directory)
        found.append((record, record.directory))
        started = time.time()
    if found:
        present(found, compared[0].together, as_json)
    if len(failed) == 1 == len(compared):
        raise failed[0]
    if failed:
        raise DataError(
            f"no result for {len(failed)} of {len(compared)} systems:" + "".join(f"\n  {error}" for error in failed)
        )
