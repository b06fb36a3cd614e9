"""The afarm commands behind what pages show, ready to be pasted into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path

from afarm.results import Place, fixed_place, redact_place


def quote_command(*words: str) -> str:
    """Join the words of a command, quoted for the shell where necessary."""
    return shlex.join(["afarm", *words])


def place_words(output_dir: Path, ledger: Place | None = None) -> list[str]:
    """Name an output directory, and the ledger if one was named for all, as options."""
    named = [] if ledger is None else ["--ledger", redact_place(fixed_place(ledger))]
    return ["--output-dir", str(output_dir), *named]
