"""Fifty mistakes planted in the trainer by somebody who had not seen the check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from afarm_golden_traces import Report, check, load_trace
from planted_bugs import BUGS

SOURCE = Path(__file__).with_name("reference_trainer.py").read_text("utf-8")

UNSEEN = {
    "clip range exchanged",  # both are 0.2 in the trace
    "reference point not clamped",  # it is above 0
}
"""Mistakes that change no number on the trace's inputs."""

EXPLAINED = 30
"""Mistakes whose cause is said, too."""


def plant(method: str, replacements: list[tuple[str, str]]) -> Report:
    """Train with a mistake, and hold the dump against the trace."""
    source = SOURCE
    for right, wrong in replacements:
        assert source.count(right) == 1, right
        source = source.replace(right, wrong)
    trainer: dict[str, Any] = {"__name__": "planted"}
    exec(compile(source, "planted", "exec"), trainer)
    return check(method, trainer["train"](method, load_trace(method).stored))


def test_bugs_are_named() -> None:
    departures = {name: plant(method, replacements).departures for name, method, replacements in BUGS}
    assert len(departures) == 50
    assert {name for name, found in departures.items() if not found} == UNSEEN
    assert sum(any(one.cause for one in found) for found in departures.values()) == EXPLAINED
