"""Instructions from the user's own files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from afarm import (
    ConfigError,
    DataError,
    Dataset,
    Instruction,
    Output,
    did_you_mean,
    is_on_hub,
    read_placed_rows,
    require_distinct,
    seeding,
    why_no_file,
    with_turns,
)
from afarm_plugins.datasets import FilesConfig

SPLITS = ("sft", "preference", "unlabeled", "validation", "evaluation")
"""In the order in which shares are counted, whatever the setting's order."""


class Files(Dataset):
    """One file per split, or one file cut into disjoint splits by a hash of each instruction."""

    def __init__(self, config: FilesConfig):
        """Check the settings. Raises `ConfigError` if files are missing or the shares are impossible."""
        self.config = config
        self.own = {split: getattr(config, split) for split in SPLITS if getattr(config, split)}
        problems = share_problems("files.shares", config.shares)
        if not config.path and not self.own:
            problems.append("files.path: name the file with the instructions: --data FILE")
        problems += [
            f"files.{name}: {path}: {problem}"
            for name, path in {"path": config.path, **self.own}.items()
            if path and not is_on_hub(path) and (problem := why_no_file(path))
        ]
        if problems:
            raise ConfigError(problems)
        self.remote = any(map(is_on_hub, [config.path, *self.own.values()]))

    def load(self, split: str) -> list[Output]:
        """See `Dataset.load`. Demonstrations need an output, and so do references if any row has one."""
        if split not in SPLITS:
            raise DataError(f"there is no split {split!r}; the splits are {', '.join(SPLITS)}")
        path = self.own.get(split) or self.config.path
        if not path:
            raise DataError(f"split {split!r} has no file: --set files.{split}=FILE, or --data FILE for all splits")
        placed = list(read_placed_rows(path))
        rows = [with_turns(row, where) for where, row in placed]
        for row, (where, _) in zip(rows, placed, strict=True):
            require_good_answer(row, where)
        tasks = [Output(Instruction.from_row(row, where), "") for row, (where, _) in zip(rows, placed, strict=True)]
        for task, (where, _) in zip(tasks, placed, strict=True):
            if not task.instruction.instruction.strip():
                raise DataError(f"{where}: field 'instruction' is blank")
        require_distinct(tasks, path)  # before splitting, so that errors name rows of the file
        needed = split == "sft" or (split == "evaluation" and any("output" in row for row in rows))
        outputs, left_out = [], 0
        for row, task, (where, own) in zip(rows, tasks, placed, strict=True):
            at = seeding.uniform("split", task.instruction.id)
            if split not in self.own and find_split(at, self.config.shares) != split:
                continue
            if needed and "output" not in row:
                raise DataError(f"{where}: field 'output' is missing; its fields are {', '.join(map(repr, own))}")
            output = Output.from_row(row if needed else {"output": "", **row}, where)
            if output.output.strip() or not (needed and self.config.drop_empty):
                outputs.append(output)
            else:
                left_out += 1
        if left_out and not outputs:
            raise DataError(f"{path}: split {split!r} is empty: each of its rows has an empty 'output': fill them in")
        if not outputs:
            shares = " ".join(f"--set files.shares.{name}={self.config.shares.get(name, 0.0):g}" for name in SPLITS)
            raise DataError(
                f"{path}: split {split!r} is empty (it got none of {len(rows)} rows): add rows, name a file for it "
                f"(--set files.{split}=FILE), or give it a larger share. They are set together; now: {shares}"
            )
        return outputs


def require_good_answer(row: Mapping[str, Any], where: str) -> None:
    """Raise `DataError` for an output that its row calls bad, as unpaired feedback does."""
    for name in ("label", "kto_tag"):
        if "output" in row and str(row.get(name)).casefold() == "false":
            raise DataError(
                f"{where}: field {name!r} says that the output is bad, and outputs here are good answers: train on "
                f"such rows with --preferences FILE, or take the column {name!r} out"
            )


def share_problems(name: str, shares: Mapping[str, float]) -> list[str]:
    """List problems in the shares of splits, the setting `name`."""
    problems = [f"{name}.{split}: no such split.{did_you_mean(split, SPLITS)}" for split in shares.keys() - SPLITS]
    if any(share < 0 for share in shares.values()) or sum(shares.values()) > 1 + 1e-9:
        problems.append(f"{name}: each must be at least 0, and together they may not exceed 1")
    return problems


def find_split(at: float, shares: Mapping[str, float]) -> str:
    """Return the split of a row at this position in [0, 1); empty for none."""
    for split in SPLITS:
        share = shares.get(split, 0.0)
        if at < share:
            return split
        at -= share
    return ""
