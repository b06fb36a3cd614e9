"""Conversations: what was said so far is the prompt, the assistant's next turn the output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from afarm import DataError, Instruction, Output, Unusable, own_preferences, placed_rows, with_turns
from afarm_plugins.datasets.one_file import OneFile

PREFERENCES = ("chosen", "output_1", "conversation_a", "response_a", "response1")
"""Fields of which each form of preferences has one."""


class Dialogues(OneFile):
    """Conversations so far with the assistant's turn; all that open alike are in one split."""

    section = "dialogues"
    path_option = "--set dialogues.path=FILE"

    def keyed_rows(self) -> Iterator[tuple[str, Output]]:
        seen = False
        for row in self._last_turns():
            seen = True
            for turn in self._turns(row):
                yield opening(turn.instruction), turn
        if not seen:
            raise DataError(f"{self.config.path}: holds no conversation")

    def _last_turns(self) -> Iterator[Output]:
        """Yield each conversation up to its last turn of the assistant's, which is the output."""
        path = self.config.path
        fields = next((row.keys() for _, row in placed_rows(path)), ())
        if any(name in fields for name in PREFERENCES):
            for judged in own_preferences(path, Unusable(), scale=self.config.labels):
                chosen = judged.chosen_rejected
                yield Output(judged.pair.instruction, chosen[0] if chosen else "", "chosen")
            return
        for where, row in placed_rows(path):
            output = Output.from_row({"output": "", **with_turns(row, where)}, where)
            if not output.instruction.instruction.strip():
                raise DataError(f"{where}: has no message of a user")
            yield Output(output.instruction, output.output, output.generator or "assistant")

    def _turns(self, row: Output) -> Iterator[Output]:
        """Yield the turns of a conversation that are prompts: the last, or all of the user's."""
        turns = row.instruction.messages
        if self.config.turns == "all":
            for place, (said, answer) in enumerate(pairwise(turns)):
                if said.role == "user" and answer.role == "assistant":
                    before = Instruction(said.content, "", row.instruction.dataset, turns[:place])
                    yield Output(before, answer.content, "assistant")
        yield row


def opening(task: Instruction) -> str:
    """Return the user's first message of a conversation."""
    return next((turn.content for turn in task.messages if turn.role == "user"), task.instruction)
