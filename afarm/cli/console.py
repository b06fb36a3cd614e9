"""The two consoles: results go to stdout, everything else to stderr; progress bars."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO, TypeVar
from weakref import WeakSet

from afarm.storage.json_text import json_text
from afarm.storage.text import one_line, visible

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds after which a loop deserves a progress bar."""
LOG_SECONDS = 30.0
"""Seconds between two lines about a loop if the console is no terminal."""


@cache
def out() -> Console:
    """The console on stdout. Made when something is printed, as rich takes a tenth of the start to import."""
    return console_on()


@cache
def err() -> Console:
    """The console on stderr."""
    return console_on(stderr=True)


def console_on(**options: Any) -> Console:
    """A console that names from files can neither break nor command: what is no markup is text."""
    from rich.console import Console
    from rich.errors import MarkupError
    from rich.text import Text

    class NamesAreText(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            try:
                return super().render_str(visible(text), **how)
            except MarkupError:
                return super().render_str(visible(text), **(how | {"markup": False}))

    return NamesAreText(emoji=False, **options)


_document: TextIO | None = None
"""The process's stdout while `document_alone` keeps it for the document; else None."""


@contextmanager
def document_alone(wanted: bool) -> Iterator[None]:
    """Keep stdout for `write_document` if `wanted`.

    What plugins, libraries and processes that they start print there goes to stderr.
    """
    global _document
    if not wanted:
        yield
        return
    before = sys.stdout
    before.flush()
    try:
        descriptor = before.fileno()
    except (OSError, ValueError):  # no file of the system's, but a stream in memory
        _document, kept = before, None
    else:
        kept = os.dup(descriptor)
        _document = os.fdopen(kept, "w", encoding=before.encoding, errors=before.errors, closefd=False)
        os.dup2(sys.stderr.fileno(), descriptor)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout, document, _document = before, _document, None
        if kept is not None:
            with suppress(OSError):  # what its reader did not take
                document.close()
            before.flush()
            os.dup2(kept, descriptor)
            os.close(kept)


def hand_on_stdout() -> None:
    """Give the process's own stdout back, for the program that it becomes."""
    if _document is not None:
        with suppress(OSError, ValueError):  # a stream in memory
            os.dup2(_document.fileno(), 1)


def write_document(text: str) -> None:
    """Write the document of a command (JSON, CSV …) to stdout, from which `document_alone` keeps all else."""
    stream = _document or sys.stdout
    stream.write(text)
    stream.flush()


def print_json(value: object) -> None:
    """Print the result of a command with `--json`: one JSON document on stdout."""
    text = json_text(value)
    try:
        text.encode((_document or sys.stdout).encoding or "utf-8")
    except UnicodeEncodeError:  # half a surrogate pair, or a terminal without Unicode
        text = json_text(value, ensure_ascii=True)
    write_document(text + "\n")


_SHOWN: WeakSet[ProgressBars] = WeakSet()


def widths_of_words(columns: Sequence[Sequence[str]], most: int, unbroken: Sequence[bool]) -> list[int]:
    """Return widths of columns, at most `most` in all, in which no word is split; none if there are none.

    A column's first text is its heading; of `unbroken` ones the other texts keep to one line. The widest give way
    first.
    """
    from rich.cells import cell_len

    widths, least = [], []
    for (heading, *texts), whole in zip(columns, unbroken, strict=True):
        parts = [*heading.split(), *(texts if whole else (word for text in texts for word in text.split()))]
        widths.append(max(map(cell_len, [heading, *texts])))
        least.append(max(map(cell_len, parts), default=0))
    while sum(widths) > most:
        spare = [place for place, width in enumerate(widths) if width > least[place]]
        if not spare:
            return []
        widths[max(spare, key=widths.__getitem__)] -= 1
    return widths


def take_down_bars() -> None:
    """Take away bars that an interrupt or an error left, so that what follows stands on its own line."""
    for bars in list(_SHOWN):
        bars.close()


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the first Ctrl-C; a second ends the process at once, whatever it does.

    What a library or a long operation makes of the first cannot keep it: the system itself acts on the second, and an
    error that a library makes of it (an import that was cut short, say) is the interrupt again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def once(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), b"\x1b[?25h")  # the cursor, which bars hide
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, once)
    try:
        yield
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is once:
            signal.signal(signal.SIGINT, before)


class ProgressBars:
    """Implements `afarm.Progress` with one bar per loop, shown after a second, gone when the loop ends.

    Between `begin` and `end` a line stands above them with the stage's name, its place among the stages, its time and
    what is left of the whole command, so that what is no loop (loading a model, say) is seen to go on as well.
    """

    def __init__(self, console: Console):
        self.console = console
        self.note: Callable[[], str] = str
        """What to say at the end of a bar: the spend so far, say."""
        self._bars: Any = None
        self._open = 0
        self._stage: Any = None
        self._stage_began = 0.0
        self._loops: dict[Any, float] = {}
        """The share done of each open loop, by its task."""

    @property
    def stage_seconds(self) -> float:
        """Seconds since the stage began."""
        return time.monotonic() - self._stage_began

    @property
    def share(self) -> float:
        """The share done of the longest-running loop; 0 if none is open."""
        return next(iter(self._loops.values()), 0.0)

    def begin(self, label: str, place: str = "", done: float = 0.0, left: Callable[[], str] = str) -> None:
        """Show that the stage `label` is at work. Where the console is no terminal, one line says so.

        `place` says "stage 6 of 9", `done` is the share of the stages before it, `left` what is left of all.
        """
        self._stage_began = time.monotonic()
        if self.console.is_terminal:
            self._stage = self._start(label, 1.0, count=place, left=left, stage=True)
            self._bars.update(self._stage, completed=done)
        else:
            place = f" ({place})" if place else ""
            self.console.print(f"… {one_line(label)}{place}", highlight=False, markup=False)

    def tell(self, text: str) -> None:
        """Say what is worth knowing of the stage at work, whatever the console."""
        self.console.print(f"… {one_line(text, 500)}", highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        """Take the stage's line away."""
        if self._stage is not None:
            self._stop(self._stage)
            self._stage = None

    def close(self) -> None:
        """Take everything away, whatever is still at work."""
        if self._bars is not None:
            self._bars.stop()
            self._bars, self._stage, self._open = None, None, 0
            self._loops.clear()

    def __call__(self, items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
        if total is None and isinstance(items, Sized):
            total = len(items)
        if not self.console.is_terminal:
            yield from self._logged(items, description, total)
            return
        started, done = time.monotonic(), 0
        # Beside a stage's line a bar is there at once, to show after a second even if the first item takes minutes.
        task = self._start(description, total) if self._open else None
        try:
            for item in items:
                if task is None and time.monotonic() - started > PATIENCE:
                    task = self._start(description, total)
                if task is not None and self._bars is not None:
                    self._show(task, done, total, done / max(time.monotonic() - started, 1e-9))
                yield item
                done += 1
        finally:
            if task is not None:
                self._stop(task)

    def _logged(self, items: Iterable[T], description: str, total: int | None) -> Iterator[T]:
        """Tell of the loop from time to time, also while no item comes."""
        done, ended, began = 0, threading.Event(), time.monotonic()

        def tell() -> None:
            while not ended.wait(LOG_SECONDS):
                count = f"{done:,} of {total:,}" if total is not None else f"{done:,}"
                rate = f"{done / (time.monotonic() - began):,.2g}/s"
                self.tell(", ".join(filter(None, [f"{description}: {count}", rate, self.note()])))

        threading.Thread(target=tell, name="afarm-log", daemon=True).start()
        try:
            for item in items:
                self._loops[ended] = done / total if total else 0.0
                yield item
                done += 1
        finally:
            ended.set()
            self._loops.pop(ended, None)

    def _show(self, task: Any, done: int, total: int | None, rate: float) -> None:
        self._loops[task] = done / total if total else 0.0
        left = f"{_clock((total - done) / rate)} left" if total and done else ""
        count = f"{done}/{total}" if total is not None else f"{done}"
        self._bars.update(task, completed=done, count=count, rate=f"{rate:,.1f}/s" if done else "", left=left)

    def _start(
        self, description: str, total: float | None, count: str = "", left: Any = "", stage: bool = False
    ) -> Any:
        if self._bars is None:
            self._bars = _bars_on(self.console)
            _SHOWN.add(self)
        if self._open == 0:
            self._bars.start()
        self._open += 1
        shown = count or (f"0/{total}" if total is not None else "")
        note = "" if stage else lambda: self.note()
        task = self._bars.add_task(
            one_line(description), total=total, count=shown, rate="", left=left, note=note, stage=stage
        )
        if not stage:
            self._loops[task] = 0.0
        return task

    def _stop(self, task: Any) -> None:
        self._loops.pop(task, None)
        if self._bars is None:  # closed meanwhile
            return
        self._bars.remove_task(task)
        self._open -= 1
        if self._open == 0:
            self._bars.stop()


def _bars_on(console: Console) -> Any:
    """Bars of stages and loops in one table. A loop is left out in its first second."""
    from rich import progress as rich
    from rich.text import Text

    class Live(rich.ProgressColumn):
        """A field's text, or what it says when it is called: also while no item comes."""

        max_refresh = 0.5

        def __init__(self, field: str, style: str = "") -> None:
            super().__init__()
            self.field, self.style = field, style

        def render(self, task: rich.Task) -> Text:
            value = task.fields[self.field]
            return Text(value() if callable(value) else value, style=self.style, no_wrap=True)

    class Bars(rich.Progress):
        def get_renderables(self) -> Iterator[Any]:
            shown = [task for task in self.tasks if task.fields["stage"] or (task.elapsed or 0) > PATIENCE]
            yield self.make_tasks_table(shown)

    return Bars(
        rich.SpinnerColumn(),
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=20),
        rich.TextColumn("{task.fields[count]}", markup=False),
        rich.TextColumn("{task.fields[rate]}", markup=False),
        rich.TimeElapsedColumn(),
        Live("left", "progress.remaining"),
        Live("note"),
        console=console,
        transient=True,
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
