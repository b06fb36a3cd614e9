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

from afarm import AfarmError, Launcher, Outcome, StageTask, TaskEvent, Tell, seeding, storage_errors
from afarm.experiments import (
    Workspace,
    ask_nodes,
    code_problems,
    failures,
    open_task_workspace,
    require_access,
    versions,
)

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
        told = ask_nodes(launcher, workspace, system, account, launcher.nodes(), look, token)
        reports = [_report(node, **facts) for node, facts in told.items()]
        return [
            replace(report, problems=[*report.problems, *_problems_seen_here(report, directory)]) for report in reports
        ]


def _report(node: str, *, time: float = 0.0, heard: float | None = None, **facts: Any) -> NodeReport:
    return NodeReport(node, **facts, seconds_ahead=None if heard is None else time - heard)


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
    if not (directory / seeding.digest("node", report.node, length=8)).is_file():
        yield f"what it writes to {directory.parent} is not seen here: share that directory, at the same path"
    if abs(ahead) > TOLERANCE:
        yield (
            f"its clock is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}: synchronise clocks (`timedatectl "
            "set-ntp true`), or times in records disagree"
        )


# ----------------------------------------------------------------------------------------------------------- on a node


def look(task: StageTask, tell: Tell) -> Outcome:
    """Look at the node that this process is on, and tell its facts: what a launcher executes for a check."""
    place, here = f"{platform.node()}, process {os.getpid()}", versions()
    tell(TaskEvent(task.id, "started", place))
    problems: list[str] = []
    try:
        with open_task_workspace(task.farm) as workspace:
            problems += code_problems(task, workspace)
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
    if theirs:
        named = ", ".join(f"{name} {here.get(name, 'missing')} (here {theirs[name]})" for name in theirs)
        problems.append(f"other libraries: {named}: install the same on every machine")
    facts = {"place": place, "versions": here, "gpus": _gpus(), "problems": problems}
    tell(TaskEvent(task.id, "noted", text=json.dumps({**facts, "time": time.time()})))
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
        (directory / seeding.digest("node", task.needs.node, length=8)).touch()
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
