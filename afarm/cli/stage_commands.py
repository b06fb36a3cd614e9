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
from afarm.cli.completion import complete_runs
from afarm.cli.console import err, out, print_json
from afarm.cli.farm_options import FarmOptions, with_options
from afarm.cli.plans import show_plan, warn_of_budget
from afarm.cli.shared_options import DEFAULT_OUTPUT_DIR, DryRun, OutputDir, option, write_examples
from afarm.core.errors import StoreError, did_you_mean
from afarm.storage.runs import latest_run, run_directories
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


def add_commands(app: typer.Typer) -> None:
    for name, listed in STEPS.items():
        step = with_options(sample, UNUSED[name]) if name == "sample" else _step(name, UNUSED[name])
        about = f"{listed.summary} {BEFORE}"
        app.command(name, help=about, epilog=write_examples(name, *listed.examples))(step)


def add_method(app: typer.Typer, name: str, component: Component) -> None:
    """Add the training of a method under its name. Raises `PluginError` if its class cannot be loaded."""
    about = f"Train the policy of {name}: {component.summary or 'a method'}. {BEFORE}"
    examples = write_examples(name, "--seed 1", "--recipe paper --dry-run")
    settings = f"\n\n`afarm settings {name}` lists its settings." if component.config else ""
    needs, unused = component.load().needs, UNUSED["train"] | {"method"}
    unused |= {"reward_model"} - {*needs}
    if not {"reward_model", "preferences", "feedback", "annotator", "judge"} & {*needs}:
        unused |= _LABELS | _ASKING | _PREFERENCES
    step = _step("train", unused, method=name)
    app.command(name, help=about, epilog=examples + settings)(step)


def _step(name: str, unused: Collection[str], method: str | None = None) -> Callable[..., None]:
    def step(*, options: FarmOptions, dry_run: DryRun = False) -> None:
        _run_step(name, replace(options, method=method or options.method), dry_run)

    return with_options(step, unused)


def sample(
    policy: Annotated[
        str | None,
        option(
            "--policy",
            "Answer the evaluation instructions instead: with a method's policy, or a judge LLM (openai:MODEL).",
            "methods",
        ),
    ] = None,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    _run_step("sample", options, dry_run, policy)


def _run_step(name: str, options: FarmOptions, dry_run: bool, policy: str | None = None) -> None:
    """Make a step's artifact, and say where it is; or show what that would do and buy."""
    from afarm.experiment import preflight
    from afarm.experiment.dry_run import plan_stage
    from afarm.experiment.llm_baselines import is_llm_system

    llm_systems = [policy] if policy and is_llm_system(policy) else []
    if dry_run:
        checks = preflight.run_checks(llm_systems) if policy else preflight.stage_checks(name)
        opened: AbstractContextManager[Workspace] = options.dry_run(checks, trains=bool(policy) or name == "train")
    else:
        opened = options.farm(llm_systems, "" if policy else name).workspace
    with opened as workspace:
        stage = _lay_out(workspace, name, policy)
        # Requests are booked on an account and a budget of the step's own; those of training on its run's.
        own = workspace.run_name(policy or name) if policy or name in ("annotate", "fit-reward") else ""
        with workspace.judges.client.charge_run(own) if own else nullcontext():
            if dry_run:
                planned, step = plan_stage(workspace, stage) if stage else [], f"{name} {policy or ''}".strip()
                step = "" if name == "train" else step
                show_plan(workspace, workspace.config.method, options.as_json, planned=planned, step=step)
            elif stage:
                warn_of_budget(workspace, lambda: plan_stage(workspace, stage))
                workspace.ensure(stage)
    if not dry_run:
        _show_made(workspace, name, options.as_json)


def _lay_out(workspace: Workspace, name: str, policy: str | None) -> Stage | None:
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


def _show_made(workspace: Workspace, name: str, as_json: bool) -> None:
    """Say where a step's artifact is. Nothing of it is read back."""
    from afarm.evaluation.run_stages import cut_off

    runs = list(workspace.history.values())
    if not runs:
        err().print(f"Nothing to do: reward model {workspace.config.reward_model!r} needs no fitting.")
        if as_json:
            print_json({"stage": None})
        return
    for line in cut_off({"stage": r.label, "kind": r.kind, "summary": r.artifact.meta["summary"]} for r in runs):
        err().print(f"[yellow]Cut off:[/] {markup(line)}")
    label, artifact = runs[-1].label, runs[-1].artifact
    if as_json:
        made = {"stage": label, "key": artifact.key, "path": str(artifact.path), "reused": runs[-1].reused}
        print_json({**made, "summary": dict(artifact.meta["summary"])})
        return
    out().print(str(artifact.path))
    if name == "train" and workspace.process_info.is_main_process:
        _show_next(workspace)


def _show_next(workspace: Workspace) -> None:
    """Say how a policy that was trained alone is evaluated and taken out."""
    method, words, root, place = workspace.config.method, sys.argv[1:], workspace.store.root, 0
    while place < len(words) and words[place].startswith("--"):  # options of every command, as --plugin-file
        place += 1 if "=" in words[place] else 2
    chosen = [] if any(word.partition("=")[0] == "--method" for word in words) else ["--method", method]
    command = without_passwords(shlex.join(["afarm", *words[:place], "run", *chosen, *words[place + 1 :]]))
    where = [] if root == DEFAULT_OUTPUT_DIR else ["--output-dir", str(root)]
    err().print(f"Evaluate it: {command}", markup=False)
    err().print(
        f"Then export: {shlex.join(['afarm', 'export', workspace.run_name(method), 'DIR', *where])}", markup=False
    )


def report(
    run: Annotated[
        str | None, typer.Argument(autocompletion=complete_runs, help="The run's name; the last one if none is given.")
    ] = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
) -> None:
    """Write a run's report again."""
    from afarm.report import build

    runs = output_dir / "runs"
    known = [run.name for run in run_directories(runs)]
    if run and run not in known:
        near = did_you_mean(run, known) or " `afarm run` makes one"
        raise StoreError(f"no finished run {run!r} in {output_dir} (--output-dir).{near}")
    directory = runs / run if run else latest_run(runs)
    if directory is None:
        raise StoreError(f"no finished run in {output_dir}: start one with `afarm run`")
    out().print(str(build(directory)))
