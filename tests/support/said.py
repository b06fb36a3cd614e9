"""What a command of the command line did, for tests to look at."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Said:
    """What a command did: its exit code and what it printed where."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def words(self) -> str:
        """What it printed on either, without the frames of tables and the breaks of lines."""
        return " ".join(f"{self.out} {self.err}".replace("│", " ").split())


Afarm = Callable[..., Said]


def failed(said: Said, *parts: str, code: int = 1) -> None:
    """Assert that a command failed with these words, and no traceback, on stderr."""
    assert said.code == code
    assert said.out == "", "nothing but results goes to stdout"
    for part in parts:
        assert part in said.err
    assert "Traceback" not in said.err
