"""The launcher `slurm`: the stages that can begin now are a job array, submitted by submitit.

The command stays, submits what comes next, and reads the news of jobs from files in the shared output directory. A job
that Slurm queues again (its time is over, it was preempted, its node failed) goes on from its stage's checkpoint.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import submitit
from submitit.core.utils import FailedSubmissionError
from submitit.helpers import Checkpointable

from afarm import (
    BuildContext,
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
from afarm_slurm import SlurmConfig

PATIENCE = 0.5
"""Seconds between two looks at jobs."""

LOOKS_AT_QUEUE = 10.0
"""Seconds between two questions to Slurm, which one busy server answers for everybody."""

ABSENCES = 2
"""Looks in a row at which a job without a result must be out of the queue before it counts as lost."""


class SlurmLauncher(Launcher):
    """Runs tasks as jobs of a partition, or of Slurm's default one."""

    def __init__(self, config: SlurmConfig, spec: str, context: BuildContext):
        self.config = config
        self.partition = spec

    def describe(self) -> str:
        if self.config.cluster == "local":
            return "jobs as processes of this machine"
        return f"Slurm's partition {self.partition}" if self.partition else "Slurm's default partition"

    def requested_resources(self, needs: Needs) -> Needs:
        """Return what sbatch is asked for, which reserves nothing on this machine."""
        if self.config.cluster == "local":
            return replace(needs, cpus=0, gpus=0)
        return replace(needs, cpus=self.config.cpus, gpus=self.config.gpus if needs.gpus else 0)

    def nodes(self) -> Sequence[str]:
        """Name the nodes of the partition."""
        if self.config.cluster == "local":
            return [platform.node()]
        chosen = ["--partition", self.partition] if self.partition else []
        return sorted(set(_run_command("sinfo", "--noheader", "--Node", "--responding", "--format=%N", *chosen)))

    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        schedule = Schedule(tasks, tell)
        if not tasks:
            return schedule.outcomes
        folder = Path(tasks[0].farm.output_dir) / ".slurm" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        jobs: list[StageJob] = []
        queue = Queue(self.config.cluster)
        try:
            while not schedule.is_done:
                ready = list(schedule.ready())
                for task in ready:
                    schedule.begin(task)
                jobs += [StageJob(*parts, queue.looks) for parts in self._submit(ready, execute, folder)]
                if jobs:
                    time.sleep(PATIENCE)
                for job in list(jobs):
                    for event in job.news():
                        tell(event)
                    if (end := job.end(queue)) is not None:
                        jobs.remove(job)
                        if isinstance(end, Outcome):
                            schedule.settle(end)
                        else:
                            schedule.lose(job.task, end)
        finally:
            for job in jobs:
                with suppress(subprocess.CalledProcessError, OSError):
                    job.job.cancel(check=False)
        if all(outcome.is_done for outcome in schedule.outcomes.values()):
            shutil.rmtree(folder, ignore_errors=True)  # else its logs may say more
        return schedule.outcomes

    def _submit(
        self, tasks: Sequence[StageTask], execute: Execute, folder: Path
    ) -> Iterator[tuple[StageTask, submitit.Job[Outcome], Path]]:
        """Submit tasks, those of the same needs as one array."""
        arrays: dict[Needs, list[StageTask]] = defaultdict(list)
        for task in tasks:
            arrays[replace(task.needs, asks=False)].append(task)
        for needs, together in arrays.items():
            told = [folder / f"{uuid.uuid4().hex}.news" for _ in together]
            executor = self._executor(needs, folder)
            try:
                jobs = executor.map_array(StageCall(execute), together, told)
            except (FailedSubmissionError, subprocess.CalledProcessError) as error:
                raise PluginError(f"launcher 'slurm': sbatch refused {together[0].id}: {_last_line(error)}") from error
            yield from zip(together, jobs, told, strict=True)

    def _executor(self, needs: Needs, folder: Path) -> submitit.AutoExecutor:
        try:
            executor = submitit.AutoExecutor(folder=folder / "%j", cluster=self.config.cluster)
        except RuntimeError as error:
            raise PluginError(
                f"launcher 'slurm': no Slurm here ({error}). Give the command where sbatch works"
            ) from error
        more = {**self.config.options, **({"nodelist": needs.node} if needs.node else {})}
        executor.update_parameters(
            name="afarm",
            timeout_min=self.config.minutes,
            cpus_per_task=self.config.cpus,
            gpus_per_node=self.config.gpus if needs.gpus else 0,
            slurm_setup=self.config.setup or None,
            slurm_additional_parameters=more,
            **({"slurm_partition": self.partition} if self.partition else {}),
        )
        return executor


class StageCall(Checkpointable):
    """The call of a job, which Slurm may begin again: then the stage goes on from its checkpoint."""

    def __init__(self, execute: Execute):
        self.execute = execute

    def __call__(self, task: StageTask, told: Path) -> Outcome:
        with told.open("a", encoding="utf-8") as handle:

            def tell(event: TaskEvent) -> None:
                handle.write(json.dumps([event.news, event.place, event.text]) + "\n")
                handle.flush()

            return self.execute(task, tell)


@dataclass
class StageJob:
    """A task's job, and the file that it tells its news in.

    `seen` is the number of the last look at the queue that it was in, or before it; `read` is how far news were read.
    """

    task: StageTask
    job: submitit.Job[Outcome]
    told: Path
    seen: int
    read: int = 0
    started: bool = False

    def news(self) -> Iterator[TaskEvent]:
        """Yield what the job has told since the last time; a second start is a job that was queued again."""
        try:
            with self.told.open("rb") as handle:
                handle.seek(self.read)
                told, newline, _ = handle.read().rpartition(b"\n")  # a line may be half written
        except FileNotFoundError:
            return
        self.read += len(told) + len(newline)
        for line in told.splitlines():
            news, place, text = json.loads(line)
            if news == "started":
                if self.started:
                    yield TaskEvent(self.task.id, "lost", text="Slurm has queued its job again")
                self.started = True
            yield TaskEvent(self.task.id, news, place, text)

    def end(self, queue: Queue) -> Outcome | str | None:
        """Return the outcome once there is one, or how the job was lost; None if it is waiting or at work."""
        if not self.job.paths.result_pickle.exists():
            return f"job {self.job.job_id} ended without a result" if queue.has_lost(self) else None
        try:
            return self.job.result()
        except Exception as error:  # submitit raises what the job has raised, and errors of its own
            return Outcome(self.task.id, error=f"job {self.job.job_id}: {_last_line(error)}", error_type="PluginError")


class Queue:
    """The jobs that Slurm still has, asked for now and then; jobs of this machine are asked themselves.

    Accounting (sacct) may be off, so nothing is asked of it.
    """

    def __init__(self, cluster: str):
        self.cluster = cluster
        self.looks = 0
        self._jobs: set[str] = set()
        self._at = time.monotonic()

    def has_lost(self, job: StageJob) -> bool:
        """Tell if a job without a result is neither waiting nor running any more."""
        if self.cluster == "local":
            return bool(job.job.done())
        if time.monotonic() - self._at > LOOKS_AT_QUEUE:
            self._at = time.monotonic()
            with suppress(PluginError):  # a server that is busy does not answer: nothing is known then
                self._jobs = set(_run_command("squeue", "--noheader", "--me", "--array", "--format=%i"))
                self.looks += 1
        if job.job.job_id in self._jobs:
            job.seen = self.looks
        return self.looks - job.seen >= ABSENCES


def _run_command(*command: str) -> list[str]:
    """Return the lines that a command of Slurm's answers with."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except OSError as error:
        raise PluginError(f"launcher 'slurm': {command[0]} cannot be run ({error.strerror}): no Slurm here") from error
    except subprocess.CalledProcessError as error:
        raise PluginError(f"launcher 'slurm': {command[0]} failed: {error.stderr.strip()}") from error
    return done.stdout.split()


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
