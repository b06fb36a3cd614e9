"""From pairs to labels by way of a judge: in one order or both, for one vote or several, until answers can be read.

An annotator says what its judge is shown first of each pair, and who asks: a `Look`. The looks in the other order and
for further votes, their packing into prompts, the re-asks and the label are the same for all. What is known is not
asked, and what is learned is stored before it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from afarm.core.config import Config, setting
from afarm.core.interfaces import AnnotateContext
from afarm.core.judge import (
    SAMPLES_PER_VOTE,
    ChatRequest,
    Completion,
    Judgement,
    JudgementKey,
    ShownPair,
)
from afarm.core.records import Outcome, Pair, Preference

K = TypeVar("K", bound=Hashable)

REFUSALS = frozenset({"refusal", "content_filter"})
"""Finish reasons with which judges say that they decline to answer."""

STORED_TOGETHER = 64
"""Judgements that go to the ledger in one transaction. Their answers are there already: none is bought twice."""

SETTLED = ("decided", "draw")
"""Outcomes of a judgement after which nothing is gained by asking again."""

EVEN = 1e-9
"""How near to one half a mean may lie to be even: swapping a pair's outputs rounds otherwise."""


class JudgingConfig(Config):
    """How often each pair is judged, and how that becomes its label."""

    both_orders: bool = setting(
        False, "judge each pair in both orders: agreement gives the label, disagreement is a draw"
    )
    votes: int = setting(1, "independent draws of the judgement of each pair", ge=1)
    vote: Literal["majority", "mean"] = setting(
        "majority", "how several votes become a label: majority (a tie is a draw) or mean (a soft label)"
    )
    max_reasks: int = setting(
        2,
        "how often a pair whose answer cannot be read is asked again, alone, before it is unparsed",
        ge=0,
        lt=SAMPLES_PER_VOTE,
    )


# ------------------------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True, slots=True)
class JudgePrompt(ABC):
    """Who asks, and the judge that answers.

    `batch_size` comparisons make a prompt. `fingerprint` changes with whatever changes answers (prompt, parameters,
    judge), `degraded` is what that judge cannot take of what is asked, and `judge` its identity.
    """

    name: str
    batch_size: int
    fingerprint: str
    degraded: tuple[str, ...]
    judge: str = field(default="", kw_only=True)

    @abstractmethod
    def request(self, comparisons: Sequence[ShownPair], *, seed: int, sample_index: int) -> ChatRequest:
        """The request that asks about up to `batch_size` comparisons."""

    @abstractmethod
    def read(self, completion: Completion, count: int) -> list[Judgement]:
        """What the answer says about each of the first `count` comparisons of its request."""


@dataclass(frozen=True, slots=True)
class Look:
    """One of the judgements that make a label: who asks, what the judge is shown, and for which vote.

    `batch` says which looks of a questioner may share a prompt: those with an equal one.
    """

    by: JudgePrompt
    shown: ShownPair
    vote: int = 0
    batch: Hashable = None

    def turned(self) -> Look:
        """The same in the other order. Never in the same prompt: a judge that reads a pair twice would agree."""
        shown, order = self.shown, {"ab": "ba", "ba": "ab"}[self.shown.order]
        shown = replace(shown, first=shown.second, second=shown.first, order=order)
        return replace(self, shown=shown, batch=("turned", self.batch))

    def question(self, reask: int, seed: int) -> Question:
        """Its question, at first (0) or when it is asked again.

        A vote's re-asks are its own and shift no other vote; the first vote's draws are those of an annotator without
        votes, and so known to it.
        """
        draw = self.vote * SAMPLES_PER_VOTE + reask
        shown = replace(self.shown, sample_index=draw)
        key = JudgementKey(self.by.fingerprint, shown.pair_id, shown.order, seed, draw)
        return Question(key, shown, self.by, (self.batch, draw), again=reask > 0)


@dataclass(frozen=True, slots=True)
class Question:
    """One draw of a look. One that is asked again shares its prompt with none."""

    key: JudgementKey
    comparison: ShownPair
    by: JudgePrompt
    batch: Hashable
    again: bool


# ------------------------------------------------------------------------------------------------- asking


def gather(looks: Mapping[K, Look], rounds: int, context: AnnotateContext) -> dict[K, Judgement]:
    """The judgement of each look: the first of `rounds` draws that could be read, or else the last.

    Judgements already learned are not asked for again. Raises `JudgeError` and `BudgetError` as `context.ask` does.
    """
    answers: dict[K, Judgement] = {}
    waiting = dict(looks)
    for reask in range(rounds):
        questions, known = _recall(waiting, reask, context)
        if missing := _unknown(questions, known):
            known |= _ask(missing, context)
        answers |= {slot: known[question.key] for slot, question in questions.items()}
        waiting = {slot: look for slot, look in waiting.items() if answers[slot].outcome not in SETTLED}
    return answers


def foresee(looks: Mapping[K, Look], rounds: int, context: AnnotateContext) -> list[ChatRequest]:
    """What `gather` would send now: the draws that are not known yet. Re-asks after them cannot be foreseen."""
    requests: list[ChatRequest] = []
    waiting = dict(looks)
    for reask in range(rounds):
        questions, known = _recall(waiting, reask, context)
        requests += map(_request, _pack(_unknown(questions, known)))
        waiting = {
            slot: waiting[slot]
            for slot, question in questions.items()
            if question.key in known and known[question.key].outcome not in SETTLED
        }
    return requests


def _recall(
    looks: Mapping[K, Look], reask: int, context: AnnotateContext
) -> tuple[dict[K, Question], dict[JudgementKey, Judgement]]:
    """The question of each look, and what is known about them already."""
    questions = {slot: look.question(reask, context.seed) for slot, look in looks.items()}
    keys = [question.key for question in questions.values()]
    return questions, dict(context.ask.recall(keys)) if keys else {}


def _unknown(questions: Mapping[K, Question], known: Mapping[JudgementKey, Judgement]) -> list[Question]:
    """The questions that have no judgement yet."""
    return [question for question in questions.values() if question.key not in known]


def _ask(questions: Sequence[Question], context: AnnotateContext) -> dict[JudgementKey, Judgement]:
    """Ask, every questioner's requests together, and store what the answers teach as they land.

    What is stored is what whole batches taught: after a kill the others are packed as they were, and the answers that
    had reached the ledger are found there.
    """
    batches = list(_pack(questions))
    answers = context.ask.stream(map(_request, batches))
    shown = context.progress(answers, "judge requests", len(batches)) if len(batches) > 1 else answers
    learned: dict[JudgementKey, Judgement] = {}
    fresh: dict[JudgementKey, Judgement] = {}
    try:
        for index, completion in shown:
            fresh |= _learned(batches[index], completion)
            if len(fresh) >= STORED_TOGETHER:
                context.ask.learn(fresh)
                learned |= fresh
                fresh = {}
    finally:  # also what was learned before a failure or an interrupt
        if fresh:
            context.ask.learn(fresh)
    return learned | fresh


def _learned(batch: Sequence[Question], completion: Completion) -> dict[JudgementKey, Judgement]:
    judgements = batch[0].by.read(completion, len(batch))
    return {question.key: judgement for question, judgement in zip(batch, judgements, strict=True)}


def _pack(questions: Iterable[Question]) -> Iterator[list[Question]]:
    """Batches of one questioner's questions. One that is asked again is alone: its companions are not asked again."""
    groups: dict[Hashable, list[Question]] = {}
    for question in questions:
        groups.setdefault((question.by.fingerprint, question.batch), []).append(question)
    for group in groups.values():
        size = 1 if group[0].again else group[0].by.batch_size
        yield from (group[start : start + size] for start in range(0, len(group), size))


def _request(batch: Sequence[Question]) -> ChatRequest:
    """The request that asks `batch`, whose questions share their questioner and draw."""
    first = batch[0]
    comparisons = [question.comparison for question in batch]
    return first.by.request(comparisons, seed=first.key.seed, sample_index=first.key.sample_index)


# ------------------------------------------------------------------------------------------------- labels


def judge(
    pairs: Sequence[Pair], looks: Sequence[Look], config: JudgingConfig, context: AnnotateContext
) -> list[Preference]:
    """One preference a pair, in order, from the first look at each; "unparsed" (or "refused") where none could be read.

    Judgements already learned are not asked for again. Raises `JudgeError` and `BudgetError` as `context.ask` does.
    """
    answers = gather(_slots(looks, config), config.max_reasks + 1, context)
    return [_label(pair, look, answers, config) for pair, look in zip(pairs, looks, strict=True)]


def plan(looks: Sequence[Look], config: JudgingConfig, context: AnnotateContext) -> list[ChatRequest]:
    """What `judge` would send now: the draws that are not known yet. Re-asks after them cannot be foreseen."""
    return foresee(_slots(looks, config), config.max_reasks + 1, context)


Slot = tuple[str, str, int]
"""Pair, order and vote."""


def _slots(looks: Sequence[Look], config: JudgingConfig) -> dict[Slot, Look]:
    return {_slot(look): look for first in looks for look in _all_of(first, config)}


def _slot(look: Look) -> Slot:
    return look.shown.pair_id, look.shown.order, look.vote


def _all_of(first: Look, config: JudgingConfig) -> list[Look]:
    """The looks that make a label, those of a vote together."""
    orders = [first, first.turned()] if config.both_orders else [first]
    return [replace(look, vote=vote) for vote in range(config.votes) for look in orders]


def _label(pair: Pair, first: Look, answers: Mapping[Slot, Judgement], config: JudgingConfig) -> Preference:
    """The label that the judgements of a pair's looks make together."""
    looks = _all_of(first, config)
    judgements = [answers[_slot(look)] for look in looks]
    verdicts = [_verdict(judgement, _order(pair, look)) for look, judgement in zip(looks, judgements, strict=True)]
    seen = 1 + config.both_orders
    votes = [of_orders(verdicts[i : i + seen]) for i in range(0, len(verdicts), seen)]
    label = of_votes(votes, config.vote)
    return Preference(
        pair_id=first.shown.pair_id,
        p2=label.p2,
        outcome=label.outcome,
        member=first.by.name,
        order="both" if config.both_orders else _order(pair, first),
        completion=",".join(dict.fromkeys(judgement.completion for judgement in judgements)),
        degraded=first.by.degraded,
        judge=first.by.judge,
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found about a pair in its own order; `p2` as in `afarm.core.records.Preference`."""

    p2: float | None
    outcome: Outcome = "decided"

    @property
    def share(self) -> float:
        """What it counts in a mean: a draw one half."""
        return 0.5 if self.p2 is None else self.p2


def _order(pair: Pair, look: Look) -> str:
    """Which of the pair's own outputs the judge saw first."""
    return "12" if (look.shown.order == "ab") == pair.is_canonical else "21"


def _verdict(judgement: Judgement, order: str) -> Verdict:
    """The judgement in the pair's own order."""
    first = judgement.p_first_shown
    p2 = None if first is None else 1 - first if order == "12" else first
    return Verdict(p2, judgement.outcome)  # type: ignore[arg-type]


def of_orders(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict over the orders that the outputs were shown in: the mean, and a draw where that is even.

    So of two plain verdicts, agreement gives the label and disagreement a draw; probabilities are averaged, and a draw
    in one order counts one half. Where one order has no verdict there is nothing to agree with, and none is given.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    if any(verdict.outcome not in SETTLED for verdict in verdicts):
        return _without_verdict(verdicts)
    mean = sum(verdict.share for verdict in verdicts) / len(verdicts)
    return Verdict(None, "draw") if abs(mean - 0.5) < EVEN else Verdict(mean)


def of_votes(verdicts: Sequence[Verdict], rule: str) -> Verdict:
    """The verdict of several votes, those without one left out; by `rule`:

    "majority": the side that more votes are on; as many on either is a draw. "mean": the mean of the votes, in which a
    draw counts one half; draws alone are a draw. A single vote stands as it is.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    cast = [verdict for verdict in verdicts if verdict.outcome in SETTLED]
    if not cast:
        return _without_verdict(verdicts)
    if rule == "mean":
        drawn = all(verdict.outcome == "draw" for verdict in cast)
        return Verdict(None, "draw") if drawn else Verdict(sum(verdict.share for verdict in cast) / len(cast))
    lead = sum((verdict.share > 0.5) - (verdict.share < 0.5) for verdict in cast)
    return Verdict(float(lead > 0)) if lead else Verdict(None, "draw")


def _without_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    return Verdict(None, "refused" if any(v.outcome == "refused" for v in verdicts) else "unparsed")
