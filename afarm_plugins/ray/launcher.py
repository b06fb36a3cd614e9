"""The launcher `ray`: each stage is a task of a Ray cluster, begun when its inputs are done.

Source: Moritz et al. 2018, "Ray: A Distributed Framework for Emerging AI Applications".

The driver begins tasks itself instead of handing Ray the whole graph, so that a failure stops only the stages that need
the failed one, and lost workers are reported at once.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import AuthenticationError, NodeDiedError, OutOfMemoryError, RayError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from afarm import (
    BuildContext,
    ConfigError,
    Execute,
    Launcher,
    Needs,
    Outcome,
    PluginError,
    Schedule,
    StageTask,
    TaskEvent,
    Tell,
)
from afarm_plugins.ray.config import RayConfig

LOST = (WorkerCrashedError, NodeDiedError, OutOfMemoryError)
"""Errors that mean a lost worker, not a failed task."""

PATIENCE = 0.5
"""Seconds between two looks at the tasks' events."""

PATIENCE_WITH_HEAD = 10.0
"""Seconds that a cluster's head has to answer."""


class RayLauncher(Launcher):
    """Runs tasks on the Ray cluster at an address (`auto` finds it), or without an address on a local one."""

    def __init__(self, config: RayConfig, spec: str, context: BuildContext):
        self.config = config
        self.processes = config.processes
        self.sharded = config.sharded and config.processes > 1
        self.address = spec

    def describe(self) -> str:
        return f"the Ray cluster at {self.address}" if self.address else "a Ray cluster of this machine"

    def nodes(self) -> Sequence[str]:
        """List the addresses of the nodes that have CPUs for stages; of a local cluster, this one's."""
        if not self.address:
            return ["127.0.0.1"]
        with self._cluster():
            return _alive()

    def nodes_at_once(self) -> Sequence[str]:
        return self.nodes() if self.address else []

    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        schedule = Schedule(tasks, tell)
        if tasks:
            with self._cluster():
                if problems := self._never_met(tasks):
                    raise ConfigError(problems)
                try:
                    self._run(schedule, execute, tell)
                except RayError as error:
                    raise PluginError(
                        f"launcher 'ray': {self.describe()} no longer answers ({_in_short(error)}). What is made is "
                        "kept: start the cluster again, give the same command, and it goes on"
                    ) from error
        return schedule.outcomes

    def requested_resources(self, needs: Needs) -> Needs:
        """Return the CPUs and GPUs of each process; GPUs are requested only from a cluster that has some."""
        return replace(needs, cpus=self.config.cpus if needs.cpus else 0, gpus=needs.gpus * self.config.gpus)

    def problems(self, tasks: Sequence[StageTask]) -> list[str]:
        """List requests that the cluster at the address cannot meet; `run` checks a local cluster."""
        if not self.address or not tasks:
            return []
        with self._cluster():
            return self._never_met(tasks)

    def _never_met(self, tasks: Sequence[StageTask]) -> list[str]:
        """List requests that the cluster can never meet; none if an autoscaler may enlarge it."""
        if ray._private.state.state.get_max_resources_from_cluster_config():
            return []
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        has_gpus = any(node.get("GPU") for node in nodes)
        problems = []
        for task in tasks:
            needs = self.requested_resources(task.needs)
            each = {"CPU": needs.cpus, "GPU": needs.gpus if has_gpus else 0}
            room = 0
            for node in nodes:
                fit = [int(node.get(name, 0) / amount + 1e-6) for name, amount in each.items() if amount]
                room += min([needs.processes, *fit])
            if room < needs.processes:
                problems.append(_too_much(needs.processes, room, each, nodes))
        return list(dict.fromkeys(problems))

    def _run(self, schedule: Schedule, execute: Execute, tell: Tell) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        news = ray.remote(News).options(num_cpus=0, scheduling_strategy=here).remote()
        has_gpus = bool(ray.cluster_resources().get("GPU"))
        begin, begin_group = ray.remote(make), ray.remote(make_together)
        at_work: dict[Any, StageTask] = {}
        while not schedule.is_done:
            for task in schedule.ready():
                schedule.begin(task)
                needs = self.requested_resources(task.needs)
                cpus, gpus = needs.cpus, needs.gpus if has_gpus else 0
                if task.needs.processes > 1:
                    each = {"CPU": cpus, "GPU": gpus}
                    asked = begin_group.options(name=task.id, num_cpus=0, max_retries=0)
                    at_work[asked.remote(execute, task, news, each, self.config.sharded)] = task
                    continue
                if task.needs.node and task.needs.node not in _alive():  # or it would wait forever
                    gone = f"{task.needs.node} does not answer: it left the Ray cluster"
                    schedule.settle(Outcome(task.id, error=gone, error_type="PluginError"))
                    continue
                node = {f"node:{task.needs.node}": 0.001} if task.needs.node else {}  # a resource that each node has
                asked = begin.options(name=task.id, num_cpus=cpus, num_gpus=gpus, resources=node, max_retries=0)
                at_work[asked.remote(execute, task, news)] = task
            ended, _ = ray.wait(list(at_work), timeout=PATIENCE) if at_work else ([], [])
            for event in ray.get(news.taken.remote()):
                tell(event)
            for reference in ended:
                task = at_work.pop(reference)
                try:
                    ended_as = ray.get(reference)
                    if isinstance(ended_as, Outcome):
                        schedule.settle(ended_as)
                    else:
                        schedule.lose(task, ended_as)
                except LOST as error:
                    schedule.lose(task, _in_short(error))
                except RayError as error:
                    text = f"Ray could not run it: {_in_short(error)}"
                    schedule.settle(Outcome(task.id, error=text, error_type="PluginError"))

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        """Join the cluster or start one; leaving it at the end stops running tasks."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self.address and self.address != "auto":
            _require_head(self.address)
        made_here = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}  # or it listens on every address
        how: dict[str, Any] = {"address": self.address} if self.address else {"address": "local", **made_here}
        try:
            ray.init(**how, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            said = f"launcher 'ray': no cluster {where}: {_in_short(error)}"
            if isinstance(error, AuthenticationError) or "token" in str(error).lower():
                said += ". Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a copy of the head's ~/.ray/auth_token"
            raise PluginError(said) from error
        try:
            yield
        finally:
            ray.shutdown()


class News:
    """An actor on the driver's node that keeps the tasks' events until the driver takes them."""

    def __init__(self) -> None:
        self._events: list[TaskEvent] = []
        self._ends: dict[str, dict[int, Outcome]] = {}

    def add(self, event: TaskEvent) -> None:
        self._events.append(event)

    def taken(self) -> list[TaskEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def end(self, group: str, rank: int, outcome: Outcome) -> None:
        """Keep the outcome of a group's process."""
        self._ends.setdefault(group, {})[rank] = outcome

    def ends(self, group: str) -> dict[int, Outcome]:
        """Return the outcomes of a group's processes by rank, in the order in which they ended."""
        return self._ends.pop(group, {})


def make(execute: Execute, task: StageTask, news: Any) -> Outcome:
    """Execute a task in this worker, and return once all its events have arrived."""
    told: list[Any] = []
    outcome = execute(task, lambda event: told.append(news.add.remote(event)))
    ray.get(told)
    return outcome


def make_together(
    execute: Execute, task: StageTask, news: Any, each: Mapping[str, float], sharded: bool
) -> Outcome | str:
    """Execute a task in a Ray Train group of processes, with the resources `each`.

    Returns the outcome, or how a process was lost: then the group ends, and the schedule handles it as a lost worker.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

    group = f"{task.kind}-{uuid.uuid4().hex}"
    storage = Path(task.farm.output_dir) / ".ray" / group  # Ray's own state, which is deleted
    timeout = int(task.farm.run["backend"]["timeout"])
    try:
        TorchTrainer(
            take_part,
            train_loop_config={"execute": execute, "task": task, "news": news, "group": group, "sharded": sharded},
            torch_config=TorchConfig(backend="nccl" if each["GPU"] else "gloo", timeout_s=timeout),
            scaling_config=ScalingConfig(
                num_workers=task.needs.processes, use_gpu=bool(each["GPU"]), resources_per_worker=dict(each)
            ),
            run_config=RunConfig(name=group, storage_path=str(storage), failure_config=FailureConfig(max_failures=0)),
        ).fit()
    except TrainingFailedError as error:
        ends = ray.get(news.ends.remote(group))
        failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
        lost = sorted(failures.keys() - ends.keys())
        if not ends or lost:
            which = f"process {lost[0]} of its {task.needs.processes} was lost: " if lost else ""
            return f"{which}{_in_short(failures[lost[0]] if lost else getattr(error, 'controller_failure', error))}"
    else:
        ends = ray.get(news.ends.remote(group))
    finally:
        shutil.rmtree(storage, ignore_errors=True)
        with suppress(OSError):  # another group's is there
            storage.parent.rmdir()
    return next((outcome for outcome in ends.values() if outcome.error), ends[0])


def take_part(how: dict[str, Any]) -> None:
    """Execute a task in this process of a group. Only rank 0 sends events; a failure ends the group."""
    from ray.train import get_context

    rank, news = get_context().get_world_rank(), how["news"]
    told: list[Any] = []

    def tell(event: TaskEvent) -> None:
        if rank == 0:
            told.append(news.add.remote(event))

    if how["sharded"]:
        os.environ["ACCELERATE_USE_FSDP"] = "true"
    outcome = how["execute"](how["task"], tell)
    ray.get([*told, news.end.remote(how["group"], rank, outcome)])
    if outcome.error:
        raise RuntimeError(outcome.error)


def _alive() -> list[str]:
    """List the addresses of the nodes that have CPUs for stages."""
    alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    return sorted({node["NodeManagerAddress"] for node in alive})


def _too_much(processes: int, room: int, each: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str:
    asked = " and ".join(f"{amount:g} {name}{'s' if amount != 1 else ''}" for name, amount in each.items() if amount)
    has = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
    if processes == 1:
        return f"a stage asks for {asked}, which no node of the Ray cluster has ({has}): set ray.cpus and ray.gpus"
    return (
        f"a stage that trains asks for {processes} processes with {asked} each, and there is room for {room} "
        f"({has}): set ray.processes, ray.cpus and ray.gpus"
    )


def _require_head(address: str) -> None:
    """Raise `ConfigError` if nothing answers at an address, which takes Ray minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ConfigError(f"launcher ray:{address}: write ray:HOST:PORT, such as ray:10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_WITH_HEAD).close()
    except (OSError, OverflowError) as error:
        raise PluginError(
            f"launcher 'ray': nothing answers at {address} ({error}). Start the cluster there: ray start --head --port "
            f"{port}, and on every other machine: ray start --address {address}"
        ) from error


def _in_short(error: BaseException) -> str:
    """Return the first sentence of an error, with the node that it names."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    node = re.search(r"Node IP: ([^\s,]+)", first)
    return f"{first.split('. ')[0].removesuffix('.')}{f', {node[1]}' if node else ''}"
