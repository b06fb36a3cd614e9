"""Each stage as a command of its own, with what comes before it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from afarm.cli.command_list import STEPS
from afarm.cli.completion import complete_names, complete_runs
from afarm.cli.console import err, out, print_json
from afarm.cli.farm_options import FarmOptions, with_options
from afarm.cli.plans import show_plan, warn_of_budget
from afarm.cli.shared_options import DEFAULT_OUTPUT_DIR, DryRun, OutputDir, write_examples
from afarm.storage.text import markup, without_passwords

if TYPE_CHECKING:
    from afarm.core.registry import Component
    from afarm.experiment.stage import Stage
    from afarm.experiment.workspace import Workspace

BEFORE = "Earlier stages are run, or reused, first."

_LABELS = frozenset({"annotator", "both_orders", "votes", "vote", "label_noise", "judge"})
_ASKING = frozenset({"allow_degraded", "budget", "price", "max_concurrency", "batch_api"})
_PREFERENCES = frozenset({"preferences", "on_unusable", "labels"})
UNUSED: dict[str, frozenset[str]] = {
    "sft": _LABELS | _ASKING | _PREFERENCES | {"method", "reward_model", "eval_set"},
    "sample": _LABELS | _PREFERENCES | {"method", "reward_model"},
    "annotate": frozenset({"method", "reward_model", "eval_set"}),
    "fit-reward": frozenset({"method", "eval_set"}),
    "train": frozenset({"eval_set"}),
}
"""The options of a run that a step has no use for."""

EXAMPLES = {
    "sft": ("--set sft.num_train_epochs=1", "--data mine.json --model HuggingFaceTB/SmolLM2-135M"),
    "sample": ("--set sample.n=4", "--policy ppo"),
    "annotate": ("--annotator gpt4 --judge openai:gpt-4o", "--label-noise 0 --dry-run"),
    "fit-reward": ("--set bradley_terry.num_train_epochs=2", "--annotator pool --label-noise 0.1"),
    "train": ("--method dpo --set dpo.beta=0.2", "--method ppo --dry-run"),
}


def add_commands(app: typer.Typer) -> None:
    for name, listed in STEPS.items():
        step = with_options(sample, UNUSED[name]) if name == "sample" else _step(name, UNUSED[name])
        app.command(name, help=f"{listed.summary} {BEFORE}", epilog=write_examples(name, *EXAMPLES[name]))(step)
    app.command("report", epilog=write_examples("report", "", "toy-ppo-pool-seed42-1a2b3c"))(report)


def add_method(app: typer.Typer, name: str, component: Component) -> None:
    """Add the training of a method under its name, with the options that it has a use for.

    Raises `PluginError` if its class cannot be loaded.
    """
    about = f"Train the policy of {name}: {component.summary or 'a method'}. {BEFORE}"
    examples = write_examples(name, "--seed 1", "--recipe paper --dry-run")
    settings = f"\n\n`afarm settings {name}` lists its settings." if component.config else ""
    step = _step("train", list_unused_options(component.load().needs), method=name)
    app.command(name, help=about, epilog=examples + settings)(step)


def list_unused_options(needs: Collection[str]) -> frozenset[str]:
    """Name the options that do not affect the training of a method with these needs."""
    unused = UNUSED["train"] | {"method"}
    if "reward_model" not in needs:
        unused |= {"reward_model"}
    if not {"reward_model", "preferences", "annotator"} & {*needs}:
        unused |= _LABELS | _ASKING | _PREFERENCES
    return unused


def _step(name: str, unused: Collection[str], method: str | None = None) -> Callable[..., None]:
    def step(*, options: FarmOptions, dry_run: DryRun = False) -> None:
        options = replace(options, method=method or options.method)
        if dry_run:
            _show_step(name, options)
        else:
            _make(name, options)

    return with_options(step, unused)


def sample(
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            autocompletion=complete_names("methods"),
            help="Answer the evaluation instructions instead: with a method's policy, or a judge LLM (openai:MODEL).",
        ),
    ] = None,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    if dry_run:
        _show_step("sample", options, policy)
    else:
        _make("sample", options, policy)


def _llm_systems(policy: str | None) -> list[str]:
    from afarm.experiment.llm_baselines import is_llm_system

    return [policy] if policy and is_llm_system(policy) else []


def _make(name: str, options: FarmOptions, policy: str | None = None) -> None:
    """Have a farm make a step's artifact, and say where it is. Nothing of it is read back."""
    from afarm.evaluation.cut_off import cut_off
    from afarm.experiment.dry_run import plan_stage

    with options.farm(_llm_systems(policy), "" if policy else name) as farm:
        workspace = farm.workspace
        if stage := _stage(workspace, name, policy):
            with _accounted(workspace, name, policy):
                warn_of_budget(workspace, lambda: plan_stage(workspace, stage))
                workspace.ensure(stage)
    runs = list(workspace.history.values())
    if not runs:
        err().print(f"Nothing to do: reward model {workspace.config.reward_model!r} needs no fitting.")
        if options.as_json:
            print_json({"stage": None})
        return
    for line in cut_off({"stage": r.label, "kind": r.kind, "summary": r.artifact.meta["summary"]} for r in runs):
        err().print(f"[yellow]Cut off:[/] {markup(line)}", highlight=False, soft_wrap=True)
    last = runs[-1]
    if options.as_json:
        made = {
            "stage": last.label,
            "key": last.artifact.key,
            "path": str(last.artifact.path),
            "reused": last.reused,
        }
        print_json({**made, "summary": dict(last.artifact.meta["summary"])})
    else:
        out().print(str(last.artifact.path), soft_wrap=True, highlight=False)
        if name == "train" and workspace.process_info.is_main_process:
            _show_next(workspace)


def _show_next(workspace: Workspace) -> None:
    """Say how a policy that was trained alone is evaluated and taken out."""
    method, arguments = workspace.config.method, sys.argv[2:]
    chosen = [] if any(word.partition("=")[0] == "--method" for word in arguments) else ["--method", method]
    command = without_passwords(shlex.join(["afarm", "run", *chosen, *arguments]))
    run = workspace.run_name(method)
    where = (
        "" if workspace.store.root == DEFAULT_OUTPUT_DIR else f" --output-dir {shlex.quote(str(workspace.store.root))}"
    )
    for label, text in (("Evaluate it:", command), ("Then export:", f"afarm export {shlex.quote(run)} DIR{where}")):
        err().print(f"{label} {text}", soft_wrap=True, highlight=False, markup=False)


def _show_step(name: str, options: FarmOptions, policy: str | None = None) -> None:
    """Show what a step would do and buy."""
    from afarm.experiment import preflight
    from afarm.experiment.dry_run import plan_stage

    checks = preflight.run_checks(_llm_systems(policy)) if policy else preflight.stage_checks(name)
    with options.dry_run(checks, trains=bool(policy) or name == "train") as workspace:
        stage = _stage(workspace, name, policy)
        planned = plan_stage(workspace, stage) if stage else []
        method = workspace.config.method
        step = "" if name == "train" else f"{name} {policy}" if policy else name
        with _accounted(workspace, name, policy):
            show_plan(workspace, method, options.as_json, planned=planned, step=step)


def _accounted(workspace: Workspace, name: str, policy: str | None) -> AbstractContextManager[None]:
    """Book the requests of a step on its own account and budget; those of training are its run's."""
    if policy or name in ("annotate", "fit-reward"):
        return workspace.judges.client.charge_run(workspace.run_name(policy or name))
    return nullcontext()


def _stage(workspace: Workspace, name: str, policy: str | None) -> Stage | None:
    """Lay out a step's stage; None if there is nothing to make."""
    from afarm.experiment import pipeline

    steps: dict[str, Callable[[], Stage | None]] = {
        "sft": lambda: pipeline.start(workspace),
        "sample": lambda: pipeline.outputs(workspace, policy) if policy else pipeline.sample(workspace),
        "annotate": lambda: pipeline.annotate(workspace),
        "fit-reward": lambda: pipeline.fit_reward(workspace),
        "train": lambda: pipeline.train(workspace, workspace.config.method),
    }
    return steps[name]()


def report(
    run: Annotated[
        str | None,
        typer.Argument(autocompletion=complete_runs, help="The run's name; the last one if none is given."),
    ] = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
) -> None:
    """Write a run's report again."""
    from afarm.core.errors import StoreError, did_you_mean
    from afarm.report import build
    from afarm.storage.runs import latest_run, run_directories

    runs = output_dir / "runs"
    known = [run.name for run in run_directories(runs)]
    if run and run not in known:
        near = did_you_mean(run, known) or " `afarm run` makes one"
        raise StoreError(f"no finished run {run!r} in {output_dir} (--output-dir).{near}")
    directory = runs / run if run else latest_run(runs)
    if directory is None:
        raise StoreError(f"no finished run in {output_dir}: start one with `afarm run`")
    out().print(str(build(directory)), soft_wrap=True, highlight=False)
