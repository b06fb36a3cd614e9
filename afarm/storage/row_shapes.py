"""Shapes of rows, told by their fields: for errors about files that are read as something else.

A preference file that is read as annotations would give a system a win rate that nobody measured: a wrong shape is an
error that names it, and the command for such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.core.records import JudgedPair

ANNOTATION = frozenset({"output_1", "output_2", "preference"})
"""The fields without which a row is no annotation."""
MOST_LISTED = 12
"""Fields that a message lists."""
MOST_LOOKED_AT = 1_000
"""Files of a directory that are looked at for a hint."""


def annotation(row: Mapping[str, Any], file: Path | str, where: str) -> JudgedPair:
    """Parse the row at `where` in a file of annotations.

    Raises `DataError` naming the place and the field, and what the row looks like if it is none.
    """
    if row.keys() >= ANNOTATION:
        return JudgedPair.from_row(row, where)
    lacking = next(name for name in ("output_1", "output_2", "preference") if name not in row)
    raise DataError(f"{where}: field {lacking!r} is missing, so this is no annotation; {what_it_holds(row, str(file))}")


def training_pairs(file: Path | str) -> str:
    """Name the command that trains on a file of preferences."""
    return f"afarm fit-reward --preferences {file}"


def what_it_holds(row: Mapping[str, Any], file: str) -> str:
    """List the fields of a row of `file`, and say what they look like, if that is known."""
    fields = ", ".join(map(repr, list(row)[:MOST_LISTED])) or "none"
    meaning = _other_shape(row, file)
    return f"its fields are {fields}" + (f". These look like {meaning}" if meaning else "")


def no_output(row: Mapping[str, Any], file: str) -> str:
    """Say what a row of `file` looks like that was read as an output and is none; empty if it is unknown."""
    meaning = "" if "output" in row else _other_than_output(row, file)
    return f". These look like {meaning}" if meaning else ""


def _other_than_output(row: Mapping[str, Any], file: str) -> str:
    """Name the shape of a row that holds no single output, with its command; empty if unknown."""
    fields = row.keys()
    if fields >= ANNOTATION:
        return f"annotations: afarm evaluate --annotations {file}"
    if {"chosen", "rejected"} <= fields:
        return f"preferences to train on, in TRL's form: {training_pairs(file)}"
    if {"request", "text"} <= fields:
        return f"an export of the ledger, to answer for a judge: --judge replay:{file}"
    if "win_rate" in fields:
        return f"a leaderboard: afarm leaderboard {file}"
    if ANNOTATION - {"preference"} <= fields:
        return "pairs without labels: 'preference' must say which output is better, 1 or 2"
    return ""


def _other_shape(row: Mapping[str, Any], file: str) -> str:
    """Name the shape of a row and the command for such a file; empty if it is unknown."""
    fields = row.keys()
    if shape := _other_than_output(row, file):
        return shape
    if {"prompt", "completion", "label"} <= fields:
        return "unpaired feedback (TRL's KTO): put a better and a worse answer to each prompt into one row"
    if "output" in fields:
        return f"one system's outputs; have them judged: afarm evaluate {file} --reference FILE"
    if "instruction" in fields:
        return f"instructions without outputs; have a policy answer them: afarm evaluate --eval-set {file}"
    if {"messages", "conversations", "completion"} & fields:
        return "demonstrations, one answer to each prompt: put a better and a worse one into 'chosen' and 'rejected'"
    return ""


def require_file_of_annotations(path: Path) -> None:
    """Raise `DataError` naming what stands at `path` if it is a directory."""
    if not path.is_dir():
        return
    held = [str(file) for depth in ("*", "*/*") for file in islice(path.glob(f"{depth}.json*"), MOST_LOOKED_AT)]
    if (path / "configs.yaml").is_file() or (path / "config.yaml").is_file():
        means = f"an annotator's directory: afarm evaluate FILE --reference FILE --annotator alpaca_eval:{path}"
    elif (path / "run.json").is_file() or (path / "runs").is_dir():
        means = f"a directory of runs: afarm leaderboard {path}"
    elif held:
        likely = [file for file in held if "annotation" in Path(file).name] or held
        means = f"a directory: name its files of annotations, such as {min(likely)}"
    else:
        means = "a directory with no run and no file of annotations: name one that has either"
    raise DataError(f"{path}: is {means}")
