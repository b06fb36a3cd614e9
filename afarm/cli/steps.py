"""Each stage as a command of its own, with what comes before it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli.console import err, out
from afarm.cli.cost import show_plan
from afarm.cli.options import (
    DEFAULT_OUTPUT_DIR,
    DryRun,
    EvaluateOptions,
    FarmOptions,
    OutputDir,
    Stray,
    option_of,
    refuse_stray,
    with_options,
)
from afarm.cli.run import finish, present
from afarm.errors import ConfigError

if TYPE_CHECKING:
    from afarm.pipeline import Farm

TEXT_JUDGE = "offline:text_utility"
"""Who judges two files of outputs where neither a judge nor a recipe is named."""

SPEND = ("calls", "answers_reused", "judgements_reused", "input_tokens", "output_tokens", "dollars", "unpriced_calls")

STEPS: dict[str, str] = {
    "sft": "Train the starting policy on demonstrations.",
    "sample": "Sample the outputs that will be compared.",
    "annotate": "Have the annotator compare the sampled outputs.",
    "fit-reward": "Fit the reward model to the preferences.",
    "train": "Train a method's policy.",
}


def add_to(app: typer.Typer) -> None:
    for name, summary in STEPS.items():
        app.command(name, help=f"{summary} Earlier stages are run, or reused, first.")(_step(name))
    app.command("evaluate")(evaluate)
    app.command("report")(report)


def _step(name: str) -> Callable[..., None]:
    @with_options
    def step(stray: Stray = None, *, options: FarmOptions, dry_run: DryRun = False) -> None:
        refuse_stray(stray)
        if dry_run:
            _show_step(name, options)
            return
        with options.farm() as farm:
            methodcaller(name.replace("-", "_"))(farm)
            runs = list(farm.history.values())
        if not runs:
            err().print(f"Nothing to do: reward model {farm.config.reward_model!r} needs no fitting.")
            if options.as_json:
                sys.stdout.write(json.dumps({"stage": None}) + "\n")
            return
        last = runs[-1]
        if options.as_json:
            made = {
                "stage": last.label,
                "key": last.artifact.key,
                "path": str(last.artifact.path),
                "reused": last.reused,
            }
            sys.stdout.write(json.dumps({**made, "summary": dict(last.artifact.meta["summary"])}) + "\n")
        else:
            out().print(str(last.artifact.path), soft_wrap=True, highlight=False)

    return step


def _show_step(name: str, options: FarmOptions) -> None:
    """What a step would do and buy."""
    from afarm import stages
    from afarm.plan import plan_of

    with options.only_look() as farm:
        method = farm.config.method
        steps: dict[str, Callable[[], stages.Stage | None]] = {
            "sft": lambda: stages.start(farm),
            "sample": lambda: stages.sample(farm),
            "annotate": lambda: stages.annotate(farm),
            "fit-reward": lambda: stages.fit_reward(farm),
            "train": lambda: stages.train(farm, method),
        }
        stage = steps[name]()
        show_plan(farm, method, options.as_json, planned=plan_of(farm, stage) if stage else [])


@with_options
def evaluate(
    outputs: Annotated[
        Path | None, typer.Argument(help="A file of outputs to evaluate, instead of a method's.")
    ] = None,
    reference: Annotated[Path | None, typer.Option("--reference", help="The file of reference outputs.")] = None,
    *,
    options: EvaluateOptions,
    dry_run: DryRun = False,
) -> None:
    """Compare a policy, or a file of outputs, with a reference."""
    started = time.time()
    annotator = options.annotator
    if reference is not None and outputs is None:
        raise ConfigError(["--reference needs a file of outputs before it"])
    if outputs is not None:
        if not outputs.exists() and option_of(str(outputs)):
            refuse_stray(str(outputs))
        if dry_run:
            raise ConfigError(
                ["--dry-run plans the evaluation of a method; what judges may cost for two files, --budget limits"]
            )
        if reference is None:
            raise ConfigError([f"{outputs} needs something to be compared with: --reference FILE"])
        # With two files, --annotator is who judges them; with a method, who labelled its training pairs.
        options = options.judging_by(annotator)
        if not options.judge and options.recipe is None:
            # The default recipe's judge knows the tasks of its own data set only.
            options = replace(options, settings=[f"judge.*={TEXT_JUDGE}", *(options.settings or [])])
            err().print(
                f"[dim]Unless you name a judge with --judge, it is {TEXT_JUDGE}, a formula.[/]", highlight=False
            )
    if dry_run:
        with options.only_look() as farm:
            show_plan(farm, farm.config.method, options.as_json)
        return
    with options.farm() as farm:
        if outputs is None or reference is None:
            record, page = finish(farm, farm.config.method, started)
            present(record, page, options.as_json)
            return
        from afarm.files import read_outputs, require_distinct

        mine = require_distinct(read_outputs(outputs), str(outputs))
        theirs = require_distinct(read_outputs(reference), str(reference))
        found = farm.compare(mine, theirs, annotator)
        told = {"annotator": annotator or farm.config.evaluate.annotator, **judging(farm)}
    metrics = dict(found.metrics)
    if options.as_json:
        sys.stdout.write(json.dumps({"system": found.system, "metrics": metrics, **told}) + "\n")
    else:
        error = metrics["standard_error"]
        out().print(f"{found.system}: win rate {metrics['win_rate']:.1f} %" + (f" ± {error:.1f}" if error else ""))
        out().print(", ".join(f"{k} {v}" for k, v in metrics.items() if k.startswith("n_")), highlight=False)


def judging(farm: Farm) -> dict[str, Any]:
    """Who judged, whether any of them is simulated, and what it cost."""
    judges = [{"role": r, "identity": j.identity, "simulated": j.simulated} for r, j in sorted(farm.judges.items())]
    return {
        "judges": judges,
        "simulated": any(judge["simulated"] for judge in judges),
        "spend": {name: getattr(farm.ask.spend, name) for name in SPEND},
    }


def report(
    run: Annotated[str | None, typer.Argument(help="The run's name; the last one where none is given.")] = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
) -> None:
    """Write a run's report again."""
    from afarm.errors import StoreError, did_you_mean
    from afarm.report import build
    from afarm.runs import latest_run

    runs = output_dir / "runs"
    known = [path.parent.name for path in runs.glob("*/run.json")]
    if run and run not in known:
        raise StoreError(f"no finished run {run!r} in {output_dir}.{did_you_mean(run, known)}")
    directory = runs / run if run else latest_run(runs)
    if directory is None:
        raise StoreError(f"no finished run in {output_dir}: start one with `afarm run`")
    out().print(str(build(directory)), soft_wrap=True, highlight=False)
