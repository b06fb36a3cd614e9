"""Stages of several runs as tasks for a launcher, and how any process makes one.

A launcher only fills the store. The command that called it then goes through its runs as ever and finds every artifact
there, so records, reports and tables are made in one place, and the same command goes on after any failure.
"""

from __future__ import annotations

import json
import os
import platform
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from afarm.core import errors
from afarm.core.errors import AfarmError, ConfigError, PluginError, StoreError, attribute_failures
from afarm.core.interfaces import Progress, no_progress
from afarm.core.plugins import Plugins, choose_plugins, chosen_plugins, discover
from afarm.core.seeding import digest
from afarm.experiment import pipeline
from afarm.experiment.components import Components
from afarm.experiment.dry_run import find_or_explain
from afarm.experiment.launching.launcher import (
    Execute,
    FarmSpec,
    Launcher,
    Needs,
    Outcome,
    StageTask,
    TaskEvent,
    Tell,
)
from afarm.experiment.opening import workspace_over
from afarm.experiment.plugin_code import plugin_digest
from afarm.experiment.preflight import require_access
from afarm.experiment.process_info import SINGLE_PROCESS, ProcessInfo
from afarm.experiment.recipe import Settings
from afarm.experiment.settings import RunConfig
from afarm.experiment.stage import Stage, StageRun, walk
from afarm.experiment.stage_code import STAGE_CODE, code_digest
from afarm.experiment.workspace import Workspace, versions
from afarm.storage.artifacts import Artifact
from afarm.storage.named_code import name_code
from afarm.storage.reuse import flatten

TOLD_EVERY = 1.0
"""Seconds between two reports of how far a loop is."""

OWN_STAGES = frozenset({"train", "outputs", "evaluate"})
"""The kinds of stages that a run has for itself: runs of one seed share the others."""

Systems = Sequence[tuple[str, Workspace]]
"""Systems, each with the workspace that it is evaluated in."""


# --------------------------------------------------------------------------------------------------------- launchers


def open_launcher(spec: str, workspace: Workspace) -> Launcher | None:
    """Build the launcher `spec`, such as "local:2"; None for "local", which is this process.

    Raises `PluginError` if there is none of that name or it is not installed, `ConfigError` if its text is wrong.
    """
    if spec == "local":
        return None
    name, _, argument = spec.partition(":")
    components, plugins = workspace.components, workspace.components.plugins
    component = plugins.get("launchers", name)
    cls, config = component.load(), components.settings.of(component)
    with attribute_failures("launchers", name, cls):
        launcher = cls(config, argument, components.context(component))
    if not isinstance(launcher, Launcher):
        raise PluginError(f"launcher {name!r}: {component.target} makes no afarm.Launcher")
    return launcher


# --------------------------------------------------------------------------------------------------------- the graph


@dataclass(frozen=True)
class TaskGraph:
    """The `tasks` of systems in order: those that they share once, none whose artifact is there.

    `wanted` holds for the workspace of each system the ids of all its tasks.
    """

    tasks: Sequence[StageTask]
    wanted: Mapping[Workspace, Sequence[str]]

    def most_at_once(self, launcher: Launcher, tasks: Sequence[StageTask]) -> int:
        """Count how many of `tasks` a launcher can run at once at most, if each begins as early as it can."""
        level: dict[str, int] = {}
        for task in self.tasks:
            level[task.id] = 1 + max((level[name] for name in (*task.after, *task.behind)), default=0)
        widest = max(Counter(level[task.id] for task in tasks).values(), default=0)
        return min(widest, launcher.at_once or widest)


def task_graph(systems: Systems, account: str, processes: int = 1) -> TaskGraph:
    """Lay out the stages of systems as tasks, paid from `account`; each that trains has `processes`."""
    several = len({workspace.config.seed for _, workspace in systems}) > 1
    tasks: dict[str, StageTask] = {}
    found: dict[str, Artifact | None] = {}
    wanted: dict[Workspace, list[str]] = {}
    for system, workspace in systems:
        farm = farm_spec(workspace, system, account)
        stages = list_stages(workspace, system)
        identities = {label: identity(stage) for label, stage in stages.items()}
        for label, stage in stages.items():
            own = identities[label]
            if own in found:
                continue
            before = {name: identities[upstream.label] for name, upstream in stage.inputs.items()}
            found[own] = None
            with suppress(StoreError):  # a damaged artifact, which its task will name
                found[own], _ = find_or_explain(
                    workspace, stage, {name: found[other] for name, other in before.items()}
                )
            if found[own] is None:
                name = f"{label}, seed {workspace.config.seed}" if several else label
                taken = {task.id for task in tasks.values()}
                name = name if name not in taken else f"{name}, {system} {own[:4]}"
                after = tuple(dict.fromkeys(tasks[other].id for other in before.values() if other in tasks))
                needs = _needs(workspace, stage, processes)
                task = StageTask(name, label, stage.kind, after, needs, farm, digest_source_parts(stage))
                tasks[own] = replace(task, behind=_earlier_asking_tasks(task, tasks.values()))
        wanted[workspace] = [tasks[own].id for own in identities.values() if own in tasks]
    return TaskGraph(list(tasks.values()), wanted)


def _earlier_asking_tasks(task: StageTask, earlier: Iterable[StageTask]) -> tuple[str, ...]:
    """Name the earlier tasks that may ask judges about some of the same, in one process's order.

    Side by side, two evaluations would put a pair that both have into two calls. Methods that ask while they train
    share less with each other than waiting would cost.
    """
    kind = {"evaluate": "evaluate", "annotate": "train", "train": "annotate"}.get(task.kind)
    same = [other for other in earlier if other.farm.run["seed"] == task.farm.run["seed"]]
    return tuple(other.id for other in same if task.needs.asks and other.needs.asks and other.kind == kind)


def list_stages(workspace: Workspace, system: str) -> dict[str, Stage]:
    """Return the stages of a system's expected comparisons by label, each after the stages it needs."""
    return walk(*pipeline.expected_evaluations(workspace, system))


def identity(stage: Stage) -> str:
    """Digest what a stage and all before it depend on: stages of equal identity make the same artifact."""
    inputs = {name: identity(upstream) for name, upstream in stage.inputs.items()}
    return digest("stage", stage.kind, dict(stage.key_fields), inputs)


def digest_source_parts(stage: Stage) -> dict[str, str]:
    """Digest everything but the inputs that a stage's result depends on, by name in the key."""
    return {name: digest(value, length=8) for name, value in flatten(stage.key_fields).items()}


def _needs(workspace: Workspace, stage: Stage, processes: int) -> Needs:
    scores = stage.kind == "evaluate" and any(s.kind == "fit-reward" for s in stage.inputs.values())
    is_own = not stage.plan_requests or stage.kind == "train"  # else a judge LLM answers
    computes = scores or (stage.kind in ("train", "fit-reward", "sample", "outputs") and is_own)
    asks = bool(stage.plan_labels or stage.plan_requests)
    together = processes if stage.run_collective else 1
    return Needs(together, gpus=int(computes and workspace.config.backend.device != "cpu"), asks=asks)


def farm_spec(workspace: Workspace, system: str, account: str) -> FarmSpec:
    """Return what another process opens a workspace like this one from."""
    settings, ledger = workspace.settings, workspace.judges.ledger_place
    return FarmSpec(
        settings.recipe,
        settings.run.model_dump(mode="json"),
        settings.sections,
        str(workspace.store.root.absolute()),
        os.getcwd(),
        system,
        account,
        versions(),
        "" if ledger == workspace.store.ledger_path else str(ledger),
        workspace.store.shared.url if workspace.store.shared else "",
        *chosen_plugins(),
    )


# ------------------------------------------------------------------------------------------------------- in the command


def require_same_code(launcher: Launcher, workspace: Workspace, system: str, account: str) -> None:
    """Ask each node that a launcher can ask at once for its code, before any stage is sent to one.

    Raises `ConfigError` that names every node with another code, or that does not see the shared directories.
    """
    if nodes := launcher.nodes_at_once():
        told = ask_nodes(launcher, workspace, system, account, nodes, tell_code)
        if problems := [f"{node}: {problem}" for node, facts in told.items() for problem in facts["problems"]]:
            raise ConfigError(problems)


def ask_nodes(
    launcher: Launcher,
    workspace: Workspace,
    system: str,
    account: str,
    nodes: Sequence[str],
    look: Execute,
    token: str = "",
) -> dict[str, dict[str, Any]]:
    """Have `look` executed on each node; return the facts that it notes there, as JSON, by node.

    Beside them stands when they were `heard`, in Unix seconds. Of a node that does not answer there are `problems`
    alone. Its task has this machine's code as `source`, and the `token` as its stage.
    """
    told: dict[str, dict[str, Any]] = {}

    def hear(event: TaskEvent) -> None:
        if event.news == "noted":
            told[event.task] = {**json.loads(event.text), "heard": time.time()}

    farm, code = farm_spec(workspace, system, account), _code(workspace.components)
    names = {node: f"node {node}".strip() for node in nodes}
    tasks = [StageTask(name, token, "check", (), Needs(cpus=0, node=node), farm, code) for node, name in names.items()]
    outcomes = launcher.run(tasks, look, hear)
    return {node: told.get(name, {"problems": [outcomes[name].error]}) for node, name in names.items()}


def _code(components: Components) -> dict[str, str]:
    """Digest the code that artifacts' keys depend on: afarm's own, and each plugin's."""
    code = {"afarm": digest("code", {kind: code_digest(kind) for kind in STAGE_CODE}, length=8)}
    plugins: dict[str, set[str]] = {}
    for component in components.plugins.registry:
        plugins.setdefault(component.plugin, set()).add(plugin_digest(component))
    return code | {name: digest("code", sorted(digests), length=8) for name, digests in plugins.items()}


def launch(launcher: Launcher, graph: TaskGraph, systems: Systems, tell: Tell) -> Launched:
    """Have a launcher make what is missing of the stages of systems.

    Raises `ConfigError` for what it cannot run, and `BudgetError` and `JudgeError`, after which the others would come
    no further.
    """
    if problems := launcher.problems(graph.tasks):
        raise ConfigError(problems)
    with attribute_failures("launchers", type(launcher).__name__, launcher):
        returned = launcher.run(graph.tasks, execute, tell)
        outcomes = {task.id: returned[task.id] for task in graph.tasks}
    store = systems[0][1].store
    for name, outcome in outcomes.items():
        stage, _, key = outcome.artifact.partition("/")
        if outcome.is_done and store.find(stage, key) is None:
            missing = f"made {outcome.artifact}, which is not in {store.root}: share that directory with it"
            outcomes[name] = replace(outcome, error=f"{outcome.place} {missing}", error_type="StoreError")
        if outcome.error_type in ("BudgetError", "JudgeError"):
            raise restore_error(outcome)
    return Launched(graph, outcomes)


@dataclass(frozen=True)
class Launched:
    """The outcomes of a launcher's tasks, by their ids."""

    graph: TaskGraph
    outcomes: Mapping[str, Outcome]
    _recorded: set[str] = field(default_factory=set)

    def hand_over(self, workspace: Workspace) -> None:
        """Let a workspace go through its stages without the events that were reported when they were made.

        The first workspace that uses a stage records it as made, not reused, as in one process. Raises the error of the
        first task that failed of those that it wanted.
        """
        for name in self.graph.wanted[workspace]:
            if self.outcomes[name].error_type:
                raise restore_error(self.outcomes[name])
        made = {outcome.artifact: outcome for outcome in self.outcomes.values() if outcome.is_done}
        on_stage = workspace.on_stage

        def tell(label: str, run: StageRun | None) -> None:
            outcome = made.get(run.artifact.name) if run else None
            if run is None or outcome is None:
                on_stage(label, run)
            elif not outcome.reused and outcome.task not in self._recorded:  # by the others it is reused, as ever
                self._recorded.add(outcome.task)
                workspace.history[label] = replace(run, reused=False, seconds=outcome.seconds)
                if any(outcome.spend.values()):
                    workspace.judges.client.spend.add_totals(outcome.spend)

        workspace.on_stage = tell


def restore_error(outcome: Outcome) -> AfarmError:
    """Rebuild the error of a failed task as its worker raised it."""
    classes = {cls.__name__: cls for cls in AfarmError.__subclasses__() if cls.__module__ == errors.__name__}
    place = f", on {outcome.place}" if outcome.place else ""
    return classes.get(outcome.error_type, AfarmError)(f"{outcome.error} (in {outcome.task}{place})")


# --------------------------------------------------------------------------------------------------------- in a worker


def execute(task: StageTask, tell: Tell) -> Outcome:
    """Make the artifact of a task in this process: what every launcher's workers call."""
    place, started = f"{platform.node()}, process {os.getpid()}", time.perf_counter()
    tell(TaskEvent(task.id, "started", place))
    try:
        run, spend = _make(task, tell)
    except Exception as error:
        if isinstance(error, AfarmError):
            text = str(error)
            name = next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
        else:
            file, line, *_ = traceback.extract_tb(error.__traceback__)[-1]
            text, name = f"{type(error).__name__}: {error} ({file}:{line})", "AfarmError"
        return Outcome(task.id, seconds=time.perf_counter() - started, place=place, error=text, error_type=name)
    return Outcome(task.id, run.artifact.name, run.reused, time.perf_counter() - started, place, spend=spend)


def _make(task: StageTask, tell: Tell) -> tuple[StageRun, dict[str, float]]:
    """Make the artifact. Returns the stage's run and what was bought and reused for it."""

    def notify(text: str) -> None:
        tell(TaskEvent(task.id, "noted", text=text))

    here = versions()
    if others := [f"{name} {here.get(name)} for {v}" for name, v in task.farm.versions.items() if here.get(name) != v]:
        notify(f"{platform.node()} has {', '.join(others)}: its results may differ")
    process_info = SINGLE_PROCESS
    if task.needs.processes > 1:
        process_info = ProcessInfo.of(os.environ)
        os.environ.pop("ACCELERATE_USE_FSDP", None)  # or libraries would apply FSDP themselves
    with open_task_workspace(task.farm, _report_progress(task, tell), notify, process_info) as workspace:
        workspace.meet()
        stage = list_stages(workspace, task.farm.system).get(task.stage)
        if stage is None:
            raise ConfigError(_another("stages"))
        if differing := name_differing(digest_source_parts(stage), task.source):
            raise ConfigError(_another(differing))
        if task.needs.asks and process_info.is_main_process:
            require_access(workspace)
        with workspace.judges.client.charge_run(task.farm.account):
            workspace.ensure(stage)
        bought = workspace.judges.spend
        return workspace.history[task.stage], bought.totals() if bought else {}


def tell_code(task: StageTask, tell: Tell) -> Outcome:
    """Note what is wrong with the code of the node that this process is on, or with its directories."""
    try:
        with open_task_workspace(task.farm) as workspace:
            problems = code_problems(task, workspace)
    except AfarmError as error:
        problems = [str(error)]
    tell(TaskEvent(task.id, "noted", text=json.dumps({"problems": problems})))
    return Outcome(task.id, artifact="check/done")


def code_problems(task: StageTask, workspace: Workspace) -> list[str]:
    """Say which code differs between this node and the machine that made the task of `ask_nodes`."""
    others = name_differing(task.source, _code(workspace.components))
    return [f"another code of {others}: install the same on every machine"] if others else []


def open_task_workspace(
    farm: FarmSpec,
    progress: Progress = no_progress,
    notify: Callable[[str], None] = lambda text: None,
    process_info: ProcessInfo = SINGLE_PROCESS,
) -> Workspace:
    """Open the workspace of a farm in this process, in the directory where relative paths begin.

    Raises `StoreError` if this machine cannot see its directories, `ConfigError` if settings differ here.
    """
    for path in (farm.directory, farm.output_dir):
        if not Path(path).is_dir():
            raise StoreError(
                f"{platform.node()} sees no directory {path}: share it with every machine, at the same path"
            )
    if os.getcwd() != farm.directory:
        os.chdir(farm.directory)
    try:
        settings = Settings(farm.recipe, RunConfig.model_validate(farm.run), farm.sections)
    except ValidationError as error:
        raise ConfigError(_another("settings")) from error
    name_code([farm.run, farm.sections])
    components = Components(
        _plugins(farm.plugin_files, farm.disabled_plugins), settings, progress, notify, process_info
    )
    return workspace_over(components, Path(farm.output_dir), ledger=farm.ledger or None, store=farm.store or None)


@cache
def _plugins(files: tuple[str, ...], disabled: tuple[str, ...]) -> Plugins:
    """The plugins of this process, which does not load edited ones again anyway."""
    choose_plugins(files, disabled)
    return discover()


def name_differing(digests: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Name the entries that differ, the first five of many; empty if none does."""
    names = sorted(name for name in digests.keys() | other.keys() if digests.get(name) != other.get(name))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _another(differing: str) -> str:
    """Say which ingredients of a stage differ between this machine and the one the command was given on."""
    return (
        f"{platform.node()} has another afarm, plugin, data set or model than the machine where the command was given: "
        f"{differing}. Install the same on every machine"
    )


def _report_progress(task: StageTask, tell: Tell) -> Progress:
    """Return a progress that reports periodically how far a loop is."""

    def progress(items: Any, description: str, total: int | None = None) -> Iterator[Any]:
        total = len(items) if total is None and hasattr(items, "__len__") else total
        told = time.monotonic()
        for done, item in enumerate(items):
            if time.monotonic() - told > TOLD_EVERY:
                told = time.monotonic()
                count = f"{done:,} of {total:,}" if total else f"{done:,}"
                tell(TaskEvent(task.id, "progress", text=f"{description} {count}"))
            yield item

    return progress
