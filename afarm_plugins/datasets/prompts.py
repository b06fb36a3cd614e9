"""The instructions of a user's own preferences, so that one file trains and evaluates."""

from __future__ import annotations

from functools import cached_property

from afarm import ConfigError, DataError, Dataset, Output, Unusable, is_on_hub, own_preferences, seeding, why_no_file
from afarm_plugins.datasets import PromptsConfig
from afarm_plugins.datasets.files import SPLITS, share_problems, split_at

WITH_OUTPUTS = ("sft", "evaluation")
"""The splits whose rows have the chosen answer: others need it not."""


class Prompts(Dataset):
    """The prompts of preferences, each in one split by its hash, with their chosen answers as outputs."""

    def __init__(self, config: PromptsConfig):
        """Check the settings. Raises `ConfigError` if the file is missing or the shares are impossible."""
        self.config = config
        self.remote = is_on_hub(config.path)
        problems = share_problems("prompts.shares", config.shares)
        if not config.path:
            problems.append("prompts.path: name the file of preferences: --preferences FILE")
        elif not self.remote and (problem := why_no_file(config.path)):
            problems.append(f"prompts.path: {config.path}: {problem}")
        if "preference" in config.shares:
            problems.append("prompts.shares.preference: the pairs to train on are those of --preferences; leave it out")
        if problems:
            raise ConfigError(problems)

    def load(self, split: str) -> list[Output]:
        """See `Dataset.load`. Preferences that cannot be learned from are passed over."""
        if split not in SPLITS:
            raise DataError(f"there is no split {split!r}; the splits are {', '.join(SPLITS)}")
        if not (rows := self._splits.get(split)):
            raise DataError(
                f"{self.config.path}: split {split!r} gets none of its prompts; give it a share (--set "
                f"prompts.shares.{split}=0.2), or name instructions with --data FILE"
            )
        return list(rows.values())

    @cached_property
    def _splits(self) -> dict[str, dict[str, Output]]:
        """The rows of each split by the instruction's id, read once."""
        splits: dict[str, dict[str, Output]] = {}
        for judged in own_preferences(self.config.path, Unusable(), scale=self.config.labels):
            task, chosen = judged.pair.instruction, judged.chosen_rejected
            split = split_at(seeding.uniform("split", task.id), self.config.shares)
            answer = chosen[0] if chosen and split in WITH_OUTPUTS else ""
            if split and (answer.strip() or split != "sft"):
                splits.setdefault(split, {}).setdefault(task.id, Output(task, answer, "chosen" if answer else ""))
        return splits
