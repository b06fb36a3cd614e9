"""`afarm cost`, and what `--dry-run` shows: what a run would do and buy, from its real prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from afarm.cli import evaluate_options as output_files
from afarm.cli.evaluate_options import EvaluateOptions
from afarm.cli.farm_options import with_options
from afarm.cli.plans import show_plan, show_plan_of_files
from afarm.cli.shared_options import write_examples

if TYPE_CHECKING:
    pass


def add_commands(app: typer.Typer) -> None:
    app.command(
        "cost",
        epilog=write_examples(
            "cost", "--judge openai:gpt-4o", "mine.json --reference theirs.json --judge openai:gpt-4o"
        ),
    )(cost)


@with_options
def cost(
    outputs: output_files.Outputs = None, reference: output_files.Reference = None, *, options: EvaluateOptions
) -> None:
    """Estimate what the judges of a run, or of files of outputs, would cost, and send nothing."""
    from afarm.experiment import preflight

    files = output_files.given(outputs, reference, options)
    if files:
        options = options.judging_files()
        with options.dry_run(preflight.judging_checks()) as workspace:
            compared = output_files.output_comparisons(workspace, files, options)
            show_plan_of_files(compared, options.as_json, all_stages=False)
    else:
        with options.dry_run(preflight.run_checks()) as workspace:
            show_plan(workspace, workspace.config.method, options.as_json, all_stages=False)
