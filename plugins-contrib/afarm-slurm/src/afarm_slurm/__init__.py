"""Stages as job arrays of a Slurm cluster: the launcher `slurm`."""

from __future__ import annotations

from typing import Literal

from afarm import Config, Register, hookimpl, setting


class SlurmConfig(Config):
    """Requests of each stage to Slurm. None of them changes a result."""

    cpus: int = setting(1, "CPUs of a stage's job", ge=1, changes_result=False)
    gpus: int = setting(0, "GPUs of the job of a stage that can use one", ge=0, changes_result=False)
    minutes: int = setting(
        720, "time limit of a job; one that reaches it is queued again, and goes on", ge=1, changes_result=False
    )
    options: dict[str, str] = setting({}, "more options of sbatch, such as {account: lab}", changes_result=False)
    setup: list[str] = setting([], "lines of shell before the job's command", changes_result=False)
    cluster: Literal["slurm", "local"] = setting(
        "slurm", "slurm, or local: jobs as processes of this machine", changes_result=False
    )


@hookimpl
def register_launchers(register: Register) -> None:
    register(
        "slurm",
        "afarm_slurm.launcher:SlurmLauncher",
        config=SlurmConfig,
        spec="PARTITION",
        summary="stages as job arrays of a Slurm cluster",
    )
