"""Check of a launcher's nodes before anything runs on them: what a run would stumble over.

Each node opens the same configuration and compares its code. Through the output directory, a file from here must be
seen there, one from there here, and a lock held here must be refused there. A shared store must show the same mark.
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
from dataclasses import dataclass, field, replace
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
class NodeReport:
    """A node's process, the versions of its libraries, the names of its GPUs, and what is wrong with it.

    `seconds_ahead` says how far its clock is ahead. It is None, and the rest empty, if the node did not answer.
    """

    node: str
    place: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[str] = ()
    seconds_ahead: float | None = None
    problems: Sequence[str] = ()


def check_nodes(launcher: Launcher, workspace: Workspace, system: str, account: str) -> list[NodeReport]:
    """Look at every node of a launcher, and report on each what a run of `system` would stumble over."""
    shared, root, token = workspace.store.shared, workspace.store.root, secrets.token_hex(8)
    directory = root / f".check-{token}"
    with _meeting(directory, token), shared.marked(f"check-{token}") if shared else nullcontext():
        reports = _ask(launcher, workspace, system, account, launcher.nodes(), token)
        return [
            replace(report, problems=[*report.problems, *_problems_seen_here(report, directory)]) for report in reports
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
    """Have each node compare itself with this machine: its code and, with a `token`, all else."""
    told: dict[str, dict[str, Any]] = {}

    def hear(event: TaskEvent) -> None:
        if event.news == "noted":
            facts = json.loads(event.text)
            told[event.task] = {**facts, "seconds_ahead": facts["seconds_ahead"] - time.time()}

    farm, code = farm_spec(workspace, system, account), _code(workspace.components)
    names = {node: f"node {node}".strip() for node in nodes}
    tasks = [StageTask(name, token, "check", (), Needs(cpus=0, node=node), farm, code) for node, name in names.items()]
    outcomes = launcher.run(tasks, look, hear)
    return [NodeReport(node, **told.get(name, {"problems": [outcomes[name].error]})) for node, name in names.items()]


@contextmanager
def _meeting(directory: Path, token: str) -> Iterator[None]:
    """Leave a file and a held lock for the nodes in `directory`, and remove it at the end with theirs."""
    with storage_errors(directory):
        directory.mkdir()
        try:
            (directory / "here").write_text(token)
            with (directory / "lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _problems_seen_here(report: NodeReport, directory: Path) -> Iterator[str]:
    """Yield what only this machine sees of a node that told something: if its file is here, and its clock."""
    if (ahead := report.seconds_ahead) is None:
        return
    if not (directory / digest("node", report.node, length=8)).is_file():
        yield f"what it writes to {directory.parent} is not seen here: share that directory, at the same path"
    if abs(ahead) > TOLERANCE:
        yield (
            f"its clock is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}: synchronise clocks (`timedatectl "
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
    place, here = f"{platform.node()}, process {os.getpid()}", versions()
    tell(TaskEvent(task.id, "started", place))
    problems: list[str] = []
    try:
        with open_task_workspace(task.farm) as workspace:
            if others := name_differing(task.source, _code(workspace.components)):
                problems.append(f"another code of {others}: install the same on every machine")
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
    theirs = {name: version for name, version in task.farm.versions.items() if here.get(name) != version}
    if task.stage and theirs:
        named = ", ".join(f"{name} {here.get(name, 'missing')} (here {theirs[name]})" for name in theirs)
        problems.append(f"other libraries: {named}: install the same on every machine")
    facts = {"place": place, "versions": here, "gpus": _gpus() if task.stage else [], "problems": problems}
    tell(TaskEvent(task.id, "noted", text=json.dumps({**facts, "seconds_ahead": time.time()})))
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
        (directory / digest("node", task.needs.node, length=8)).touch()
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
