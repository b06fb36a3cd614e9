"""A member with the judge that answers for it: what it sends, and what it reads in an answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from afarm import Ask, ChatRequest, Completion, Judgement, ShownPair
from afarm.judging.pairwise import REFUSALS, JudgePrompt
from afarm_plugins.annotators.parsing import parse
from afarm_plugins.annotators.prompt_library import Member, dummy

PROBABILITIES = "probabilities"
"""The finish reason of a judge that gives the log-probabilities of the two labels and writes nothing."""
LABELS = ("Output (a)", "Output (b)")


@dataclass(frozen=True, slots=True)
class Assigned(JudgePrompt):
    """`as_chat`: the judge only chats, and gets a completion prompt as one message. `given` is what prompts are filled
    with beside what they compare, by the id of the comparison: `fingerprint`, or the id, must change with it."""

    member: Member
    as_chat: bool
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, kw_only=True)

    def request(self, comparisons: Sequence[ShownPair], *, seed: int, sample_index: int) -> ChatRequest:
        given = self.given.get(comparisons[0].pair_id)
        return self.member.request(comparisons, seed=seed, sample_index=sample_index, as_chat=self.as_chat, given=given)

    def read(self, completion: Completion, count: int) -> list[Judgement]:
        """The dummies that fill the batch up are not read."""
        entry = self.member.entry
        unread = "refused" if completion.finish_reason in REFUSALS else "unparsed"
        if completion.finish_reason == PROBABILITIES:
            verdicts = [_first_of_labels(completion) if entry.answer_format == "single" else None]
            verdicts += [None] * (count - 1)
        else:
            verdicts = parse(completion.text, entry.answer_format, entry.batch_size)[:count]
        return [Judgement(first, unread if first is None else "decided", completion.key) for first in verdicts]


def assign(member: Member, ask: Ask) -> Assigned:
    """Raises `JudgeError` where no judge answers for the member's role, or not for all that it asks (see
    `afarm.core.judge.Ask.degraded`)."""
    role = member.entry.role
    judge = ask.judge(role)
    as_chat = member.entry.kind == "completion" and not ask.capabilities(role).completion
    degraded = ask.degraded(member.request([dummy(False)], seed=0, sample_index=0, as_chat=as_chat))
    fingerprint = member.fingerprint(judge, as_chat, degraded)
    return Assigned(member.name, member.entry.batch_size, fingerprint, degraded, member, as_chat, judge=judge)


def _first_of_labels(completion: Completion) -> float | None:
    """The probability of the first label among the two, None where they are not both there."""
    position = completion.logprobs[0] if completion.logprobs else {}
    a, b = (position.get(label, math.nan) for label in LABELS)
    if math.isnan(a - b):  # one is missing, or neither has any probability
        return None
    return 0.5 * (1 + math.tanh((a - b) / 2))
