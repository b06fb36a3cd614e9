"""The instructions of a user's own preferences, so that one file serves training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from afarm import Output, Unusable, holds_feedback, own_feedback, own_preferences
from afarm_plugins.datasets.one_file import OneFile


class Prompts(OneFile):
    """The prompts of usable preferences, split by hash, with their chosen answers as outputs."""

    section = "prompts"
    path_option = "--preferences FILE"

    def further_problems(self) -> list[str]:
        if "preference" not in self.config.shares:
            return []
        return ["prompts.shares.preference: the pairs to train on are those of --preferences; leave it out"]

    def keyed_rows(self) -> Iterator[tuple[str, Output]]:
        if holds_feedback(self.config.path):
            read = own_feedback(self.config.path, Unusable(), scale=self.config.labels)
            for thumb in sorted(read, key=lambda thumb: not thumb.label):  # of several outputs the first is taken
                yield thumb.instruction.id, Output(thumb.instruction, thumb.output if thumb.label else "", "thumb up")
            return
        for judged in own_preferences(self.config.path, Unusable(), scale=self.config.labels):
            chosen = judged.chosen_rejected
            task = judged.pair.instruction
            yield task.id, Output(task, chosen[0] if chosen else "", "chosen")
