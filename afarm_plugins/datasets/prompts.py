"""The instructions of a user's own preferences, so that one file trains and evaluates."""

from __future__ import annotations

from pathlib import Path

from afarm import ConfigError, DataError, Dataset, Output, Unusable, is_on_hub, own_preferences, seeding
from afarm_plugins.datasets import PromptsConfig
from afarm_plugins.datasets.files import SPLITS, share_problems, split_at


class Prompts(Dataset):
    """The prompts of preferences, each in one split by its hash, with their chosen answers as outputs."""

    def __init__(self, config: PromptsConfig):
        """Check the settings. Raises `ConfigError` if the file is missing or the shares are impossible."""
        self.config = config
        self.remote = is_on_hub(config.path)
        problems = share_problems("prompts.shares", config.shares)
        if not config.path:
            problems.append("prompts.path: name the file of preferences: --preferences FILE")
        elif not self.remote and not Path(config.path).expanduser().is_file():
            problems.append(f"prompts.path: no such file: {config.path}")
        if "preference" in config.shares:
            problems.append("prompts.shares.preference: the pairs to train on are those of --preferences; leave it out")
        if problems:
            raise ConfigError(problems)

    def load(self, split: str) -> list[Output]:
        """See `Dataset.load`. Preferences that cannot be learned from are passed over."""
        if split not in SPLITS:
            raise DataError(f"there is no split {split!r}; the splits are {', '.join(SPLITS)}")
        found: dict[str, Output] = {}
        for judged in own_preferences(self.config.path, Unusable()):
            task = judged.pair.instruction
            if task.id not in found and split_at(seeding.uniform("split", task.id), self.config.shares) == split:
                chosen = judged.chosen_rejected
                if split != "sft" or (chosen and chosen[0].strip()):
                    found[task.id] = Output(task, chosen[0] if chosen else "", "chosen")
        if not found:
            raise DataError(
                f"{self.config.path}: split {split!r} gets none of its prompts; give it a share (--set "
                f"prompts.shares.{split}=0.2), or name instructions with --data FILE"
            )
        return list(found.values())
