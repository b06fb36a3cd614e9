"""Prompt annotators: which member judges a pair, in which order it sees the outputs, and how its answers are gathered.

All draws are keyed by the seed and the pair, so labels do not depend on batching, concurrency or restarts:

    member   choice(seed, "member", pair id)      uniform over the configured members
    order    uniform(seed, "order", pair id)      over the canonical order, so that swapping the outputs mirrors labels
    draw     0, then 1, 2 … for re-asks           an answer that could not be read is asked for anew, alone

Source: Dubois et al. 2023 (AlpacaFarm), sections 3 and App. C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from afarm.interfaces import AnnotateContext, Annotator
from afarm.judges import ChatRequest, Comparison, Completion, Judgement, JudgementKey
from afarm.keyed import choice, uniform
from afarm.records import Pair, Preference
from afarm_plugins.annotators import PromptAnnotatorConfig
from afarm_plugins.annotators.members import Member, load_member
from afarm_plugins.annotators.parsing import parse

T = TypeVar("T")

REFUSALS = frozenset({"refusal", "content_filter"})
"""Finish reasons with which judges say that they decline to answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """One draw of one member's judgement of one pair."""

    key: JudgementKey
    comparison: Comparison
    member: Member
    as_chat: bool


class PromptAnnotator(Annotator):
    """Draws a member for each pair and asks its judge. A single annotator is a pool of one."""

    def __init__(self, config: PromptAnnotatorConfig):
        self.config = config
        self.members = [load_member(name) for name in config.members]

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """One preference a pair, in order; "unparsed" (or "refused") where no draw gave a readable verdict.

        Judgements already learned are not asked for again, and what each chunk of answers teaches is stored before the
        next is sent. Raises `JudgeError` and `BudgetError` as `context.ask` does.
        """
        open_pairs = {pair.id: pair for pair in pairs}
        answers: dict[str, tuple[Question, Judgement]] = {}
        for draw in range(self.config.max_reasks + 1):
            questions, known = self._recall(open_pairs, draw, context)
            for question, judgement in self._ask(unknown(questions, known), context):
                known[question.key] = judgement
            for pair_id, question in questions.items():
                answers[pair_id] = question, known[question.key]
            open_pairs = {i: p for i, p in open_pairs.items() if answers[i][1].outcome != "decided"}
        return [preference(pair, *answers[pair.id]) for pair in pairs]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """What `annotate` would send now: the draws that are not known yet. Re-asks after them cannot be foreseen."""
        requests: list[ChatRequest] = []
        open_pairs = {pair.id: pair for pair in pairs}
        for draw in range(self.config.max_reasks + 1):
            questions, known = self._recall(open_pairs, draw, context)
            requests += map(request, pack(unknown(questions, known)))
            open_pairs = {
                pair_id: open_pairs[pair_id]
                for pair_id, question in questions.items()
                if question.key in known and known[question.key].outcome != "decided"
            }
        return requests

    def _recall(
        self, pairs: Mapping[str, Pair], draw: int, context: AnnotateContext
    ) -> tuple[dict[str, Question], dict[JudgementKey, Judgement]]:
        """The question about each pair, by pair id, and what is known about them already."""
        questions = self._questions(pairs, draw, context)
        keys = [question.key for question in questions.values()]
        return questions, dict(context.ask.recall(keys)) if keys else {}

    def _questions(self, pairs: Mapping[str, Pair], draw: int, context: AnnotateContext) -> dict[str, Question]:
        as_chat: dict[str, bool] = {}
        fingerprints: dict[str, str] = {}
        questions = {}
        for pair_id, pair in pairs.items():
            member = choice(self.members, context.seed, "member", pair_id)
            if member.name not in fingerprints:
                role, completes = member.entry.role, member.entry.kind == "completion"
                as_chat[member.name] = completes and not context.ask.capabilities(role).completion
                fingerprints[member.name] = member.fingerprint(context.ask.judge(role), as_chat[member.name])
            comparison = compare(pair, pair_id, context.seed, draw)
            key = JudgementKey(fingerprints[member.name], pair_id, comparison.order, context.seed, draw)
            questions[pair_id] = Question(key, comparison, member, as_chat[member.name])
        return questions

    def _ask(self, questions: Sequence[Question], context: AnnotateContext) -> Iterator[tuple[Question, Judgement]]:
        """Ask in chunks, every member's requests together, and store what each chunk teaches before the next."""
        batches = list(pack(questions))
        chunks = list(chunked(batches, self.config.requests_per_chunk))
        for chunk in context.progress(chunks, "judging", len(chunks)) if len(chunks) > 1 else chunks:
            completions = context.ask([request(batch) for batch in chunk])
            learned = [
                pair
                for batch, completion in zip(chunk, completions, strict=True)
                for pair in zip(batch, read(batch[0].member, completion, len(batch)), strict=True)
            ]
            context.ask.learn({question.key: judgement for question, judgement in learned})
            yield from learned


def compare(pair: Pair, pair_id: str, seed: int, draw: int) -> Comparison:
    """The pair as the judge is shown it, in an order drawn for (seed, pair)."""
    order = "ab" if uniform(seed, "order", pair_id) < 0.5 else "ba"
    first, second = pair.canonical if order == "ab" else pair.canonical[::-1]
    return Comparison(pair_id, pair.instruction, first, second, order, draw)


def unknown(questions: Mapping[str, Question], known: Mapping[JudgementKey, Judgement]) -> list[Question]:
    """The questions that have no judgement yet."""
    return [question for question in questions.values() if question.key not in known]


def pack(questions: Iterable[Question]) -> Iterator[list[Question]]:
    """Batches of one member's questions, with an input and without apart, since they have different prompts.

    A question that is asked again is alone in its batch: its companions are not asked again with it.
    """
    groups: dict[tuple[str, bool], list[Question]] = {}
    for question in questions:
        groups.setdefault((question.member.name, bool(question.comparison.instruction.input)), []).append(question)
    for group in groups.values():
        again = group[0].key.draw > 0
        yield from chunked(group, 1 if again else group[0].member.entry.batch_size)


def request(batch: Sequence[Question]) -> ChatRequest:
    """The request that asks `batch`, whose questions share their member and draw."""
    first = batch[0]
    comparisons = [question.comparison for question in batch]
    return first.member.request(comparisons, seed=first.key.seed, draw=first.key.draw, as_chat=first.as_chat)


def read(member: Member, completion: Completion, count: int) -> list[Judgement]:
    """What `completion` says about the first `count` comparisons of its batch; the dummies after them are not read."""
    unread = "refused" if completion.finish_reason in REFUSALS else "unparsed"
    verdicts = parse(completion.text, member.entry.answer_format, member.entry.batch_size)[:count]
    return [Judgement(first, unread if first is None else "decided", completion.key) for first in verdicts]


def preference(pair: Pair, question: Question, judgement: Judgement) -> Preference:
    """The judgement in the pair's own order."""
    saw_1_first = (question.comparison.order == "ab") == pair.is_canonical
    p2 = None if judgement.first is None else 1 - judgement.first if saw_1_first else judgement.first
    return Preference(
        pair_id=question.key.pair_id,
        p2=p2,
        outcome=judgement.outcome,  # type: ignore[arg-type]
        member=question.member.name,
        order="12" if saw_1_first else "21",
        completion=judgement.completion,
    )


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of `size` items, the last of them possibly shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
