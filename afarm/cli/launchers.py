"""The option --launcher, and the screen of stages that run side by side, here or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from afarm.cli.console import err, out
from afarm.cli.progress import LOG_SECONDS, count_items, make_bars
from afarm.cli.shared_options import option
from afarm.cli.stage_lines import in_short, stage_line
from afarm.cli.tables import print_table
from afarm.storage.text import markup, one_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from afarm.experiment.launching.launcher import Launcher, Needs, Outcome, StageTask, TaskEvent
    from afarm.experiment.tasks import Launched, Systems
    from afarm.storage.artifacts import Store

LauncherName = Annotated[
    str,
    option(
        "--launcher NAME",
        "Where stages run: local, local:N for N at once, or a plugin's, such as ray:HOST:PORT.",
        "launchers",
    ),
]
"""The option --launcher; `LOCAL` by default."""


def build_launcher(spec: str, systems: Systems) -> Launcher | None:
    """Build the launcher; None for "local"."""
    from afarm.experiment.tasks import open_launcher

    return open_launcher(spec, systems[0][1])


def launch_stages(spec: str, systems: Systems, account: str) -> Launched | None:
    """Have the launcher `spec` make what is missing, on one screen; None for "local"."""
    from afarm.experiment.tasks import launch, require_same_code, task_graph

    if (launcher := build_launcher(spec, systems)) is None:
        return None
    graph = task_graph(systems, account, launcher.processes)
    with make_bars(err()) as bars:
        if graph.tasks:
            require_same_code(launcher, systems[0][1], systems[0][0], account)
            most = f"at most {graph.most_at_once(launcher, graph.tasks)} at once"
            err().print(f"{_stages(len(graph.tasks))} on {launcher.describe()}, {most}")
        return launch(launcher, graph, systems, TaskLines(systems[0][1].store, bars, len(graph.tasks)))


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
    figures = ("number", "at once", "processes", "CPUs each", "GPUs each, if any")
    rows = [
        [
            kind["kind"],
            *(str(kind[name]) for name in ("stages", "at_once")),
            f"{kind['processes']}{', sharded' * kind['sharded']}",
            *(f"{kind[name]:g}" if kind[name] else "" for name in ("cpus", "gpus")),
            "asked" * kind["asks_judges"],
        ]
        for kind in asked["kinds"]
    ]
    most = f"at most {asked['at_once']} at once"
    out().print(f"Asked of {asked['asked_of']}: {_stages(asked['stages'])}, {most}{part}.", markup=False)
    print_table(out(), "", {"stage": False, **dict.fromkeys(figures, True), "judges": False}, rows)
    for problem in asked["problems"]:
        out().print(problem, markup=False)


def _stages(count: int) -> str:
    return f"{count} stage{'s' if count != 1 else ''}"


class TaskLines:
    """Shows the news of tasks: a line for each that ended, and in `bars` a row for each at work."""

    def __init__(self, store: Store, bars: Progress, total: int):
        self.store = store
        self._bars = bars
        self._all = self._add_row("all stages", total)
        self._rows: dict[str, TaskID] = {}
        self._logged: dict[str, float] = {}

    def _add_row(self, name: str, total: int | None = None, text: str = "") -> TaskID:
        count = count_items if total else lambda task: ""
        return self._bars.add_task(
            name, total=total, wait=0.0, count=count, rest=lambda task: task.fields["text"], text=text
        )

    def __call__(self, event: TaskEvent) -> None:
        name = markup(one_line(event.task, 100))
        ended = event.news == "lost" or event.outcome is not None
        if event.task in self._rows and (ended or event.news == "started"):
            self._bars.remove_task(self._rows.pop(event.task))
        if event.news == "started":
            self._logged[event.task] = monotonic()
            self._rows[event.task] = self._add_row(one_line(event.task, 100), text=one_line(f"on {event.place}"))
            if not err().is_terminal:
                err().print(f"… {name}  on {markup(event.place)}")
        elif event.news == "progress":
            if event.task in self._rows:
                self._bars.update(self._rows[event.task], text=one_line(event.text))
            if not err().is_terminal and monotonic() - self._logged.get(event.task, 0.0) > LOG_SECONDS:
                self._logged[event.task] = monotonic()
                err().print(f"… {name}: {markup(one_line(event.text, 300))}")
        elif event.news == "noted":
            err().print(f"… {name}: {markup(one_line(event.text, 500))}")
        elif event.news == "lost":
            err().print(f"[yellow]↻[/] {name}: lost ({markup(one_line(event.text, 300))}), run again")
        elif event.outcome is not None:
            self._bars.advance(self._all)
            self._show_end(event.outcome, event.task, f"  on {markup(event.place)}" if event.place else "")

    def _show_end(self, outcome: Outcome, task: str, place: str) -> None:
        name = markup(one_line(task, 100))
        if outcome.is_done:
            kind, _, key = outcome.artifact.partition("/")
            artifact = self.store.find(kind, key)
            rest = in_short(artifact.meta["summary"]) if artifact and not outcome.reused else ""
            took = None if outcome.reused else outcome.seconds
            err().print(f"{stage_line(task, took, key[:8])}{f'  {markup(rest)}' if rest else ''}{place}")
        elif outcome.error_type:
            err().print(f"[red]✗[/] {name}: {markup(outcome.error)}{place}")
        else:
            err().print(f"[dim]– {name}: not begun, since {markup(outcome.error)}[/]")
