"""Two machines on one: network namespaces joined by a cable, and launches and a Ray cluster over both."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

import psutil
from waiting import LIMIT, wait_until

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 6399
STARTS = 5
"""Times that a node is started: Ray gives it 30 seconds, which a busy machine may not have."""
SMALL = {
    "rows.sft": 64,
    "rows.preference": 40,
    "rows.unlabeled": 40,
    "rows.validation": 8,
    "rows.evaluation": 20,
    "sft.num_train_epochs": 1,
    "best_of_n.n": 2,
    "ppo.total_steps": 6,
    "ppo.save_steps": 2,
    "ppo.rollout_batch_size": 64,
    "ppo.mini_batch_size": 32,
}
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
"""Of a comparison that takes a minute."""


def why_not() -> str:
    """Say what is missing for two machines; empty if nothing is."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    return "" if shutil.which("ip") else "needs the command ip (iproute2)"


class TwoMachines:
    """Two namespaces, and the Ray nodes in them. The first has the head, and room for stages when it joins again."""

    def __init__(self, environment: dict[str, str]):
        own = uuid.uuid4().hex[:6]
        self.names = (f"afarm-{own}-1", f"afarm-{own}-2")
        self.scratch = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets below it must have short paths
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": uuid.uuid4().hex * 2,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_register_timeout_seconds": "300",  # a busy machine is no failure
            **environment,
        }
        self.cables = cables = (f"af{own}a", f"af{own}b")
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", cables[0], "netns", self.names[0], "type", "veth", "peer", cables[1], "netns", self.names[1])
        for name, cable, address in zip(self.names, cables, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            for device in ("lo", cable):
                ip("-n", name, "link", "set", device, "up")

    def start_head(self) -> None:
        """Start the head on the first machine, which runs no stages itself."""
        head = ["--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={self.scratch}"]
        self._ray(0, *head)

    def join(self, machine: int, cpus: int = 2) -> None:
        """Let a machine take stages, as many at a time as it has CPUs."""
        self._ray(machine, f"--address={ADDRESSES[0]}:{PORT}", f"--num-cpus={cpus}")

    def _ray(self, machine: int, *options: str) -> None:
        more = [f"--node-ip-address={ADDRESSES[machine]}", "--object-store-memory=80000000", "--disable-usage-stats"]
        command = [str(Path(sys.executable).with_name("ray")), "start", *options, *more]
        before = set(self.processes(machine))
        for _ in range(STARTS):
            if self.begin(machine, command).wait(LIMIT) == 0:
                return
            for left in set(self.processes(machine)) - before:
                left.kill()
        raise AssertionError(f"{command} failed {STARTS} times")

    def begin(self, machine: int, command: Sequence[str], **how: object) -> subprocess.Popen[str]:
        """Start a command on a machine, whose processes find each other over its cable."""
        own = {**self.environment, "GLOO_SOCKET_IFNAME": self.cables[machine]}
        return subprocess.Popen([*self.inside(machine), *command], env=own, text=True, **how)  # type: ignore[call-overload,no-any-return]

    def inside(self, machine: int) -> Sequence[str]:
        """Return the beginning of a command that runs on a machine."""
        return ["ip", "netns", "exec", self.names[machine]]

    def processes(self, machine: int) -> list[psutil.Process]:
        """Return what runs on a machine."""
        return [psutil.Process(int(found)) for found in ip("netns", "pids", self.names[machine]).split()]

    def kill(self, machine: int) -> int:
        """Kill all that runs on a machine at once, and count it."""
        found = ip("netns", "pids", self.names[machine]).split()
        for process in found:
            subprocess.run(["kill", "-KILL", process], check=False, capture_output=True)
        return len(found)

    def set_link(self, state: str) -> None:
        """Have the cable between the machines "up" or "down"."""
        ip("-n", self.names[1], "link", "set", self.cables[1], state)

    def close(self) -> None:
        """Leave nothing behind."""
        for machine, name in enumerate(self.names):
            wait_until(lambda machine=machine: self.kill(machine) == 0)  # type: ignore[misc]
            ip("netns", "del", name)
        shutil.rmtree(self.scratch, ignore_errors=True)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def contents(output_dir: Path) -> dict[str, str]:
    """The digest of the files of each artifact, by its name."""
    found = output_dir.glob("artifacts/*/*/artifact.json")
    return {str(path.parent.relative_to(output_dir)): json.loads(path.read_text())["content"] for path in found}
