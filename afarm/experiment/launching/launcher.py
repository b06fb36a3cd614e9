"""Tasks, and the interface of what runs them: in worker processes, on a cluster, through a queue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a task: `processes` that start together, `cpus` and `gpus` for each.

    `gpus` are those it can use: a machine that has none makes the stage on its CPU, unless the recipe names a device.
    `asks` is True if judges are asked, for which a machine needs their keys and the network. `node` is the one of the
    launcher's nodes that it must run on; empty for any.
    """

    processes: int = 1
    cpus: float = 1
    gpus: float = 0
    asks: bool = False
    node: str = ""


@dataclass(frozen=True, slots=True)
class FarmSpec:
    """The configuration of a run as values: any machine that sees `output_dir` opens it.

    Args:
        recipe: The recipe's name.
        run: The fields of the run, as JSON values.
        sections: The settings of components, by name.
        output_dir: The absolute path of the store, shared by all machines.
        directory: The directory that relative paths in settings begin from.
        system: The method, or the judge LLM, that is evaluated.
        account: The account in the ledger, and so the budget, that judges are paid from.
        versions: Python's and the libraries' that the command was given with.
        ledger: The file or URL of the ledger, which may hold a password; empty for the file in `output_dir`.
        store: The URL or directory where artifacts are shared; empty for none.
        plugin_files: The absolute paths of plugins of one file.
        disabled_plugins: The names of plugins that are left out.
    """

    recipe: str
    run: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]]
    output_dir: str
    directory: str
    system: str
    account: str
    versions: Mapping[str, str] = field(default_factory=dict)
    ledger: str = field(default="", repr=False)
    store: str = ""
    plugin_files: tuple[str, ...] = ()
    disabled_plugins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageTask:
    """One stage of one run, as a value that can be pickled: any process makes it with `execute`.

    Args:
        id: The name among all tasks of a command, such as "train ppo, seed 42".
        stage: The stage's label.
        kind: The kind of stage.
        after: The ids of the tasks that must be done before.
        needs: What it needs of a machine.
        farm: What opens its farm.
        source: Digests of the code and settings that its result depends on, by which a machine sees if it has others.
        behind: The ids of those that must have ended before, well or not: they ask judges about some of the same, and
            their answers are found rather than bought again.
    """

    id: str
    stage: str
    kind: str
    after: tuple[str, ...]
    needs: Needs
    farm: FarmSpec
    source: Mapping[str, str] = field(default_factory=dict)
    behind: tuple[str, ...] = ()

    def may_begin(self, ended: Container[str]) -> bool:
        """Tell if all that it waits for has ended."""
        return all(name in ended for name in (*self.after, *self.behind))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a task: the `artifact` that it made or found, or the `error` that kept it from that.

    Args:
        task: The task's id.
        artifact: Such as "train/0f3c…"; empty if there is none.
        reused: True if it was there.
        seconds: From its start to its end.
        place: The machine and process that made it.
        error: The error's message. Of a task that was never begun, it names the one whose failure stopped it.
        error_type: The name of the error's class in `afarm`; empty if the task was never begun.
        spend: What its process bought of judges and reused, as `Spend.totals`.
    """

    task: str
    artifact: str = ""
    reused: bool = False
    seconds: float = 0.0
    place: str = ""
    error: str = ""
    error_type: str = ""
    spend: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """News of a task: `started` at a `place`, `lost` with its worker, or `ended` with an `outcome`.

    `text` says more: a message that is worth keeping (`noted`), or how far a loop is (`progress`).
    """

    task: str
    news: Literal["started", "progress", "noted", "lost", "ended"]
    place: str = ""
    text: str = ""
    outcome: Outcome | None = None


Tell = Callable[[TaskEvent], None]
"""Called with the news of tasks as they come."""

Execute = Callable[[StageTask, Tell], Outcome]
"""Makes a task's artifact in this process. Can be pickled. Returns errors as outcomes instead of raising them."""


class Launcher(ABC):
    """Runs tasks somewhere. Built as `Class(config, spec, context)`.

    `spec` is the text after the name's colon, the context a `BuildContext`. A launcher that begins tasks itself keeps
    them in a `Schedule`. An artifact is whole or absent and its maker holds a lock, so a task may be begun anywhere
    again, even while a worker that was thought lost still makes it.

    `processes` is the number that is wanted of each task that trains: all of them execute the task at once, in an
    environment that says which one each is (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`).
    """

    processes: int = 1

    sharded: bool = False
    """True if each of these processes keeps a shard of what they train."""

    at_once: int | None = None
    """The most tasks that it runs at once; None if it does not know."""

    @abstractmethod
    def run(self, tasks: Sequence[StageTask], execute: Execute, tell: Tell) -> Mapping[str, Outcome]:
        """Run each of `tasks` once those it comes `after` are done, and return all outcomes by id.

        A task comes later in the sequence than those it waits for. One that fails keeps its error and stops only what
        comes after it. A task whose worker is lost is reported and begun again, up to three times in all. What
        `execute` reports is passed on to `tell`, and so is each outcome. An interrupt ends all that was started.
        """

    def describe(self) -> str:
        """Say in a few words what it runs tasks on."""
        return type(self).__name__

    def requested_resources(self, needs: Needs) -> Needs:
        """Return the resources to request from the cluster for a task with these `needs`; by default the same."""
        return needs

    def nodes(self) -> Sequence[str]:
        """Name the nodes that tasks can run on, for `Needs.node`; by default one without a name."""
        return [""]

    def nodes_at_once(self) -> Sequence[str]:
        """Name the nodes beside this machine that answer without a queue; none by default.

        Each is asked for its code before the first stage.
        """
        return []

    def problems(self, tasks: Sequence[StageTask]) -> list[str]:
        """List why it cannot run `tasks`, before any runs; by default, that some need several processes."""
        several = [task.id for task in tasks if task.needs.processes > 1]
        return [f"{several[0]} needs several processes that start together, which it cannot give"] if several else []
