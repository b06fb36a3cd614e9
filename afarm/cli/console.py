"""The two consoles: results go to stdout, everything else to stderr."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

from afarm.storage.disk import json_text
from afarm.storage.text import visible, without_passwords

if TYPE_CHECKING:
    from rich.console import Console


@cache
def out() -> Console:
    """The console on stdout. Made when something is printed, as rich takes a tenth of the start to import."""
    return console_on()


@cache
def err() -> Console:
    """The console on stderr."""
    return console_on(stderr=True)


def console_on(**options: Any) -> Console:
    """A console that wraps no lines, and prints text that is not valid markup as plain text."""
    from rich.console import Console
    from rich.errors import MarkupError
    from rich.text import Text

    class NamesAreText(Console):
        def print(self, *objects: Any, **how: Any) -> None:
            if all(isinstance(thing, str) for thing in objects):
                how.setdefault("soft_wrap", True)
            super().print(*objects, **how)

        def render_str(self, text: str, **how: Any) -> Text:
            try:
                return super().render_str(visible(text), **how)
            except MarkupError:
                return super().render_str(visible(text), **(how | {"markup": False}))

    return NamesAreText(emoji=False, highlight=False, **options)


_document: TextIO | None = None
"""The process's stdout while `document_alone` keeps it for the document; else None."""


@contextmanager
def document_alone(wanted: bool) -> Iterator[None]:
    """Keep stdout for `write_document` if `wanted`; what else is printed there goes to stderr."""
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


def command_line() -> str:
    """The command as it was given, to be given again, without passwords."""
    return without_passwords(shlex.join(["afarm", *sys.argv[1:]]))


def print_json(value: object) -> None:
    """Print the result of a command with `--json`: one JSON document on stdout."""
    text = json_text(value)
    try:
        text.encode((_document or sys.stdout).encoding or "utf-8")
    except UnicodeEncodeError:  # half a surrogate pair, or a terminal without Unicode
        text = json_text(value, ensure_ascii=True)
    write_document(text + "\n")


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the first Ctrl-C; a second ends the process at once, whatever it does.

    A library cannot swallow either: the system acts on the second, and any error after the first is the interrupt.
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
