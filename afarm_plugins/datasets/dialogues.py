"""Conversations: what was said so far is the prompt, the assistant's next turn the output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from afarm import DataError, Instruction, Output, Unusable, own_preferences, read_placed_rows, with_turns
from afarm_plugins.datasets.files import require_good_answer
from afarm_plugins.datasets.one_file import OneFile

PREFERENCES = ("chosen", "output_1", "conversation_a", "response_a", "response1")
"""Fields of which each form of preferences has one."""


class Dialogues(OneFile):
    """Conversations with the assistant's next turn; all with the same first message are in one split."""

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
        """Yield each conversation, with the assistant's last turn as the output."""
        path = self.config.path
        fields = next((row.keys() for _, row in read_placed_rows(path)), ())
        if any(name in fields for name in PREFERENCES):
            for judged in own_preferences(path, Unusable(), scale=self.config.labels):
                chosen = judged.chosen_rejected
                yield Output(judged.pair.instruction, chosen[0] if chosen else "", "chosen")
            return
        for where, row in read_placed_rows(path):
            read = with_turns(row, where)
            require_good_answer(read, where)
            output = Output.from_row({"output": "", **read}, where)
            if not output.instruction.instruction.strip():
                raise DataError(f"{where}: has no message of a user")
            yield Output(output.instruction, output.output, output.generator or "assistant")

    def _turns(self, row: Output) -> Iterator[Output]:
        """Yield the conversation up to its last prompt, or up to each."""
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
