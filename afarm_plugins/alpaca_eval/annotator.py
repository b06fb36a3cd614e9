"""Evaluator directories as annotators: who judges a pair, and which output is shown first.

AlpacaEval's draws, reproduced to the bit, each `random.Random(text).choices(…)` with the pair's instruction in it:

    member   "annotator" + instruction + seed               over the names in the order of the file
    order    "is_switched_outputs" + columns + seed         over straight, switched
    noise    "noisy_preference" + instruction + seed        over none, 1, 2 with weights 1 − 2p, p, p

They leave the outputs out, so all pairs of an instruction share their draws; `draws: pair` draws for each pair apart.
Answers are independent for each of afarm's seeds in either case.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from afarm import (
    AnnotateContext,
    Annotator,
    Ask,
    BuildContext,
    Capabilities,
    ChatRequest,
    Completion,
    JudgeError,
    Judgement,
    Pair,
    Preference,
    ShownPair,
    seeding,
)
from afarm.judging.pairwise import REFUSALS, JudgePrompt, Look, judge, plan
from afarm_plugins.alpaca_eval import AlpacaEvalConfig
from afarm_plugins.alpaca_eval.directory import DUMMY, Member, load
from afarm_plugins.alpaca_eval.template import whole_instruction

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Assigned(JudgePrompt):
    """A member with the judge that answers for it, and what that takes."""

    member: Member
    takes: Capabilities

    def request(self, comparisons: Sequence[ShownPair], *, seed: int, sample_index: int) -> ChatRequest:
        return self.member.request(comparisons, self.takes, seed=seed, sample_index=sample_index)

    def read(self, completion: Completion, count: int) -> list[Judgement]:
        """The dummies that fill the batch up are not read."""
        verdicts = self.member.parser.read(completion, self.member.entry.batch_size)[:count]
        unread = "refused" if completion.finish_reason in REFUSALS else "unparsed"
        return [
            Judgement(verdict.first, unread if verdict.outcome == "unparsed" else verdict.outcome, completion.key)
            for verdict in verdicts
        ]


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
        return seeding.digest([member.content for member in self.members.values()])

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """One preference a pair, in order; "unparsed" (or "refused") where no draw gave a readable verdict.

        Judgements already learned are not asked for again. Raises `JudgeError` and `BudgetError` as `context.ask` does.
        """
        noise = self._noise(pairs)
        shown = [pair for pair in pairs if pair.id not in noise]
        judged = iter(judge(shown, self._looks(shown, context), self.config, context))
        return [noise.get(pair.id) or next(judged) for pair in pairs]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """What `annotate` would send now: the draws that are not known yet. Re-asks after them cannot be foreseen."""
        noise = self._noise(pairs)
        return plan(self._looks([pair for pair in pairs if pair.id not in noise], context), self.config, context)

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

    def _looks(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Look]:
        """The first look at each pair."""
        assigned: dict[str, Assigned] = {}
        looks = []
        for pair in pairs:
            pair_id = pair.id
            member = self._member(pair, pair_id, context.seed)
            if member.name not in assigned:
                assigned[member.name] = self._assign(member, context.ask)
            shown = pair.swapped() if self._switched(member, pair, pair_id, context.seed) else pair
            order = "ab" if shown.is_canonical else "ba"
            comparison = ShownPair(pair_id, pair.instruction, shown.output_1, shown.output_2, order)
            looks.append(Look(assigned[member.name], comparison))
        return looks

    def _member(self, pair: Pair, pair_id: str, seed: int) -> Member:
        names = list(self.members)
        if self.config.draws == "pair":
            return self.members[seeding.choice(names, seed, "member", pair_id)]
        text = whole_instruction(pair.instruction)
        return self.members[drawn_by_alpaca_eval(names, "annotator", text, self.config.seed)]

    def _switched(self, member: Member, pair: Pair, pair_id: str, seed: int) -> bool:
        """Whether the judge sees output_2 first."""
        if not member.entry.is_randomize_output_order:
            return False
        if self.config.draws == "pair":
            return (seeding.uniform(seed, "order", pair_id) < 0.5) != pair.is_canonical
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
        answers, takes = ask.judge(member.role), ask.capabilities(member.role)
        if answers.startswith("offline:"):
            raise JudgeError(
                f"alpaca_eval:{self.spec}: {member.name} needs a language model to judge, and {answers} only simulates "
                f"one: it was made for --judge {member.made_for}; name that or another with --judge"
            )
        degraded = ask.degraded(member.request([DUMMY], takes, seed=0, sample_index=0))
        fingerprint = seeding.digest(member.content, answers, takes.completion, degraded)
        return Assigned(member.name, member.entry.batch_size, fingerprint, degraded, member, takes, judge=answers)


def drawn_by_alpaca_eval(
    options: Sequence[T], purpose: str, text: str, seed: int, weights: Sequence[float] | None = None
) -> T:
    """One of `options`, as alpaca_eval 0.6.6 draws it for this text."""
    return random.Random(f"{purpose}{text}{seed}").choices(options, weights)[0]
