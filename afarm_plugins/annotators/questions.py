"""Asking until there is a readable answer: what is known is not asked, what is learned is stored before it is used.

Whoever asks describes each judgement that it wants as a function from the number of the re-ask (0 at first) to a
`Question`. An answer that cannot be read is asked for anew, alone, as another draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from afarm.interfaces import AnnotateContext
from afarm.judges import Ask, ChatRequest, Comparison, Completion, Judgement, JudgementKey, learn_as_they_land
from afarm_plugins.annotators.members import Member, dummy
from afarm_plugins.annotators.parsing import parse

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

REFUSALS = frozenset({"refusal", "content_filter"})
"""Finish reasons with which judges say that they decline to answer."""

PROBABILITIES = "probabilities"
"""The finish reason of a judge that gives the log-probabilities of the two labels and writes nothing."""
LABELS = ("Output (a)", "Output (b)")


@dataclass(frozen=True, slots=True)
class Assigned:
    """A member with the judge that answers for it: `degraded` is what that judge cannot take of what it asks."""

    member: Member
    as_chat: bool
    fingerprint: str
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """One draw of one member's judgement of one comparison. `batch` says which questions may share a prompt: those with
    an equal one, and with none of them a question that is asked again."""

    key: JudgementKey
    comparison: Comparison
    by: Assigned
    batch: Hashable = None
    again: bool = False


Pose = Callable[[int], Question]
"""The question of a slot, by the number of the re-ask."""


def assign(member: Member, ask: Ask) -> Assigned:
    """Raises `JudgeError` where no judge answers for the member's role, or not for all that it asks (see
    `afarm.judges.Ask.degraded`)."""
    role = member.entry.role
    as_chat = member.entry.kind == "completion" and not ask.capabilities(role).completion
    degraded = ask.degraded(member.request([dummy(False)], seed=0, draw=0, as_chat=as_chat))
    return Assigned(member, as_chat, member.fingerprint(ask.judge(role), as_chat, degraded), degraded)


def gather(slots: Mapping[K, Pose], rounds: int, context: AnnotateContext) -> dict[K, tuple[Question, Judgement]]:
    """The judgement of each slot, with the question that got it: the first of `rounds` draws that could be read.

    Judgements already learned are not asked for again. Raises `JudgeError` and `BudgetError` as `context.ask` does.
    """
    answers: dict[K, tuple[Question, Judgement]] = {}
    waiting = dict(slots)
    for number in range(rounds):
        questions, known = _recall(waiting, number, context)
        if missing := _unknown(questions, known):
            known |= _ask(missing, context)
        answers |= {slot: (question, known[question.key]) for slot, question in questions.items()}
        waiting = {slot: pose for slot, pose in waiting.items() if answers[slot][1].outcome != "decided"}
    return answers


def foresee(slots: Mapping[K, Pose], rounds: int, context: AnnotateContext) -> list[ChatRequest]:
    """What `gather` would send now: the draws that are not known yet. Re-asks after them cannot be foreseen."""
    requests: list[ChatRequest] = []
    waiting = dict(slots)
    for number in range(rounds):
        questions, known = _recall(waiting, number, context)
        requests += map(_request, _pack(_unknown(questions, known)))
        waiting = {
            slot: waiting[slot]
            for slot, question in questions.items()
            if question.key in known and known[question.key].outcome != "decided"
        }
    return requests


def _recall(
    slots: Mapping[K, Pose], number: int, context: AnnotateContext
) -> tuple[dict[K, Question], dict[JudgementKey, Judgement]]:
    """The question of each slot, and what is known about them already."""
    questions = {slot: pose(number) for slot, pose in slots.items()}
    keys = [question.key for question in questions.values()]
    return questions, dict(context.ask.recall(keys)) if keys else {}


def _unknown(questions: Mapping[K, Question], known: Mapping[JudgementKey, Judgement]) -> list[Question]:
    """The questions that have no judgement yet."""
    return [question for question in questions.values() if question.key not in known]


def _ask(questions: Sequence[Question], context: AnnotateContext) -> dict[JudgementKey, Judgement]:
    """Ask, every member's requests together, and store what the answers teach as they land.

    What is stored is what whole batches taught: after a kill the others are packed as they were, and the answers that
    had reached the ledger are found there.
    """
    batches = list(_pack(questions))
    answers = context.ask.stream(map(_request, batches))
    shown = context.progress(answers, "judge requests", len(batches)) if len(batches) > 1 else answers
    return learn_as_they_land(context.ask, batches, shown, _learned)


def _learned(batch: Sequence[Question], completion: Completion) -> dict[JudgementKey, Judgement]:
    judgements = read(batch[0].by.member, completion, len(batch))
    return {question.key: judgement for question, judgement in zip(batch, judgements, strict=True)}


def _pack(questions: Iterable[Question]) -> Iterator[list[Question]]:
    """Batches of one member's questions, with an input and without apart, since they have different prompts.

    A question that is asked again is alone in its batch: its companions are not asked again with it.
    """
    groups: dict[Hashable, list[Question]] = {}
    for question in questions:
        has_input = bool(question.comparison.instruction.input)
        groups.setdefault((question.by.member.name, has_input, question.batch), []).append(question)
    for group in groups.values():
        yield from _chunked(group, 1 if group[0].again else group[0].by.member.entry.batch_size)


def _request(batch: Sequence[Question]) -> ChatRequest:
    """The request that asks `batch`, whose questions share their member and draw."""
    first = batch[0]
    comparisons = [question.comparison for question in batch]
    return first.by.member.request(comparisons, seed=first.key.seed, draw=first.key.draw, as_chat=first.by.as_chat)


def read(member: Member, completion: Completion, count: int) -> list[Judgement]:
    """What `completion` says about the first `count` comparisons of its batch; the dummies after them are not read."""
    unread = "refused" if completion.finish_reason in REFUSALS else "unparsed"
    if completion.finish_reason == PROBABILITIES:
        verdicts = [_first_of_labels(completion) if member.entry.answer_format == "single" else None]
        verdicts += [None] * (count - 1)
    else:
        verdicts = parse(completion.text, member.entry.answer_format, member.entry.batch_size)[:count]
    return [Judgement(first, unread if first is None else "decided", completion.key) for first in verdicts]


def _first_of_labels(completion: Completion) -> float | None:
    """The probability of the first label among the two, None where they are not both there."""
    position = completion.logprobs[0] if completion.logprobs else {}
    a, b = (position.get(label, math.nan) for label in LABELS)
    if math.isnan(a - b):  # one is missing, or neither has any probability
        return None
    return 0.5 * (1 + math.tanh((a - b) / 2))


def _chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of `size` items, the last of them possibly shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
