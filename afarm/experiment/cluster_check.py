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
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from afarm.core.errors import AfarmError, ConfigError
from afarm.core.seeding import digest
from afarm.experiment.components import Components
from afarm.experiment.launching.launcher import Launcher, Needs, Outcome, StageTask, TaskEvent, Tell
from afarm.experiment.plugin_code import plugin_digest
from afarm.experiment.preflight import require_access
from afarm.experiment.stage_code import STAGE_CODE, code_digest
from afarm.experiment.tasks import farm_spec, open_task_workspace
from afarm.experiment.workspace import Workspace, versions
from afarm.storage.disk import storage_errors

TOLERANCE = 1.0
"""Seconds that a clock may be off."""

LOOKS_AT_CLOCK = 6
"""Times that a node tells its time: the one that came fastest counts."""

BETWEEN_LOOKS = 0.25
"""Seconds between these."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts of a node: digests of `code`, `versions` of libraries and names of `gpus`.

    `problems` are those that it sees itself.
    """

    place: str
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
    told: dict[str, NodeFacts] = {}
    clocks: dict[str, float] = {}

    def hear(event: TaskEvent) -> None:
        if event.news == "progress":  # the later a time comes here, the more it seems to be behind
            clocks[event.task] = max(clocks.get(event.task, -1e9), float(event.text) - time.time())
        elif event.news == "noted":
            told[event.task] = NodeFacts(**json.loads(event.text))

    shared = workspace.store.shared
    with (
        _meeting(workspace.store.root) as (token, arrived),
        shared.marked(_mark(token)) if shared else nullcontext(),
    ):
        farm = farm_spec(workspace, system, account)
        nodes = {f"node {node}".strip(): node for node in launcher.nodes()}
        tasks = [StageTask(name, token, "check", (), Needs(cpus=0, node=node), farm) for name, node in nodes.items()]
        outcomes = launcher.run(tasks, look, hear)
        here, root = _code(workspace.components), workspace.store.root
        reports = []
        for name, node in nodes.items():
            clock, facts = clocks.get(name), told.get(name)
            problems = list(_problems(facts, here, clock, arrived(name), root)) if facts else [outcomes[name].error]
            reports.append(NodeReport(node, facts, clock, problems))
    return reports


def require_same_code(launcher: Launcher, workspace: Workspace, system: str, account: str) -> None:
    """Ask each node that a launcher can ask at once for its code, before any stage is sent to one.

    Raises `ConfigError` that names every node with another code, or that does not see the shared directories.
    """
    nodes = {f"node {node}": node for node in launcher.nodes_at_once()}
    if not nodes:
        return
    farm, told = farm_spec(workspace, system, account), {}

    def hear(event: TaskEvent) -> None:
        if event.news == "noted":
            told[event.task] = json.loads(event.text)

    tasks = [StageTask(name, "code", "check", (), Needs(cpus=0, node=node), farm) for name, node in nodes.items()]
    outcomes, here = launcher.run(tasks, tell_code, hear), _code(workspace.components)
    problems = []
    for name, node in nodes.items():
        if error := outcomes[name].error:
            problems.append(f"{node}: {error}")
        elif others := _differing(here, told.get(name, {})):
            problems.append(f"{node} has another code of {others}: install the same on every machine")
    if problems:
        raise ConfigError(problems)


@contextmanager
def _meeting(root: Path) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """Leave a file and a held lock for the nodes, and take away all files at the end.

    Yields the token that is in their names, and what tells if a task's own file has arrived here.
    """
    token = secrets.token_hex(8)
    directory = root / f".check-{token}"
    with storage_errors(directory):
        directory.mkdir()
        try:
            (directory / "here").write_text(token)
            with (directory / "lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)

                def arrived(task: str) -> bool:
                    path = directory / digest("node", task, length=8)
                    return path.is_file() and path.read_text() == f"{token} {task}"

                yield token, arrived
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _mark(token: str) -> str:
    """Name the object of a check in the shared store."""
    return f"check-{token}"


def _problems(
    facts: NodeFacts, code: Mapping[str, str], clock: float | None, arrived: bool, root: Path
) -> Iterator[str]:
    """Yield what is wrong with a node, in the order in which a run would meet it."""
    if others := _differing(code, facts.code):
        yield f"another code of {others}: install the same on every machine"
    here = versions()
    differing = [name for name in here if facts.versions.get(name) != here[name]]
    if differing:
        theirs = ", ".join(f"{name} {facts.versions.get(name, 'missing')} (here {here[name]})" for name in differing)
        yield f"other libraries: {theirs}: install the same on every machine"
    yield from facts.problems
    if not arrived:
        yield f"what it writes to {root} is not seen here: share that directory, at the same path"
    if clock is not None and abs(clock) > TOLERANCE:
        yield (
            f"its clock is {abs(clock):.1f} s {'ahead' if clock > 0 else 'behind'}: synchronise clocks (`timedatectl "
            "set-ntp true`), or times in records disagree"
        )


def _differing(code: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Name those whose code differs; empty if none does."""
    names = sorted(name for name in code.keys() | other.keys() if code.get(name) != other.get(name))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


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
    for _ in range(LOOKS_AT_CLOCK):
        tell(TaskEvent(task.id, "progress", text=repr(time.time())))
        time.sleep(BETWEEN_LOOKS)
    problems: list[str] = []
    code: Mapping[str, str] = {}
    try:
        with open_task_workspace(task.farm) as workspace:
            code = _code(workspace.components)
            problems += _check_directory(task, Path(task.farm.output_dir) / f".check-{task.stage}")
            attempts = [lambda: require_access(workspace), lambda: workspace.judges.ledger.heartbeat()]
            if shared := workspace.store.shared:
                attempts.append(partial(shared.require_mark, _mark(task.stage)))
            for attempt in attempts:
                try:
                    attempt()
                except AfarmError as error:
                    problems.append(str(error))
    except AfarmError as error:
        problems.append(str(error))
    facts = NodeFacts(place, code, versions(), _gpus(), problems)
    tell(TaskEvent(task.id, "noted", text=json.dumps(asdict(facts))))
    return Outcome(task.id, artifact="check/done", place=place)


def tell_code(task: StageTask, tell: Tell) -> Outcome:
    """Tell the code of the node that this process is on: what a launcher executes before the first stage."""
    place = f"{platform.node()}, process {os.getpid()}"
    try:
        with open_task_workspace(task.farm) as workspace:
            tell(TaskEvent(task.id, "noted", text=json.dumps(_code(workspace.components))))
    except AfarmError as error:
        return Outcome(task.id, place=place, error=str(error), error_type=type(error).__name__)
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
        (directory / digest("node", task.id, length=8)).write_text(f"{task.stage} {task.id}")
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
