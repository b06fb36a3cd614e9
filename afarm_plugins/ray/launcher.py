"""The launcher `ray`: each stage is a task of a Ray cluster, begun when those before it are done.

Source: Moritz et al. 2018, "Ray: A Distributed Framework for Emerging AI Applications".

The driver begins tasks itself instead of handing Ray the whole graph. A failure then stops only what needs the failed
stage, not what merely waits for its end, and each lost worker is told of as it is lost.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import AuthenticationError, NodeDiedError, OutOfMemoryError, RayError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from afarm import (
    BuildContext,
    ConfigError,
    Execute,
    Launcher,
    Outcome,
    PluginError,
    Schedule,
    StageTask,
    TaskEvent,
    Tell,
)
from afarm_plugins.ray.config import RayConfig

LOST = (WorkerCrashedError, NodeDiedError, OutOfMemoryError)
"""The errors that say that a worker is gone, not that its task has failed."""

PATIENCE = 0.5
"""Seconds between two looks at what tasks have told."""

PATIENCE_WITH_HEAD = 10.0
"""Seconds that the head of a cluster has to answer."""


class RayLauncher(Launcher):
    """Runs tasks on the Ray cluster at an address (`auto` finds it), or without one on one made here."""

    def __init__(self, config: RayConfig, spec: str, context: BuildContext):
        self.config = config
        self.address = spec

    def describe(self) -> str:
        return f"the Ray cluster at {self.address}" if self.address else "a Ray cluster of this machine"

    def nodes(self) -> Sequence[str]:
        """Name the nodes that have CPUs for stages, by their addresses; of a cluster made here, that one."""
        if not self.address:
            return ["127.0.0.1"]
        with self._cluster():
            alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        return sorted({node["NodeManagerAddress"] for node in alive})

    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        schedule = Schedule(tasks, tell)
        if tasks:
            with self._cluster():
                self._run(schedule, execute, tell)
        return schedule.outcomes

    def _run(self, schedule: Schedule, execute: Execute, tell: Tell) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        news = ray.remote(News).options(num_cpus=0, scheduling_strategy=here).remote()
        gpus = self.config.gpus if ray.cluster_resources().get("GPU") else 0
        begin = ray.remote(make)
        at_work: dict[Any, StageTask] = {}
        while not schedule.is_done:
            for task in schedule.ready():
                schedule.begin(task)
                cpus = self.config.cpus if task.needs.cpus else 0
                node = {f"node:{task.needs.node}": 0.001} if task.needs.node else {}  # a resource that each node has
                asked = begin.options(
                    name=task.id, num_cpus=cpus, num_gpus=task.needs.gpus * gpus, resources=node, max_retries=0
                )
                at_work[asked.remote(execute, task, news)] = task
            ended, _ = ray.wait(list(at_work), timeout=PATIENCE) if at_work else ([], [])
            for event in ray.get(news.taken.remote()):
                tell(event)
            for reference in ended:
                task = at_work.pop(reference)
                try:
                    schedule.settle(ray.get(reference))
                except LOST as error:
                    schedule.lose(task, _in_short(error))
                except RayError as error:
                    text = f"Ray could not run it: {_in_short(error)}"
                    schedule.settle(Outcome(task.id, error=text, error_type="PluginError"))

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        """Join the cluster or make one, and leave it at the end, which ends what is still at work."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self.address and self.address != "auto":
            _require_head(self.address)
        made_here = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}  # or it listens on every address
        how: dict[str, Any] = {"address": self.address} if self.address else {"address": "local", **made_here}
        try:
            ray.init(**how, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            raise PluginError(f"launcher 'ray': no cluster {where}: {_in_short(error)}{_remedy(error)}") from error
        try:
            yield
        finally:
            ray.shutdown()


class News:
    """An actor beside the driver that keeps what tasks tell until it is taken."""

    def __init__(self) -> None:
        self._events: list[TaskEvent] = []

    def add(self, event: TaskEvent) -> None:
        self._events.append(event)

    def taken(self) -> list[TaskEvent]:
        """Return the news since the last call."""
        events, self._events = self._events, []
        return events


def make(execute: Execute, task: StageTask, news: Any) -> Outcome:
    """Make a task in this worker, and return once all that it told has arrived."""
    told: list[Any] = []
    outcome = execute(task, lambda event: told.append(news.add.remote(event)))
    ray.get(told)
    return outcome


def _require_head(address: str) -> None:
    """Raise `ConfigError` if nothing answers at an address: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ConfigError([f"launcher ray:{address}: write ray:HOST:PORT, such as ray:10.0.0.1:6379"])
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_WITH_HEAD).close()
    except (OSError, OverflowError) as error:
        raise PluginError(
            f"launcher 'ray': nothing answers at {address} ({error}). Start the cluster there: ray start --head --port "
            f"{port}, and on every other machine: ray start --address {address}"
        ) from error


def _remedy(error: BaseException) -> str:
    """Say how a cluster that asks for a token is joined; empty for other errors."""
    if not isinstance(error, AuthenticationError) and "token" not in str(error).lower():
        return ""
    return ". Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a copy of the head's ~/.ray/auth_token"


def _in_short(error: BaseException) -> str:
    """The first sentence of an error, with the node that it names."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    node = re.search(r"Node IP: ([^\s,]+)", first)
    return f"{first.split('. ')[0].removesuffix('.')}{f', {node[1]}' if node else ''}"
