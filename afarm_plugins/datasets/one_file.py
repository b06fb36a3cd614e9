"""Data sets of one file, cut into disjoint splits by a hash."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar

from afarm import ConfigError, DataError, Dataset, Output, Tasks, is_on_hub, seeding, why_no_file
from afarm_plugins.datasets.files import SPLITS, find_split, share_problems

WITH_OUTPUTS = ("sft", "evaluation")
"""The splits whose rows have an output."""


class OneFile(Dataset):
    """Rows of one file, split by the hash of a key; of equal instructions the first is kept."""

    section: ClassVar[str]
    path_option: ClassVar[str]
    """How a user names the file."""

    def __init__(self, config: Any):
        """Check the settings. Raises `ConfigError` if the file is missing or the shares are impossible."""
        self.config = config
        self.remote = is_on_hub(config.path)
        problems = share_problems(f"{self.section}.shares", config.shares)
        if not config.path:
            problems.append(f"{self.section}.path: name the file: {self.path_option}")
        elif not self.remote and (problem := why_no_file(config.path)):
            problems.append(f"{self.section}.path: {config.path}: {problem}")
        if problems := [*problems, *self.further_problems()]:
            raise ConfigError(problems)

    def further_problems(self) -> list[str]:
        """List problems in its own settings."""
        return []

    @abstractmethod
    def keyed_rows(self) -> Iterator[tuple[str, Output]]:
        """Yield each row with the key that chooses its split. Raises `DataError`."""

    def load(self, split: str) -> list[Output]:
        """See `Dataset.load`. Demonstrations without an output are left out."""
        if split not in SPLITS:
            raise DataError(f"there is no split {split!r}; the splits are {', '.join(SPLITS)}")
        if not (rows := self._splits.get(split)):
            raise DataError(
                f"{self.config.path}: split {split!r} gets none of its rows; give it a share "
                f"(--set {self.section}.shares.{split}=0.2) or add rows, or name instructions with --data FILE"
            )
        return list(rows.values())

    @cached_property
    def _splits(self) -> dict[str, dict[str, Output]]:
        """The rows of each split by the instruction's id, read once."""
        splits: dict[str, dict[str, Output]] = {}
        tasks, split_of = Tasks(), dict[str, str]()
        for key, row in self.keyed_rows():
            if not (alike := tasks.alike(row.instruction)):
                tasks.add(row.instruction)
                split_of[row.instruction.id] = find_split(seeding.uniform("split", key), self.config.shares)
            split = split_of[(*alike, row.instruction)[0].id]  # one task is in one split, however it is written
            answer = row.output if split in WITH_OUTPUTS else ""
            if split and (answer.strip() or split != "sft"):
                task = row.instruction
                splits.setdefault(split, {}).setdefault(task.id, Output(task, answer, row.generator if answer else ""))
        return splits
