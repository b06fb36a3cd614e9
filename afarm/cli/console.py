"""The two consoles: results go to stdout, everything else to stderr; progress bars."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds after which a loop deserves a progress bar."""


@cache
def out() -> Console:
    """The console on stdout. Made when something is printed, as rich takes a tenth of the start to import."""
    from rich.console import Console

    return Console()


@cache
def err() -> Console:
    """The console on stderr."""
    from rich.console import Console

    return Console(stderr=True)


class ProgressBars:
    """Implements `afarm.Progress` with one bar per loop, shown after a second, gone when the loop ends.

    Between `begin` and `end` a line with the stage's name and its time stands above them, so that what is no loop
    (loading a model, say) is seen to go on as well.
    """

    def __init__(self, console: Console):
        self.console = console
        self.note: Callable[[], str] = str
        """What to say at the end of a bar: the spend so far, say."""
        self._bars: Any = None
        self._open = 0
        self._stage: Any = None

    def begin(self, label: str) -> None:
        """Show that the stage `label` is at work. Where the console is no terminal, one line says so."""
        if self.console.is_terminal:
            self._stage = self._start(label, None)
        else:
            self.console.print(f"… {label}", highlight=False, markup=False)

    def tell(self, text: str) -> None:
        """Say what is worth knowing of the stage at work, whatever the console."""
        self.console.print(f"… {text}", highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        """Take the stage's line away."""
        if self._stage is not None:
            self._stop(self._stage)
            self._stage = None

    def __call__(self, items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
        if not self.console.is_terminal:
            yield from items
            return
        if total is None and isinstance(items, Sized):
            total = len(items)
        started, task, done = time.monotonic(), None, 0
        try:
            for item in items:
                if task is None and time.monotonic() - started > PATIENCE:
                    task = self._start(description, total)
                if task is not None:
                    rate = done / (time.monotonic() - started)
                    self._bars.update(task, completed=done, rate=f"{rate:,.1f}/s", note=self.note())
                yield item
                done += 1
        finally:
            if task is not None:
                self._stop(task)

    def _start(self, description: str, total: int | None) -> Any:
        if self._bars is None:
            from rich import progress as rich

            self._bars = rich.Progress(
                rich.SpinnerColumn(),
                rich.TextColumn("{task.description}"),
                rich.BarColumn(),
                rich.MofNCompleteColumn(),
                rich.TextColumn("{task.fields[rate]}"),
                rich.TimeElapsedColumn(),
                rich.TimeRemainingColumn(),
                rich.TextColumn("{task.fields[note]}"),
                console=self.console,
                transient=True,
            )
        if self._open == 0:
            self._bars.start()
        self._open += 1
        return self._bars.add_task(description, total=total, rate="", note="")

    def _stop(self, task: Any) -> None:
        self._bars.remove_task(task)
        self._open -= 1
        if self._open == 0:
            self._bars.stop()
