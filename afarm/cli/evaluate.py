"""`afarm evaluate`: a policy compared with its reference, or any file of outputs with any other."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from afarm.cli import two_files
from afarm.cli.console import err, out
from afarm.cli.cost import show_plan_of_two
from afarm.cli.options import DryRun, EvaluateOptions, with_options
from afarm.cli.run import command_line, error_of, outcomes, result_row, run_experiment, spent, warn_of_simulation

UNASKED = "no judge LLM was asked. A gain is a gain in what this annotator goes by: a formula, a reward model, or noise"


def add_to(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


@with_options
def evaluate(
    outputs: two_files.Outputs = None,
    reference: two_files.Reference = None,
    *,
    options: EvaluateOptions,
    dry_run: DryRun = False,
) -> None:
    """Compare a policy, or a file of outputs, with a reference."""
    started = time.time()
    files = two_files.given(outputs, reference)
    if files is not None:
        _compare(files, two_files.judging(options), dry_run, started)
        return
    run_experiment(options, dry_run, started)


def _compare(files: tuple[Path, Path], options: EvaluateOptions, dry_run: bool, started: float) -> None:
    from afarm import report, runs
    from afarm.pipeline import read_result

    if dry_run:
        with options.only_look(compares_only=True) as farm:
            show_plan_of_two(two_files.head_to_head(farm, files, options), options.as_json)
        return
    with options.farm(compares_only=True) as farm:
        compared = two_files.head_to_head(farm, files, options)
        made = compared.run()
        result = read_result(compared.system, [made.artifact])
        named = {"outputs": str(files[0]), "reference": str(files[1])}
        directory = runs.record_of_two(compared, made, result, named, command_line(), started)
    record, page = runs.read_run(directory), report.build(directory)
    if options.as_json:
        main = record["results"][0]
        told = {name: main[name] for name in ("system", "reference", "metrics", "degraded")}
        simulated = any(judge["simulated"] for judge in record["judges"])
        whole = {**record, **told, "simulated": simulated, "report": str(page)}
        sys.stdout.write(json.dumps(whole, ensure_ascii=False) + "\n")
    _show(record, page, to_stderr=options.as_json)


def _show(record: Mapping[str, Any], page: Path, to_stderr: bool) -> None:
    from afarm.report.run import degraded

    console = err() if to_stderr else out()
    main, *further = record["results"]
    metrics = main["metrics"]
    lines = [
        f"{main['system']}: win rate {metrics['win_rate']:.1f} %{error_of(metrics)} against {main['reference']}",
        outcomes(metrics),
        *(": ".join(result_row(result, main["reference"])) for result in further),
        *(f"Degraded: {line}" for line in degraded(record["stages"])),
        f"Judged by {record['annotator']}: {spent(record['spend']) if record['judges'] else UNASKED}",
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    warn_of_simulation(console, record)
    console.print(f"Report: {page}", soft_wrap=True, highlight=False, markup=False)
