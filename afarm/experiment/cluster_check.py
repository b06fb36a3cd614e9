"""Check of a launcher's nodes before anything runs on them: what a run would stumble over.

Each node opens the same configuration, and compares notes with the command through the output directory: a file from
here must be there with its content, one from there here, and a lock that is held here must be refused there. So must an
object that is in the shared store, if there is one.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from afarm.core.errors import AfarmError, ConfigError
from afarm.core.seeding import digest
from afarm.experiment.components import Components
from afarm.experiment.launching.launcher import Launcher, Needs, Outcome, StageTask, TaskEvent, Tell
from afarm.experiment.plugin_code import plugin_digest
from afarm.experiment.preflight import failures, require_access
from afarm.experiment.stage_code import STAGE_CODE, code_digest
from afarm.experiment.tasks import farm_spec, name_differing, open_task_workspace
from afarm.experiment.workspace import Workspace, versions
from afarm.storage.disk import storage_errors

TOLERANCE = 5.0
"""Seconds that a clock may seem off: what a node tells takes a while to come here."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts of a node at a `time`: digests of `code`, `versions` of libraries and names of `gpus`.

    `problems` are those that it sees itself.
    """

    place: str
    time: float
    code: Mapping[str, str]
    versions: Mapping[str, str]
    gpus: Sequence[str] = ()
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's facts and problems, and the seconds that its clock is ahead (None if it told nothing)."""

    node: str
    facts: NodeFacts | None
    clock: float | None
    problems: Sequence[str] = ()


def check_nodes(launcher: Launcher, workspace: Workspace, system: str, account: str) -> list[NodeReport]:
    """Look at every node of a launcher, and report on each what a run of `system` would stumble over."""
    shared, root = workspace.store.shared, workspace.store.root
    with (
        _meeting(root) as (token, has_arrived),
        shared.marked(f"check-{token}") if shared else nullcontext(),
    ):
        reports = _ask(launcher, workspace, system, account, launcher.nodes(), token)
        return [
            replace(report, problems=[*report.problems, *_differences(report, has_arrived(report.node), root)])
            for report in reports
        ]


def require_same_code(launcher: Launcher, workspace: Workspace, system: str, account: str) -> None:
    """Ask each node that a launcher can ask at once for its code, before any stage is sent to one.

    Raises `ConfigError` that names every node with another code, or that does not see the shared directories.
    """
    if nodes := launcher.nodes_at_once():
        reports = _ask(launcher, workspace, system, account, nodes)
        if problems := [f"{report.node}: {problem}" for report in reports for problem in report.problems]:
            raise ConfigError(problems)


def _ask(
    launcher: Launcher, workspace: Workspace, system: str, account: str, nodes: Sequence[str], token: str = ""
) -> list[NodeReport]:
    """Have each node look at itself, and compare its code; without a `token` it looks at nothing else."""
    told: dict[str, tuple[NodeFacts, float]] = {}

    def hear(event: TaskEvent) -> None:
        if event.news == "noted":
            facts = NodeFacts(**json.loads(event.text))
            told[event.task] = facts, facts.time - time.time()

    farm, here = farm_spec(workspace, system, account), _code(workspace.components)
    names = {node: f"node {node}".strip() for node in nodes}
    tasks = [StageTask(name, token, "check", (), Needs(cpus=0, node=node), farm) for node, name in names.items()]
    outcomes = launcher.run(tasks, look, hear)
    reports = []
    for node, name in names.items():
        facts, clock = told.get(name, (None, None))
        problems = list(facts.problems) if facts else [outcomes[name].error]
        if facts and facts.code and (others := name_differing(here, facts.code)):
            problems.insert(0, f"another code of {others}: install the same on every machine")
        reports.append(NodeReport(node, facts, clock, problems))
    return reports


@contextmanager
def _meeting(root: Path) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """Leave a file and a held lock for the nodes, and take away all files at the end.

    Yields the token that is in their names, and what tells if a node's own file has arrived here.
    """
    token = secrets.token_hex(8)
    directory = root / f".check-{token}"
    with storage_errors(directory):
        directory.mkdir()
        try:
            (directory / "here").write_text(token)
            with (directory / "lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)

                def has_arrived(node: str) -> bool:
                    path = directory / digest("node", node, length=8)
                    return path.is_file() and path.read_text() == f"{token} {node}"

                yield token, has_arrived
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _differences(report: NodeReport, arrived: bool, root: Path) -> Iterator[str]:
    """Yield how a node that told its facts differs from this machine, but for its code."""
    facts, clock, here = report.facts, report.clock, versions()
    if facts is None or clock is None:
        return
    if differing := [name for name in here if facts.versions.get(name) != here[name]]:
        theirs = ", ".join(f"{name} {facts.versions.get(name, 'missing')} (here {here[name]})" for name in differing)
        yield f"other libraries: {theirs}: install the same on every machine"
    if not arrived:
        yield f"what it writes to {root} is not seen here: share that directory, at the same path"
    if abs(clock) > TOLERANCE:
        yield (
            f"its clock is {abs(clock):.1f} s {'ahead' if clock > 0 else 'behind'}: synchronise clocks (`timedatectl "
            "set-ntp true`), or times in records disagree"
        )


def _code(components: Components) -> dict[str, str]:
    """Digest the code that artifacts' keys depend on: afarm's own, and each plugin's."""
    code = {"afarm": digest("code", {kind: code_digest(kind) for kind in STAGE_CODE}, length=8)}
    plugins: dict[str, set[str]] = {}
    for component in components.plugins.registry:
        plugins.setdefault(component.plugin, set()).add(plugin_digest(component))
    return code | {name: digest("code", sorted(digests), length=8) for name, digests in plugins.items()}


# ----------------------------------------------------------------------------------------------------------- on a node


def look(task: StageTask, tell: Tell) -> Outcome:
    """Look at the node that this process is on, and tell its facts: what a launcher executes for a check."""
    place = f"{platform.node()}, process {os.getpid()}"
    tell(TaskEvent(task.id, "started", place))
    problems: list[str] = []
    code: Mapping[str, str] = {}
    try:
        with open_task_workspace(task.farm) as workspace:
            code = _code(workspace.components)
            if task.stage:
                problems += _check_directory(task, Path(task.farm.output_dir) / f".check-{task.stage}")
                attempts: list[Callable[[], object]] = [
                    lambda: require_access(workspace),
                    lambda: workspace.judges.ledger.heartbeat(),
                ]
                if shared := workspace.store.shared:
                    attempts.append(partial(shared.require_mark, f"check-{task.stage}"))
                problems += failures(attempts)
    except AfarmError as error:
        problems.append(str(error))
    facts = NodeFacts(place, time.time(), code, versions(), _gpus() if task.stage else [], problems)
    tell(TaskEvent(task.id, "noted", text=json.dumps(asdict(facts))))
    return Outcome(task.id, artifact="check/done", place=place)


def _check_directory(task: StageTask, directory: Path) -> Iterator[str]:
    """Yield the problems of the shared directory on this machine, and write a file into it."""
    root = task.farm.output_dir
    try:
        if not directory.is_dir() or (directory / "here").read_text() != task.stage:
            yield f"what is written to {root} by the command is not seen: share that directory, at the same path"
            return
        with (directory / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                yield (
                    f"a lock that the command holds in {root} is granted again: two machines would make the same "
                    "artifact. Mount it with locks between machines (not nolock or localflock)"
                )
        (directory / digest("node", task.needs.node, length=8)).write_text(f"{task.stage} {task.needs.node}")
    except OSError as error:
        yield f"{root} cannot be used: {error.strerror or error}"


def _gpus() -> list[str]:
    """Name the GPUs that NVIDIA's driver sees, also those that a launcher hides from this process."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    asked = [command, "--query-gpu=name", "--format=csv,noheader"]
    done: Any = subprocess.run(asked, capture_output=True, text=True, check=False)
    return [] if done.returncode else done.stdout.split("\n")[:-1]
