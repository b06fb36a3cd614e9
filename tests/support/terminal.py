"""A terminal for tests: a command in a pseudo-terminal, and the screen that its output leaves."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ESCAPE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


def screen(text: str) -> list[str]:
    """Return the lines that a terminal shows after `text`, with ▮ for its cursor."""
    lines: list[str] = [""]
    row = column = at = 0
    while at < len(text):
        if found := ESCAPE.match(text, at):
            at, count, what = found.end(), found[1] or "", found[2]
            if what == "A":
                row = max(0, row - int(count or 1))
            elif what == "K":
                lines[row] = "" if count == "2" else lines[row][:column]
            continue
        character, at = text[at], at + 1
        if character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif character >= " ":
            lines[row] = lines[row].ljust(column)[:column] + character + lines[row][column + 1 :]
            column += 1
    lines[row] = lines[row].ljust(column)[:column] + "▮" + lines[row][column:]
    return [line.rstrip() for line in lines]


def run_in_terminal(
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    columns: int = 80,
    interrupt: Callable[[str], bool] = lambda text: False,
    answers: Mapping[str, str] | None = None,
    seconds: float = 300,
) -> tuple[int, str]:
    """Run a command in a terminal and return its exit code and output.

    Args:
        command: The program's path and its arguments.
        environment: Its environment.
        directory: Where it runs.
        columns: The terminal's width.
        interrupt: Given all output so far, says when Ctrl-C is pressed, once.
        answers: What is typed when a text is first shown.
        seconds: After which it is killed.
    """
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(directory)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execve(command[0], list(command), dict(environment))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    written, interrupted, deadline = b"", False, time.monotonic() + seconds
    waiting = dict(answers or {})
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.5)[0]:
            try:
                read = os.read(terminal, 65536)
            except OSError:  # the command has ended
                break
            if not read:
                break
            written += read
        if not interrupted and interrupt(written.decode(errors="replace")):
            os.write(terminal, b"\x03")
            interrupted = True
        for shown in [text for text in waiting if text in written.decode(errors="replace")]:
            os.write(terminal, waiting.pop(shown).encode())
    else:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), written.decode(errors="replace")
