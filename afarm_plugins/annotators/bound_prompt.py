"""A pool member bound to the judge that answers it: what is sent, and what is read from an answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from afarm import Ask, ChatRequest, Completion, JudgeError, Judgement, ShownPair, seeding
from afarm.judging import JudgePrompt, ParsedVerdict, build_judgements
from afarm_plugins.annotators.parsing import READING, parse
from afarm_plugins.annotators.prompt_library import PoolMember, dummy, template_problem

PROBABILITIES = "probabilities"
"""The finish reason of a judge that gives the log-probabilities of the two labels and writes nothing."""
LABELS = ("Output (a)", "Output (b)")


@dataclass(frozen=True, slots=True)
class BoundPrompt(JudgePrompt):
    """A member's prompt with its judge.

    `as_chat`: the judge only chats, and gets a completion prompt as one message. `fields` are further variables of the
    template by the id of the pair shown: `fingerprint`, or the id, must change with them.
    """

    member: PoolMember
    as_chat: bool
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, kw_only=True)

    def request(self, pairs: Sequence[ShownPair], *, seed: int, sample_index: int) -> ChatRequest:
        """See `JudgePrompt.request`. Raises `JudgeError` naming a template that fails on these pairs."""
        member, fields = self.member, self.fields.get(pairs[0].pair_id)
        try:
            return member.request(pairs, seed=seed, sample_index=sample_index, as_chat=self.as_chat, fields=fields)
        except Exception as error:  # whatever a template's expressions may raise
            raise JudgeError(f"{member.name}: prompt: {member.spec.prompt}.jinja: {template_problem(error)}") from error

    def read(self, completion: Completion, count: int) -> list[Judgement]:
        """See `JudgePrompt.read`. Answers about the dummies that fill a batch are not read."""
        spec = self.member.spec
        if completion.finish_reason == PROBABILITIES:
            verdicts: list[ParsedVerdict] = [None] * count
            position = completion.logprobs[0] if completion.logprobs else {}
            a, b = (position.get(label, math.nan) for label in LABELS)
            if spec.answer_format == "single" and not math.isnan(a - b):  # else one is missing, or neither has any
                verdicts[0] = 0.5 * (1 + math.tanh((a - b) / 2))
        else:
            verdicts = parse(completion.text, spec.answer_format, spec.batch_size)[:count]
        return build_judgements(completion, verdicts)


def bind(member: PoolMember, ask: Ask) -> BoundPrompt:
    """Bind `member` to its role's judge. Raises `JudgeError` without one, or if it lacks a parameter."""
    role = member.spec.role
    judge = ask.judge(role)
    as_chat = member.spec.kind == "completion" and not ask.capabilities(role).completion
    degraded = ask.degraded(_blank_request(member, as_chat))
    fingerprint = seeding.digest(_fingerprint(member, judge, as_chat, tuple(degraded)), READING)
    return BoundPrompt(member.name, member.spec.batch_size, fingerprint, degraded, member, as_chat, judge=judge)


@lru_cache(maxsize=64)
def _blank_request(member: PoolMember, as_chat: bool) -> ChatRequest:
    return member.request([dummy(False)], seed=0, sample_index=0, as_chat=as_chat)


@lru_cache(maxsize=256)
def _fingerprint(member: PoolMember, judge: str, as_chat: bool, degraded: tuple[str, ...]) -> str:
    return member.fingerprint(judge, as_chat, degraded)
