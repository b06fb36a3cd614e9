"""Progress of stages and loops: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from afarm.cli.pace import LoopPace, extent
from afarm.storage.text import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds after which a loop deserves a progress bar."""

LOG_SECONDS = 15.0
"""Seconds between two lines about a loop if the console is no terminal."""

LONG_SECONDS = 3600.0
"""Seconds that a loop still takes, by its rate after `LOG_SECONDS`, from which a line says so on any console."""

LINES = 200
"""Messages that are kept, the newest."""

_SHOWN: WeakSet[Progress] = WeakSet()


def take_down_bars() -> None:
    """Take away bars that an interrupt or an error left, so that what follows stands on its own line."""
    for bars in list(_SHOWN):
        for task in bars.task_ids:
            bars.remove_task(task)
        if bars.live.is_started:
            bars.stop()


def make_bars(console: Console) -> Progress:
    """Make a table of tasks, shown on terminals only.

    Fields of a task: `wait`, the seconds until it is shown, and `count` and `rest`, functions that return words.
    """
    from rich import progress
    from rich.table import Column
    from rich.text import Text

    class Words(progress.ProgressColumn):
        """Words of a task. Figures are cut after those that give way."""

        max_refresh = 0.5

        def __init__(self, words: Callable[[Task], str], gives_way: bool = False) -> None:
            super().__init__(Column(no_wrap=not gives_way))
            self.words = words

        def render(self, task: Task) -> Text:
            return Text(self.words(task), no_wrap=True, overflow="ellipsis")

    class Bars(progress.Progress):
        def get_renderables(self) -> Iterator[Any]:
            yield self.make_tasks_table([t for t in self.tasks if (t.elapsed or 0.0) >= t.fields["wait"]])

    bars = Bars(
        progress.SpinnerColumn(),
        Words(lambda task: task.description, gives_way=True),
        progress.BarColumn(bar_width=20),
        Words(lambda task: str(task.fields["count"](task))),
        progress.TimeElapsedColumn(Column(no_wrap=True)),
        Words(lambda task: str(task.fields["rest"](task))),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    _SHOWN.add(bars)
    return bars


def count_items(task: Task) -> str:
    """Write how far a task is: "3/10"."""
    return f"{task.completed:,.0f}" + (f"/{task.total:,.0f}" if task.total is not None else "")


def clock(seconds: float) -> str:
    """Write a time as "2:05", or "1:02:05" from an hour on."""
    return str(timedelta(seconds=round(seconds))).removeprefix("0:")


class ProgressBars:
    """Implements `afarm.Progress` with one bar per loop, shown after a second, gone when the loop ends.

    Between `begin` and `end` a line above them shows the stage, so that loading a model, say, is seen to go on as well.
    """

    def __init__(self, console: Console):
        self.console = console
        self._bars = make_bars(console)
        self.note: Callable[[], str] = str
        """What to say at the end of a bar: the spend so far, say."""
        self.lines: deque[tuple[float, str]] = deque(maxlen=LINES)
        """What was to be heard of stages: times in Unix seconds, and texts."""
        self._stage: Any = None
        self.stage_began = 0.0
        self._ended = threading.Event()

    @property
    def _loops(self) -> list[Task]:
        return [task for task in self._bars.tasks if "pace" in task.fields]  # not the stage's

    @property
    def share(self) -> float:
        """The share done, of what the longest-running loop had left when it began; 0 if none is open."""
        return next((task.fields["pace"].share for task in self._loops), 0.0)

    @property
    def loops(self) -> list[dict[str, Any]]:
        """The loops at work: items done, of a total if it is known, and the seconds left once there is a rate."""
        loops = []
        for task in self._loops:
            loop = {"description": task.description, "done": int(task.completed), "total": task.total}
            left = task.fields["pace"].seconds_left
            loops.append(loop if left is None or left < 1 else {**loop, "seconds_left": round(left)})
        return loops

    def begin(self, label: str, place: str = "", done: float = 0.0, left: Callable[[], str] = str) -> None:
        """Show that the stage `label` is at work; on what is no terminal in a line, and another now and then.

        `place` says "stage 6 of 9", `done` is the share of stages that are there, `left` tells the remaining time.
        """
        self.stage_began = time.monotonic()
        if not self.console.is_terminal:
            place = f" ({place})" if place else ""
            self.console.print(f"… {one_line(label)}{place}", highlight=False, markup=False)
        self._stage = self._add(label, total=1.0, wait=0.0, count=lambda _: place, rest=lambda _: left())
        self._bars.update(self._stage, completed=done)
        self._bars.start()

    def notify(self, text: str) -> None:
        """Say what a user should hear of, and keep it."""
        self.lines.append((time.time(), text))
        self.tell(text)

    def tell(self, text: str) -> None:
        """Say what is worth knowing of the stage at work, whatever the console."""
        self.console.print(f"… {one_line(text, 500)}", highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        """Take the stage's line away."""
        if self._stage is not None:
            self._remove(self._stage)
            self._stage = None

    def __call__(self, items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
        before, total = extent(items, total)
        pace, is_long = LoopPace(before, total), False
        shown: dict[str, Any] = {"wait": PATIENCE, "count": count_items, "rest": self._rest, "pace": pace}
        task = self._add(description, total=total, completed=before, **shown)
        began = time.monotonic()
        try:
            for item in items:
                if time.monotonic() - began > PATIENCE:
                    self._bars.start()
                yield item
                pace.finish()
                with suppress(KeyError):  # taken away meanwhile
                    self._bars.update(task, completed=pace.done)
                left = pace.seconds_left or 0.0
                if not is_long and time.monotonic() - began >= LOG_SECONDS and left >= LONG_SECONDS:
                    is_long = True
                    self.tell(f"{description} takes about {left / 3600:.1f} hours at this rate")
        finally:
            self._remove(task)

    def _add(self, description: str, **fields: Any) -> Any:
        task = self._bars.add_task(one_line(description), **fields)
        if len(self._bars.tasks) == 1 and not self.console.is_terminal:
            self._ended = threading.Event()
            threading.Thread(target=self._log, args=(self._ended,), name="afarm-log", daemon=True).start()
        return task

    def _log(self, ended: threading.Event) -> None:
        """Tell of the loop at work, and of long ones within it, from time to time, or else of the stage."""
        while not ended.wait(LOG_SECONDS) and (loops := self._loops or self._bars.tasks):
            for task in [task for task in loops if task is loops[0] or (task.elapsed or 0.0) >= LOG_SECONDS]:
                if "pace" in task.fields:
                    words = [count_items(task).replace("/", " of ", 1), self._rest(task, ", ")]
                else:
                    words = [f"{clock(task.elapsed or 0.0)} so far", task.fields["rest"](task)]
                self.tell(f"{task.description}: {', '.join(filter(None, words))}")

    def _rest(self, task: Task, between: str = " ") -> str:
        """Say how fast a loop goes, how long it still takes or has taken so far, and the note."""
        pace: LoopPace = task.fields["pace"]
        rate, left = pace.rate, pace.seconds_left
        words = [f"{rate:,.1f}/s" if rate >= 1 else f"{rate:.2g}/s" if rate else f"{clock(task.elapsed or 0.0)} so far"]
        words += [f"{clock(left)} left" if left is not None else "", self.note()]
        return between.join(filter(None, words))

    def _remove(self, task: Any) -> None:
        with suppress(KeyError):  # closed meanwhile
            self._bars.remove_task(task)
        if not self._bars.tasks:
            self._ended.set()
            if self._bars.live.is_started:
                self._bars.stop()
