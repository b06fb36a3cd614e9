"""Labels of pairs from LLM judges: both orders, votes, batches per prompt, and re-asks.

An annotator says how each pair is presented first: by which prompt, and in which order of its outputs. The other order,
further votes, the packing of pairs into prompts, re-asks and the label are the same for all annotators. Judgements that
the ledger holds are not asked for again, and each new one is stored before it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from afarm.core.config import Config, setting
from afarm.core.interfaces import AnnotateContext, Annotator
from afarm.core.judge import ChatRequest, Completion, Judgement, JudgementKey, ShownPair
from afarm.core.records import Pair, Preference
from afarm.core.seeding import uniform
from afarm.judging.refusals import FirstAnswers

K = TypeVar("K", bound=Hashable)

REFUSALS = frozenset({"refusal", "content_filter"})
"""Finish reasons with which judges decline to answer."""

SAMPLES_PER_VOTE = 100
"""Sample indices per vote about a pair: those after the first are re-asks."""

STORED_TOGETHER = 64
"""Judgements per transaction of the ledger. Their answers are there already: none is bought twice."""

SETTLED = ("decided", "draw")
"""Outcomes of a judgement after which asking again gains nothing."""

REMINDER = "Answer in exactly the form asked for above, and write nothing else."
"""What a re-ask adds to the prompt."""

EVEN = 1e-9
"""Distance from one half within which a mean is even: swapping a pair's outputs rounds otherwise."""


class JudgingConfig(Config):
    """Votes and orders per pair, and the rule that makes a label of them."""

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


# -------------------------------------------------------------------------------------- prompts and presentations


@dataclass(frozen=True, slots=True)
class JudgePrompt(ABC):
    """A prompt bound to the judge that answers it.

    `batch_size` pairs share a prompt. `fingerprint` changes with whatever changes answers (prompt, parameters, judge):
    judgements are stored under it. `degraded` names the parameters that the judge cannot take, `judge` is its identity.
    """

    name: str
    batch_size: int
    fingerprint: str
    degraded: tuple[str, ...]
    judge: str = field(default="", kw_only=True)

    @abstractmethod
    def request(self, pairs: Sequence[ShownPair], *, seed: int, sample_index: int) -> ChatRequest:
        """Build the request about up to `batch_size` pairs."""

    @abstractmethod
    def read(self, completion: Completion, count: int) -> list[Judgement]:
        """Parse the judgement of each of the first `count` pairs of the request.

        Raises nothing, however odd the text: an answer that cannot be read is a `Judgement` with the outcome
        "unparsed", or "refused" (`REFUSALS`).
        """


ParsedVerdict = float | Literal["draw"] | None
"""The probability that the output shown first is better, "draw", or None if an answer does not say."""


def build_judgements(completion: Completion, verdicts: Iterable[ParsedVerdict]) -> list[Judgement]:
    """Build judgements from the verdicts in `completion`; None becomes "refused" or "unparsed"."""
    unread, key = "refused" if completion.finish_reason in REFUSALS else "unparsed", completion.key
    return [
        Judgement(None, v or unread, key) if v is None or v == "draw" else Judgement(v, "decided", key)
        for v in verdicts
    ]


def show_pair(pair: Pair, order: str, pair_id: str = "") -> ShownPair:
    """`pair` as a judge sees it: its outputs in canonical order ("ab") or the other way round ("ba").

    `pair_id` is the id of `pair` if it is at hand: making it costs a hash.
    """
    first, second = pair.canonical if order == "ab" else pair.canonical[::-1]
    return ShownPair(pair_id or pair.id, pair.instruction, first, second, order)


def draw_order(seed: int, pair_id: str) -> str:
    """Draw the order of a pair, "ab" or "ba", by seed: swapping the outputs mirrors the label."""
    return "ab" if uniform(seed, "order", pair_id) < 0.5 else "ba"


@dataclass(frozen=True, slots=True)
class Presentation:
    """One presentation of a pair to a judge: the prompt, the order shown, and the vote it counts toward.

    Presentations by one prompt share a request only if their `batch` is equal.
    """

    prompt: JudgePrompt
    pair: ShownPair
    vote: int = 0
    batch: Hashable = None

    def swapped(self) -> Presentation:
        """The presentation in the other order. Never in the same request: a judge that reads both would agree."""
        pair = replace(self.pair, first=self.pair.second, second=self.pair.first, order=self.pair.order[::-1])
        return replace(self, pair=pair, batch=("swapped", self.batch))

    def draw(self, attempt: int, seed: int) -> JudgementDraw:
        """One draw of its judgement: the first (`attempt` 0) or a re-ask.

        Re-asks of a vote shift the samples of no other vote. The first vote's samples are those of an annotator without
        votes, so that their answers are shared.
        """
        sample_index = self.vote * SAMPLES_PER_VOTE + attempt
        pair = self.pair if self.pair.sample_index == sample_index else replace(self.pair, sample_index=sample_index)
        key = JudgementKey(self.prompt.fingerprint, pair.pair_id, pair.order, seed, sample_index)
        return JudgementDraw(key, pair, self.prompt, (self.batch, sample_index), is_reask=attempt > 0)


@dataclass(frozen=True, slots=True)
class JudgementDraw:
    """One sample of a presentation's judgement. A re-ask shares its request with no other."""

    key: JudgementKey
    pair: ShownPair
    prompt: JudgePrompt
    batch: Hashable
    is_reask: bool

    def request(self) -> ChatRequest:
        """The request that asks for this draw alone."""
        return _request([self])


# ------------------------------------------------------------------------------------------------- asking


def collect_judgements(
    presentations: Mapping[K, Presentation], attempts: int, context: AnnotateContext
) -> dict[K, Judgement]:
    """Ask for the judgement of each presentation.

    It is the first of `attempts` draws that can be read, or else the last. Judgements in the ledger are not asked for
    again. Raises `JudgeError` and `BudgetError` as `context.ask` does.
    """
    answers: dict[K, Judgement] = {}
    waiting = dict(presentations)
    first = defaultdict[str, FirstAnswers](FirstAnswers)
    for attempt in range(attempts):
        draws, stored = _recall(waiting, attempt, context)
        for draw in draws.values():  # an earlier start's answers count as well
            if draw.key in stored and stored[draw.key].outcome in SETTLED:
                first[draw.prompt.name].about = None
        if missing := _not_stored(draws, stored):
            stored |= _ask(missing, context, first)
        answers |= {slot: stored[draw.key] for slot, draw in draws.items()}
        waiting = {slot: shown for slot, shown in waiting.items() if answers[slot].outcome not in SETTLED}
    return answers


def pending_requests(
    presentations: Mapping[K, Presentation], attempts: int, context: AnnotateContext
) -> list[ChatRequest]:
    """List the requests that `collect_judgements` would send now; re-asks cannot be foreseen."""
    requests: list[ChatRequest] = []
    waiting = dict(presentations)
    for attempt in range(attempts):
        draws, stored = _recall(waiting, attempt, context)
        requests += map(_request, _pack(_not_stored(draws, stored)))
        waiting = {
            slot: waiting[slot]
            for slot, draw in draws.items()
            if draw.key in stored and stored[draw.key].outcome not in SETTLED
        }
    return requests


def _recall(
    presentations: Mapping[K, Presentation], attempt: int, context: AnnotateContext
) -> tuple[dict[K, JudgementDraw], dict[JudgementKey, Judgement]]:
    """The draw of each presentation, and the judgements of these draws that the ledger holds."""
    draws = {slot: shown.draw(attempt, context.seed) for slot, shown in presentations.items()}
    keys = [draw.key for draw in draws.values()]
    return draws, dict(context.ask.recall(keys)) if keys else {}


def _not_stored(draws: Mapping[K, JudgementDraw], stored: Mapping[JudgementKey, Judgement]) -> list[JudgementDraw]:
    return [draw for draw in draws.values() if draw.key not in stored]


def _ask(
    draws: Sequence[JudgementDraw], context: AnnotateContext, first: Mapping[str, FirstAnswers]
) -> dict[JudgementKey, Judgement]:
    """Ask in whole batches, stored as answers arrive: after a kill the others are packed as before.

    Raises `JudgeError` if none of the `first` answers to a prompt can be read.
    """
    batches = list(_pack(draws))
    stream = context.ask.stream(map(_request, batches))
    answers = context.progress(stream, "judge requests", len(batches)) if len(batches) > 1 else stream
    learned: dict[JudgementKey, Judgement] = {}
    fresh: dict[JudgementKey, Judgement] = {}
    try:
        for index, completion in answers:
            batch, prompt = batches[index], batches[index][0].prompt
            judgements = prompt.read(completion, len(batch))
            outcomes = {judgement.outcome for judgement in judgements}
            if not outcomes.isdisjoint(SETTLED):
                first[prompt.name].about = None
            elif "refused" not in outcomes:
                first[prompt.name].add_unreadable(completion.text, prompt.judge, _request(batch))
            fresh |= {draw.key: judgement for draw, judgement in zip(batch, judgements, strict=True)}
            if len(fresh) >= STORED_TOGETHER:
                context.ask.learn(fresh)
                learned |= fresh
                fresh = {}
    finally:  # also what was learned before a failure or an interrupt
        stream.close()  # at once: the failure's traceback would keep it open
        if fresh:
            context.ask.learn(fresh)
    return learned | fresh


def _pack(draws: Iterable[JudgementDraw]) -> Iterator[list[JudgementDraw]]:
    """Batches of one prompt's draws. A re-ask is alone: its companions are not asked again."""
    groups: dict[Hashable, list[JudgementDraw]] = {}
    for draw in draws:
        groups.setdefault((draw.prompt.fingerprint, draw.batch), []).append(draw)
    for group in groups.values():
        size = 1 if group[0].is_reask else group[0].prompt.batch_size
        yield from (group[start : start + size] for start in range(0, len(group), size))


def _request(batch: Sequence[JudgementDraw]) -> ChatRequest:
    """Build the request about `batch`. A re-ask repeats the form: the same words get the same reply."""
    first = batch[0]
    request = first.prompt.request([d.pair for d in batch], seed=first.key.seed, sample_index=first.key.sample_index)
    if not first.is_reask or not request.messages:  # a text to complete ends where its answer begins
        return request
    *before, last = request.messages
    return replace(request, messages=(*before, replace(last, content=f"{last.content}\n\n{REMINDER}")))


# ------------------------------------------------------------------------------------------------- labels


def label_pairs(
    pairs: Sequence[Pair], presentations: Sequence[Presentation], config: JudgingConfig, context: AnnotateContext
) -> list[Preference]:
    """Label each pair from its first presentation: one preference per pair, in order.

    A pair whose answers could not be read is "unparsed" (or "refused"). Judgements in the ledger are not asked for
    again. Raises `JudgeError` and `BudgetError` as `context.ask` does.
    """
    answers = collect_judgements(per_label(presentations, config), config.max_reasks + 1, context)
    return [_label(pair, shown, answers, config) for pair, shown in zip(pairs, presentations, strict=True)]


Slot = tuple[str, str, int]
"""Pair id, order and vote."""


def per_label(presentations: Sequence[Presentation], config: JudgingConfig) -> dict[Slot, Presentation]:
    """All presentations that make the labels, from the first of each pair: every vote in every order."""
    return {_slot(shown): shown for first in presentations for shown in _label_presentations(first, config)}


def _slot(shown: Presentation) -> Slot:
    return shown.pair.pair_id, shown.pair.order, shown.vote


def _label_presentations(first: Presentation, config: JudgingConfig) -> list[Presentation]:
    """List the presentations that make one label, those of a vote next to each other."""
    orders = [first, first.swapped()] if config.both_orders else [first]
    return [replace(shown, vote=vote) for vote in range(config.votes) for shown in orders]


def _label(pair: Pair, first: Presentation, answers: Mapping[Slot, Judgement], config: JudgingConfig) -> Preference:
    presentations = _label_presentations(first, config)
    judgements = [answers[_slot(shown)] for shown in presentations]
    verdicts = []
    for judgement, shown in zip(judgements, presentations, strict=True):
        first_wins = judgement.p_first_shown
        p2 = first_wins if first_wins is None or _order(pair, shown) == "21" else 1 - first_wins
        verdicts.append(Preference(first.pair.pair_id, p2, judgement.outcome))  # type: ignore[arg-type]
    n_orders = 1 + config.both_orders
    votes = [combine_orders(verdicts[i : i + n_orders]) for i in range(0, len(verdicts), n_orders)]
    return replace(
        combine_votes(votes, config.vote),
        member=first.prompt.name,
        order="both" if config.both_orders else _order(pair, first),
        completion=",".join(dict.fromkeys(judgement.completion for judgement in judgements)),
        degraded=first.prompt.degraded,
        judge=first.prompt.judge,
    )


def _order(pair: Pair, shown: Presentation) -> str:
    """The order in which the judge saw the pair's own outputs: "12" or "21"."""
    return "12" if (shown.pair.order == "ab") == pair.is_canonical else "21"


def combine_orders(verdicts: Sequence[Preference]) -> Preference:
    """Combine the verdicts on a pair in both orders into their mean, and into a draw if that is even.

    Of two plain verdicts, agreement gives the label and disagreement a draw; probabilities are averaged, and a draw in
    one order counts one half. If one order has no verdict there is nothing to agree with, and the pair has none.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    wins = [verdict.win for verdict in verdicts if verdict.win is not None]
    if len(wins) < len(verdicts):
        return _without_verdict(verdicts)
    mean = sum(wins) / len(wins)
    return _label_as(verdicts[0], None if abs(mean - 0.5) < EVEN else mean)


def combine_votes(verdicts: Sequence[Preference], rule: str) -> Preference:
    """Combine several votes, leaving those without a verdict out; by `rule`:

    "majority": the side that more votes are on; a tie is a draw. "mean": the mean of the votes, in which a draw counts
    one half; draws alone are a draw. A single vote stands as it is.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    wins = [verdict.win for verdict in verdicts if verdict.win is not None]
    if not wins:
        return _without_verdict(verdicts)
    if rule == "mean":
        decided = any(verdict.outcome == "decided" for verdict in verdicts)
        return _label_as(verdicts[0], sum(wins) / len(wins) if decided else None)
    lead = sum((win > 0.5) - (win < 0.5) for win in wins)
    return _label_as(verdicts[0], float(lead > 0) if lead else None)


def _label_as(verdict: Preference, p2: float | None) -> Preference:
    return replace(verdict, p2=p2, outcome="draw" if p2 is None else "decided")


def _without_verdict(verdicts: Sequence[Preference]) -> Preference:
    refused = any(verdict.outcome == "refused" for verdict in verdicts)
    return replace(verdicts[0], p2=None, outcome="refused" if refused else "unparsed")


# ------------------------------------------------------------------------------------------------- annotators


class PairwiseAnnotator(Annotator):
    """The base of annotators that show pairs to LLM judges, in several votes and orders.

    A subclass says how each pair is presented first. `config` says how many votes and orders make a label.
    `PromptAnnotator` is the subclass for a single prompt.
    """

    config: JudgingConfig

    @abstractmethod
    def present(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Presentation]:
        """The first presentation of each pair, in order. Draws are keyed by `context.seed` and the pair's id."""

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """See `label_pairs`."""
        return label_pairs(pairs, self._in_order(pairs, context), self.config, context)

    def _in_order(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Presentation]:
        rows, order = zip(pairs, self.present(pairs, context), strict=True), context.order
        return [shown if order in ("", _order(pair, shown)) else shown.swapped() for pair, shown in rows]

    def verdict_mass(self, member: str, completion: Completion) -> float | None:
        """The probability that an answer's tokens leave to all verdicts that it is read for.

        NaN if the judge gave no log-probabilities, None (as here) if verdicts are read from the text.
        """
        return None

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """See `pending_requests`."""
        presentations = per_label(self._in_order(pairs, context), self.config)
        return pending_requests(presentations, self.config.max_reasks + 1, context)
