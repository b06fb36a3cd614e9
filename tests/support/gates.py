"""The gates of the gated plugin, apart from it: importing that replaces the backend of a process."""

from pathlib import Path

LABELS, STEPS = Path("labels"), Path("steps")
"""The files of the working directory that are waited for."""

FREE = 4
"""Answers that the judge gives without waiting."""
