"""Evaluator directories as annotators: who judges a pair, which output is shown first, and how answers are gathered.

AlpacaEval's draws, reproduced to the bit, each `random.Random(text).choices(…)` with the pair's instruction in it:

    member   "annotator" + instruction + seed               over the names in the order of the file
    order    "is_switched_outputs" + columns + seed         over straight, switched
    noise    "noisy_preference" + instruction + seed        over none, 1, 2 with weights 1 − 2p, p, p

They leave the outputs out, so all pairs of an instruction share their draws; `draws: pair` draws for each pair apart.
Answers are independent for each of afarm's seeds in either case.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from afarm.errors import JudgeError
from afarm.interfaces import AnnotateContext, Annotator, BuildContext
from afarm.judges import (
    Ask,
    Capabilities,
    ChatRequest,
    Comparison,
    Completion,
    Judgement,
    JudgementKey,
    learn_as_they_land,
)
from afarm.keyed import choice, digest, uniform
from afarm.records import Pair, Preference
from afarm_plugins.alpaca_eval import AlpacaEvalConfig
from afarm_plugins.alpaca_eval.directory import DUMMY, Member, load
from afarm_plugins.alpaca_eval.template import whole_instruction

T = TypeVar("T")

REFUSALS = frozenset({"refusal", "content_filter"})
"""Finish reasons with which judges say that they decline to answer."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """A member with the judge that answers for it: `degraded` is what that judge cannot take of what it asks."""

    member: Member
    takes: Capabilities
    fingerprint: str
    degraded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """One draw of one member's judgement of one pair. `switched`: the judge sees output_2 first."""

    key: JudgementKey
    comparison: Comparison
    by: Assigned
    switched: bool


class AlpacaEvalAnnotator(Annotator):
    """Draws a member of the directory for each pair and asks the judge of its role."""

    def __init__(self, config: AlpacaEvalConfig | None, spec: str, context: BuildContext | None = None):
        """Raises `ConfigError` with every problem of the directory `spec`."""
        self.config = config or AlpacaEvalConfig()
        self.spec = spec
        self.members = {member.name: member for member in load(spec)}

    @property
    def identity(self) -> str:
        """A digest of the directory's settings and templates: where it lies makes no difference."""
        return digest([member.content for member in self.members.values()])

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """One preference a pair, in order; "unparsed" (or "refused") where no draw gave a readable verdict.

        Judgements already learned are not asked for again. Raises `JudgeError` and `BudgetError` as `context.ask` does.
        """
        noise = self._noise(pairs)
        open_pairs = {pair.id: pair for pair in pairs if pair.id not in noise}
        answers: dict[str, tuple[Question, Judgement]] = {}
        for draw in range(self.config.max_reasks + 1):
            questions, known = self._recall(open_pairs, draw, context)
            if missing := unknown(questions, known):
                known |= ask(missing, context)
            answers |= {pair_id: (question, known[question.key]) for pair_id, question in questions.items()}
            open_pairs = {i: p for i, p in open_pairs.items() if not settled(answers[i][1])}
        return [noise.get(pair.id) or preference(*answers[pair.id]) for pair in pairs]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """What `annotate` would send now: the draws that are not known yet. Re-asks after them cannot be foreseen."""
        requests: list[ChatRequest] = []
        noise = self._noise(pairs)
        open_pairs = {pair.id: pair for pair in pairs if pair.id not in noise}
        for draw in range(self.config.max_reasks + 1):
            questions, known = self._recall(open_pairs, draw, context)
            requests += map(request, pack(unknown(questions, known)))
            open_pairs = {
                pair_id: open_pairs[pair_id]
                for pair_id, question in questions.items()
                if question.key in known and not settled(known[question.key])
            }
        return requests

    def _noise(self, pairs: Iterable[Pair]) -> dict[str, Preference]:
        """The labels left to AlpacaEval's coin, which no judge needs to see."""
        p = self.config.p_label_flip
        if not p:
            return {}
        drawn = {
            pair.id: drawn_by_alpaca_eval(
                [None, 1, 2],
                "noisy_preference",
                whole_instruction(pair.instruction),
                self.config.seed,
                [1 - 2 * p, p, p],
            )
            for pair in pairs
        }
        return {i: Preference(i, float(value - 1), source="noise") for i, value in drawn.items() if value is not None}

    def _recall(
        self, pairs: Mapping[str, Pair], draw: int, context: AnnotateContext
    ) -> tuple[dict[str, Question], dict[JudgementKey, Judgement]]:
        """The question about each pair, by pair id, and what is known about them already."""
        questions = self._questions(pairs, draw, context)
        keys = [question.key for question in questions.values()]
        return questions, dict(context.ask.recall(keys)) if keys else {}

    def _questions(self, pairs: Mapping[str, Pair], draw: int, context: AnnotateContext) -> dict[str, Question]:
        assigned: dict[str, Assigned] = {}
        questions = {}
        for pair_id, pair in pairs.items():
            member = self._member(pair, pair_id, context.seed)
            if member.name not in assigned:
                assigned[member.name] = self._assign(member, context.ask)
            by = assigned[member.name]
            switched = self._switched(member, pair, pair_id, context.seed)
            shown = pair.swapped() if switched else pair
            order = "ab" if shown.is_canonical else "ba"
            comparison = Comparison(pair_id, pair.instruction, shown.output_1, shown.output_2, order, draw)
            key = JudgementKey(by.fingerprint, pair_id, order, context.seed, draw)
            questions[pair_id] = Question(key, comparison, by, switched)
        return questions

    def _member(self, pair: Pair, pair_id: str, seed: int) -> Member:
        names = list(self.members)
        if self.config.draws == "pair":
            return self.members[choice(names, seed, "member", pair_id)]
        text = whole_instruction(pair.instruction)
        return self.members[drawn_by_alpaca_eval(names, "annotator", text, self.config.seed)]

    def _switched(self, member: Member, pair: Pair, pair_id: str, seed: int) -> bool:
        """Whether the judge sees output_2 first."""
        if not member.entry.is_randomize_output_order:
            return False
        if self.config.draws == "pair":
            return (uniform(seed, "order", pair_id) < 0.5) != pair.is_canonical
        columns = {
            "instruction": whole_instruction(pair.instruction),
            "input": pair.instruction.input,
            "output_1": pair.output_1,
            "output_2": pair.output_2,
        }
        text = "".join(columns[name] for name in member.seed_columns)
        return drawn_by_alpaca_eval([False, True], "is_switched_outputs", text, self.config.seed)

    def _assign(self, member: Member, ask: Ask) -> Assigned:
        """Raises `JudgeError` where the member's judge is the offline one, or cannot take all that it asks."""
        judge, takes = ask.judge(member.role), ask.capabilities(member.role)
        if judge.startswith("offline:"):
            raise JudgeError(
                f"alpaca_eval:{self.spec}: {member.name} needs a language model to judge, and {judge} only simulates "
                f"one: it was made for --judge {member.made_for}; name that or another with --judge"
            )
        degraded = ask.degraded(member.request([DUMMY], takes, seed=0, draw=0))
        fingerprint = digest(member.content, judge, takes.completion, degraded)
        return Assigned(member, takes, fingerprint, degraded)


def drawn_by_alpaca_eval(
    options: Sequence[T], purpose: str, text: str, seed: int, weights: Sequence[float] | None = None
) -> T:
    """One of `options`, as alpaca_eval 0.6.6 draws it for this text."""
    return random.Random(f"{purpose}{text}{seed}").choices(options, weights)[0]


def settled(judgement: Judgement) -> bool:
    """Whether nothing is gained by asking again."""
    return judgement.outcome in ("decided", "draw")


def unknown(questions: Mapping[str, Question], known: Mapping[JudgementKey, Judgement]) -> list[Question]:
    """The questions that have no judgement yet."""
    return [question for question in questions.values() if question.key not in known]


def pack(questions: Iterable[Question]) -> Iterator[list[Question]]:
    """Batches of one member's questions. One that is asked again is alone: its companions are not asked with it."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.by.member.name, []).append(question)
    for group in groups.values():
        yield from chunked(group, 1 if group[0].key.draw else group[0].by.member.entry.batch_size)


def ask(questions: Sequence[Question], context: AnnotateContext) -> dict[JudgementKey, Judgement]:
    """Ask, every member's requests together, and store what the answers teach as they land."""
    batches = list(pack(questions))
    answers = context.progress(context.ask.stream(map(request, batches)), "judge requests", len(batches))
    return learn_as_they_land(context.ask, batches, answers, _learned)


def _learned(batch: Sequence[Question], completion: Completion) -> dict[JudgementKey, Judgement]:
    judgements = read(batch[0].by.member, completion, len(batch))
    return {question.key: judgement for question, judgement in zip(batch, judgements, strict=True)}


def request(batch: Sequence[Question]) -> ChatRequest:
    """The request that asks `batch`, whose questions share their member and draw."""
    first = batch[0]
    comparisons = [question.comparison for question in batch]
    return first.by.member.request(comparisons, first.by.takes, seed=first.key.seed, draw=first.key.draw)


def read(member: Member, completion: Completion, count: int) -> list[Judgement]:
    """What `completion` says about the first `count` comparisons of its batch; the dummies after them are not read."""
    verdicts = member.parser.read(completion, member.entry.batch_size)[:count]
    unread = "refused" if completion.finish_reason in REFUSALS else "unparsed"
    return [
        Judgement(verdict.first, unread if verdict.outcome == "unparsed" else verdict.outcome, completion.key)
        for verdict in verdicts
    ]


def preference(question: Question, judgement: Judgement) -> Preference:
    """The judgement in the pair's own order."""
    first = judgement.first
    return Preference(
        pair_id=question.key.pair_id,
        p2=None if first is None else first if question.switched else 1 - first,
        outcome=judgement.outcome,  # type: ignore[arg-type]
        member=question.by.member.name,
        order="21" if question.switched else "12",
        completion=judgement.completion,
        degraded=question.by.degraded,
    )


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of `size` items, the last of them possibly shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
