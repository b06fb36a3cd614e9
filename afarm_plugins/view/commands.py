"""Commands of afarm's behind what pages show, to be pasted into a shell as they are."""

from __future__ import annotations

import shlex
from pathlib import Path

from afarm.results import Place, fixed_place, shown_place


def command_of(*words: str) -> str:
    """Write a command, each word quoted if it must be."""
    return shlex.join(["afarm", *words])


def place_words(output_dir: Path, ledger: Place | None = None) -> list[str]:
    """Name an output directory, and the ledger if one was named for all, as options."""
    named = [] if ledger is None else ["--ledger", shown_place(fixed_place(ledger))]
    return ["--output-dir", str(output_dir), *named]
