"""The option --launcher, and the screen of stages that run side by side, here or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from afarm.cli.completion import complete_launchers
from afarm.cli.console import err, out
from afarm.cli.progress import LOG_SECONDS
from afarm.cli.shared_options import option
from afarm.cli.stage_lines import in_short, stage_line
from afarm.cli.tables import print_table
from afarm.storage.text import markup, one_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from afarm.experiment.launching.launcher import Launcher, Needs, StageTask, TaskEvent
    from afarm.experiment.tasks import Launched, Systems
    from afarm.storage.artifacts import Store

LauncherName = Annotated[
    str,
    option(
        "--launcher NAME",
        "Where stages run: local, local:N for N at once, or a plugin's, such as ray:HOST:PORT.",
        complete_launchers,
    ),
]
"""The option --launcher; `LOCAL` by default."""


def build_launcher(spec: str, systems: Systems) -> Launcher | None:
    """Build the launcher; None for "local"."""
    from afarm.experiment.tasks import open_launcher

    return open_launcher(spec, systems[0][1])


def launch_stages(spec: str, systems: Systems, account: str) -> Launched | None:
    """Have the launcher `spec` make what is missing, on one screen; None for "local"."""
    from afarm.experiment.cluster_check import require_same_code
    from afarm.experiment.tasks import launch, task_graph

    if (launcher := build_launcher(spec, systems)) is None:
        return None
    graph = task_graph(systems, account, launcher.processes)
    with _bars(len(graph.tasks)) if graph.tasks and err().is_terminal else nullcontext() as bars:
        if graph.tasks:
            require_same_code(launcher, systems[0][1], systems[0][0], account)
            most = f"at most {graph.most_at_once(launcher, graph.tasks)} at once"
            err().print(f"{_stages(len(graph.tasks))} on {launcher.describe()}, {most}")
        return launch(launcher, graph, systems, TaskLines(systems[0][1].store, bars))


def preview_launch(spec: str, systems: Systems, account: str, of: int | None = None) -> dict[str, Any] | None:
    """Read what the launcher `spec` would be asked for, as a value of JSON; None for "local".

    It is for `systems`, the first `of` so many; for all without a number.
    """
    from afarm.experiment.tasks import task_graph

    if (launcher := build_launcher(spec, systems)) is None:
        return None
    graph = task_graph(systems, account, launcher.processes)
    by_kind: dict[tuple[str, Needs], list[StageTask]] = {}
    for task in graph.tasks:
        by_kind.setdefault((task.kind, launcher.requested_resources(task.needs)), []).append(task)
    kinds = [
        {
            "kind": kind,
            "stages": len(tasks),
            "at_once": graph.most_at_once(launcher, tasks),
            "processes": needs.processes,
            "sharded": launcher.sharded and needs.processes > 1,
            "cpus": needs.cpus,
            "gpus": needs.gpus,
            "asks_judges": needs.asks,
        }
        for (kind, needs), tasks in by_kind.items()
    ]
    return {
        "asked_of": launcher.describe(),
        "runs": len(systems),
        "of_runs": of or len(systems),
        "stages": len(graph.tasks),
        "at_once": graph.most_at_once(launcher, graph.tasks),
        "kinds": kinds,
        "problems": list(launcher.problems(graph.tasks)),
    }


def show_launch(asked: Mapping[str, Any]) -> None:
    """Print what `preview_launch` has read: a row per kind of stage."""
    if not asked["stages"]:
        out().print(f"Nothing would be asked of {asked['asked_of']}: all is there.", markup=False)
        return
    part = f", for {asked['runs']} of {asked['of_runs']:,} runs" if asked["runs"] < asked["of_runs"] else ""
    columns = {"stage": False, "number": True, "at once": True, "processes": True, "CPUs each": True}
    columns |= {"GPUs each, if any": True, "judges": False}
    rows = [
        [
            kind["kind"],
            *(f"{kind[name]}" for name in ("stages", "at_once")),
            f"{kind['processes']}{', sharded' if kind['sharded'] else ''}",
            *(f"{kind[name]:g}" if kind[name] else "" for name in ("cpus", "gpus")),
            "asked" if kind["asks_judges"] else "",
        ]
        for kind in asked["kinds"]
    ]
    most = f"at most {asked['at_once']} at once"
    out().print(f"Asked of {asked['asked_of']}: {_stages(asked['stages'])}, {most}{part}.", markup=False)
    print_table(out(), "", columns, rows)
    for problem in asked["problems"]:
        out().print(problem, markup=False)


def _stages(count: int) -> str:
    return f"{count} stage{'s' if count != 1 else ''}"


class TaskLines:
    """Shows the news of tasks: a line for each that ended and, if there are `bars`, one for each at work."""

    def __init__(self, store: Store, bars: Progress | None):
        self.store = store
        self.ended = 0
        self._bars = bars
        self._rows: dict[str, TaskID] = {}
        self._logged: dict[str, float] = {}

    def __call__(self, event: TaskEvent) -> None:
        name = markup(one_line(event.task, 100))
        ended = event.news == "lost" or event.outcome is not None
        if self._bars and event.task in self._rows and (ended or event.news == "started"):
            self._bars.remove_task(self._rows.pop(event.task))
        if event.news == "started":
            self._logged[event.task] = monotonic()
            if self._bars:
                self._rows[event.task] = self._bars.add_task(name, total=None, text=f"on {event.place}")
            else:
                err().print(f"… {name}  on {markup(event.place)}")
        elif event.news == "progress":
            self._progress(event, name)
        elif event.news == "noted":
            err().print(f"… {name}: {markup(one_line(event.text, 500))}")
        elif event.news == "lost":
            err().print(f"[yellow]↻[/] {name}: lost ({markup(one_line(event.text, 300))}), run again")
        elif event.outcome is not None:
            self._end(event, name)

    def _progress(self, event: TaskEvent, name: str) -> None:
        if self._bars and event.task in self._rows:
            self._bars.update(self._rows[event.task], text=one_line(event.text))
        elif monotonic() - self._logged.get(event.task, 0.0) > LOG_SECONDS:
            self._logged[event.task] = monotonic()
            err().print(f"… {name}: {markup(one_line(event.text, 300))}")

    def _end(self, event: TaskEvent, name: str) -> None:
        assert event.outcome is not None
        self.ended += 1
        if self._bars:
            self._bars.update(self._bars.task_ids[0], completed=self.ended)
        outcome, place = event.outcome, f"  on {markup(event.place)}" if event.place else ""
        if outcome.is_done:
            kind, _, key = outcome.artifact.partition("/")
            artifact = self.store.find(kind, key)
            rest = in_short(artifact.meta["summary"]) if artifact and not outcome.reused else ""
            took = None if outcome.reused else outcome.seconds
            err().print(f"{stage_line(event.task, took, key[:8])}{f'  {markup(rest)}' if rest else ''}{place}")
        elif outcome.error_type:
            err().print(f"[red]✗[/] {name}: {markup(outcome.error)}{place}")
        else:
            err().print(f"[dim]– {name}: not begun, since {markup(outcome.error)}[/]")


def _bars(total: int) -> Progress:
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
