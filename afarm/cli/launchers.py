"""The option --launcher, and the screen of stages that run side by side, here or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli.completion import complete_launchers
from afarm.cli.console import err, out
from afarm.cli.progress import LOG_SECONDS
from afarm.cli.stage_lines import in_short, make_room, stage_line
from afarm.storage.text import markup, one_line

if TYPE_CHECKING:
    from afarm.experiment.launching.launcher import Launcher, TaskEvent
    from afarm.experiment.tasks import Demand, Launched, Systems, TaskGraph
    from afarm.storage.artifacts import Store

LauncherName = Annotated[
    str,
    typer.Option(
        "--launcher",
        autocompletion=complete_launchers,
        help="Where stages run: local, local:N for N at once, or a plugin's, such as ray:HOST:PORT.",
        metavar="NAME",
    ),
]
"""The option --launcher; `LOCAL` by default."""


def launch_stages(spec: str, systems: Systems, account: str) -> Launched | None:
    """Have the launcher `spec` make what is missing, on one screen; None for "local"."""
    from afarm.experiment.cluster_check import require_same_code
    from afarm.experiment.tasks import launch, task_graph

    if (launcher := build_launcher(spec, systems)) is None:
        return None
    graph = task_graph(systems, account, launcher.processes)
    with ExitStack() as screen:
        lines = screen.enter_context(TaskLines(graph, systems[0][1].store))
        if graph.tasks:
            require_same_code(launcher, systems[0][1], systems[0][0], account)
            lines.say(f"{_stages(len(graph.tasks))} on {launcher.describe()}, {_at_once(launcher, graph)}")
        return launch(launcher, graph, systems, lines)


def build_launcher(spec: str, systems: Systems) -> Launcher | None:
    """Build the launcher; None for "local"."""
    from afarm.experiment.tasks import open_launcher

    return open_launcher(spec, systems[0][1])


@dataclass(frozen=True)
class LaunchPreview:
    """A launcher, and what it would be asked for, beside a dry run.

    It is for the stages of so many `runs`, `of` all that the command makes.
    """

    launcher: Launcher
    graph: TaskGraph
    problems: Sequence[str]
    runs: int
    of: int

    def as_json(self) -> dict[str, object]:
        """Return it as a value of JSON."""
        kinds = [
            {
                "kind": demand.kind,
                "stages": demand.stages,
                "at_once": demand.at_once,
                "processes": demand.needs.processes,
                "sharded": self._is_sharded(demand),
                "cpus": demand.needs.cpus,
                "gpus": demand.needs.gpus,
                "asks_judges": demand.needs.asks,
            }
            for demand in self.graph.demands(self.launcher)
        ]
        return {
            "asked_of": self.launcher.describe(),
            "runs": self.runs,
            "of_runs": self.of,
            "stages": len(self.graph.tasks),
            "at_once": _most_at_once(self.launcher, self.graph),
            "kinds": kinds,
            "problems": list(self.problems),
        }

    def show(self) -> None:
        """Print it: a row per kind of stage."""
        from rich import box
        from rich.table import Table

        if not self.graph.tasks:
            self._print(f"Nothing would be asked of {self.launcher.describe()}: all is there.")
            return
        asked = f"{_stages(len(self.graph.tasks))}, {_at_once(self.launcher, self.graph)}"
        part = f", for {self.runs} of {self.of:,} runs" if self.runs < self.of else ""
        self._print(f"Asked of {self.launcher.describe()}: {asked}{part}.")
        table = Table(box=box.SIMPLE)
        for column in ("stage", "number", "at once", "processes", "CPUs each", "GPUs each, if any", "judges"):
            table.add_column(column, justify="left" if column in ("stage", "judges") else "right")
        for demand in self.graph.demands(self.launcher):
            needs, counts = demand.needs, (str(demand.stages), str(demand.at_once))
            processes = f"{needs.processes}{', sharded' if self._is_sharded(demand) else ''}"
            each = tuple(f"{amount:g}" if amount else "" for amount in (needs.cpus, needs.gpus))
            table.add_row(demand.kind, *counts, processes, *each, "asked" if needs.asks else "")
        out().print(table)
        for problem in self.problems:
            self._print(problem)

    def _is_sharded(self, demand: Demand) -> bool:
        return self.launcher.sharded and demand.needs.processes > 1

    def _print(self, text: str) -> None:
        out().print(text, highlight=False, soft_wrap=True, markup=False)


def preview_launch(spec: str, systems: Systems, account: str, of: int | None = None) -> LaunchPreview | None:
    """Read what the launcher `spec` would be asked for; None for "local".

    It is for `systems`, the first `of` so many; for all without a number.
    """
    from afarm.experiment.tasks import task_graph

    if (launcher := build_launcher(spec, systems)) is None:
        return None
    graph = task_graph(systems, account, launcher.processes)
    return LaunchPreview(launcher, graph, launcher.problems(graph.tasks), len(systems), of or len(systems))


def _at_once(launcher: Launcher, graph: TaskGraph) -> str:
    """Say how many stages can be at work together, as far as the launcher and the graph know."""
    return f"at most {_most_at_once(launcher, graph)} at once"


def _most_at_once(launcher: Launcher, graph: TaskGraph) -> int:
    return min(graph.widest, launcher.at_once or graph.widest)


def _stages(count: int) -> str:
    return f"{count} stage{'s' if count != 1 else ''}"


class TaskLines:
    """Shows the news of tasks: a line for each that has ended, and on a terminal one for each at work."""

    def __init__(self, graph: TaskGraph, store: Store):
        self.store = store
        self.kinds = {task.id: task.kind for task in graph.tasks}
        self.total = len(graph.tasks)
        self.ended = 0
        self._rows: dict[str, Any] = {}
        self._logged: dict[str, float] = {}
        self._bars: Any = _bars(self.total) if err().is_terminal and self.total else None
        make_room(self.kinds)

    def __enter__(self) -> TaskLines:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars:
            self._bars.stop()

    def __call__(self, event: TaskEvent) -> None:
        name = markup(one_line(event.task, 100))
        if event.news == "started":
            self._begin(event, name)
        elif event.news == "progress":
            self._progress(event, name)
        elif event.news == "noted":
            self.say(f"… {name}: {markup(one_line(event.text, 500))}")
        elif event.news == "lost":
            self._take_down(event.task)
            self.say(f"[yellow]↻[/] {name}: lost ({markup(one_line(event.text, 300))}), run again")
        elif event.outcome is not None:
            self._end(event)

    def say(self, text: str) -> None:
        """Print a line above those of tasks at work."""
        err().print(text, highlight=False, soft_wrap=True)

    def _begin(self, event: TaskEvent, name: str) -> None:
        self._logged[event.task] = monotonic()
        if self._bars:
            self._take_down(event.task)
            self._rows[event.task] = self._bars.add_task(name, total=None, text=f"on {event.place}")
        else:
            self.say(f"… {name}  on {markup(event.place)}")

    def _progress(self, event: TaskEvent, name: str) -> None:
        if event.task in self._rows:
            self._bars.update(self._rows[event.task], text=one_line(event.text))
        elif monotonic() - self._logged.get(event.task, 0.0) > LOG_SECONDS:
            self._logged[event.task] = monotonic()
            self.say(f"… {name}: {markup(one_line(event.text, 300))}")

    def _end(self, event: TaskEvent) -> None:
        assert event.outcome is not None
        self._take_down(event.task)
        self.ended += 1
        if self._bars:
            self._bars.update(self._bars.task_ids[0], completed=self.ended)
        outcome, place = event.outcome, f"  on {markup(event.place)}" if event.place else ""
        if outcome.is_done:
            kind, _, key = outcome.artifact.partition("/")
            artifact = self.store.find(kind, key)
            rest = in_short(artifact.meta["summary"]) if artifact and not outcome.reused else ""
            took = None if outcome.reused else outcome.seconds
            self.say(f"{stage_line(event.task, took, key[:8])}{f'  {markup(rest)}' if rest else ''}{place}")
        elif outcome.error_type:
            self.say(f"[red]✗[/] {markup(one_line(event.task, 100))}: {markup(outcome.error)}{place}")
        else:
            self.say(f"[dim]– {markup(one_line(event.task, 100))}: not begun, since {markup(outcome.error)}[/]")

    def _take_down(self, task: str) -> None:
        if task in self._rows:
            self._bars.remove_task(self._rows.pop(task))


def _bars(total: int) -> Any:
    """Return rows of tasks at work, the first of them for all."""
    from rich import progress as rich

    bars = rich.Progress(
        rich.SpinnerColumn(),
        rich.TextColumn("{task.description}"),
        rich.TimeElapsedColumn(),
        rich.TextColumn("{task.fields[text]}", markup=False),
        console=err(),
        transient=True,
    )
    bars.add_task("all stages", total=total, text="")
    return bars


def outcomes_as_rows(made: Launched) -> list[dict[str, object]]:
    """Return the outcomes as rows of JSON: where each stage was made, how long it took, what failed."""
    return [
        {
            "task": outcome.task,
            "artifact": outcome.artifact or None,
            "reused": outcome.reused,
            "seconds": round(outcome.seconds, 2),
            "place": outcome.place,
            "error": outcome.error or None,
        }
        for outcome in made.outcomes.values()
    ]
