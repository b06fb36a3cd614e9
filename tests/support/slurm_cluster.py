"""A Slurm cluster for tests, out of Debian's packages: a node on each of two machines, with munge of its own."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from two_machines import ADDRESSES, TwoMachines
from waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")

CONF = """\
ClusterName=tests
SlurmctldHost={host}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
JobRequeue=1
MessageTimeout=100
SlurmdTimeout=300
"""

NODE = "NodeName=m{number} NodeAddr={address} NodeHostname={host} CPUs=1 State=UNKNOWN Port={port}\n"


def why_not() -> str:
    """Say what is missing for a cluster; empty if nothing is."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    return f"needs {missing[0]}: apt-get install slurmctld slurmd slurm-client munge" if missing else ""


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])


class SlurmCluster:
    """The partition `all` of two nodes with a processor each; the first machine has the server. Its daemons end with
    the machines."""

    def __init__(self, machines: TwoMachines):
        self.machines, self.folder = machines, Path(machines.scratch)
        machines.environment |= {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}
        (self.folder / "state").mkdir()
        host, nodes = platform.node(), ""
        for number, address in enumerate(ADDRESSES, start=1):
            (self.folder / f"spool-m{number}").mkdir()
            nodes += NODE.format(number=number, address=address, host=host, port=17000 + number)
        written = CONF.format(host=host, address=ADDRESSES[0], folder=self.folder) + nodes
        (self.folder / "slurm.conf").write_text(f"{written}PartitionName=all Nodes=m1,m2 Default=YES State=UP\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self._authenticate()
        self._begin(0, "slurmctld", "-D")
        for machine in (0, 1):
            self._begin(machine, "slurmd", "-D", "-N", f"m{machine + 1}")
        wait_until(lambda: self.asked("sinfo", "--noheader", "--Node", "--format=%t") == ["idle", "idle"])

    def _authenticate(self) -> None:
        (key := self.folder / "munge.key").write_bytes(os.urandom(1024))
        key.chmod(0o600)
        places = {"key-file": key, **{f"{name}-file": self.folder / f"munge.{name}" for name in ("log", "pid", "seed")}}
        options = [f"--{name}={path}" for name, path in {**places, "socket": self.folder / "munge.socket"}.items()]
        self._begin(0, "munged", "--foreground", "--force", *options)
        wait_until((self.folder / "munge.socket").exists)

    def _begin(self, machine: int, *command: str) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.machines.begin(machine, command, **quiet)

    def asked(self, *command: str) -> list[str]:
        """Return the words that a command of Slurm's answers with."""
        asked = self.machines.begin(0, command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return asked.communicate()[0].split()
