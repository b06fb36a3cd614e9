"""Evaluator directories as annotators: the member that judges a pair, and the order it sees.

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
from afarm.judging import JudgePrompt, PairwiseAnnotator, Presentation, build_judgements, draw_order, show_pair
from afarm_plugins.alpaca_eval import AlpacaEvalConfig
from afarm_plugins.alpaca_eval.directory import DUMMY, DirectoryMember, load
from afarm_plugins.alpaca_eval.template import whole_instruction

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BoundEvaluator(JudgePrompt):
    """A member of a directory bound to the judge that answers it, and what that judge takes."""

    member: DirectoryMember
    capabilities: Capabilities

    def request(self, pairs: Sequence[ShownPair], *, seed: int, sample_index: int) -> ChatRequest:
        """See `JudgePrompt.request`."""
        return self.member.request(pairs, self.capabilities, seed=seed, sample_index=sample_index)

    def read(self, completion: Completion, count: int) -> list[Judgement]:
        """See `JudgePrompt.read`. Answers about the dummies that fill a batch are not read."""
        return build_judgements(completion, self.member.parser.read(completion, self.member.spec.batch_size)[:count])


class AlpacaEvalAnnotator(PairwiseAnnotator):
    """Draws a member of the directory for each pair and asks the judge of its role."""

    config: AlpacaEvalConfig

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
        """See `afarm.judging.label_pairs`. Pairs left to AlpacaEval's coin are not judged."""
        noise = self._noise(pairs)
        labels = iter(super().annotate([pair for pair in pairs if pair.id not in noise], context))
        return [noise.get(pair.id) or next(labels) for pair in pairs]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """See `afarm.judging.pending_requests`."""
        noise = self._noise(pairs)
        return super().plan([pair for pair in pairs if pair.id not in noise], context)

    def verdict_mass(self, member: str, completion: Completion) -> float | None:
        """See `PairwiseAnnotator.verdict_mass`."""
        parser = self.members[member].parser
        return parser.mass(completion) if parser.reads_logprobs and not completion.degraded else None

    def _noise(self, pairs: Iterable[Pair]) -> dict[str, Preference]:
        """The labels left to AlpacaEval's coin, which need no judge."""
        p = self.config.p_label_flip
        if not p:
            return {}
        drawn = {
            pair.id: draw_like_alpaca_eval(
                [None, 1, 2],
                "noisy_preference",
                whole_instruction(pair.instruction),
                self.config.seed,
                [1 - 2 * p, p, p],
            )
            for pair in pairs
        }
        return {i: Preference(i, float(value - 1), source="noise") for i, value in drawn.items() if value is not None}

    def present(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Presentation]:
        """See `PairwiseAnnotator.present`. Raises `JudgeError` as `_bind` does."""
        bound: dict[str, BoundEvaluator] = {}
        presentations = []
        for pair in pairs:
            pair_id = pair.id
            member = self._member(pair, pair_id, context.seed)
            if member.name not in bound:
                bound[member.name] = self._bind(member, context.ask)
            shown = show_pair(pair, self._order(member, pair, pair_id, context.seed), pair_id)
            presentations.append(Presentation(bound[member.name], shown, batch=member.batch_key(pair)))
        return presentations

    def _member(self, pair: Pair, pair_id: str, seed: int) -> DirectoryMember:
        names = list(self.members)
        if self.config.draws == "pair":
            return self.members[seeding.choice(names, seed, "member", pair_id)]
        text = whole_instruction(pair.instruction)
        return self.members[draw_like_alpaca_eval(names, "annotator", text, self.config.seed)]

    def _order(self, member: DirectoryMember, pair: Pair, pair_id: str, seed: int) -> str:
        """The order, "ab" or "ba", in which the judge sees the pair's outputs."""
        if self.config.draws == "pair" and member.spec.is_randomize_output_order:
            return draw_order(seed, pair_id)
        return "ab" if self._switched(member, pair) != pair.is_canonical else "ba"

    def _switched(self, member: DirectoryMember, pair: Pair) -> bool:
        """True if AlpacaEval shows output_2 first."""
        if not member.spec.is_randomize_output_order:
            return False
        columns = {
            "instruction": whole_instruction(pair.instruction),
            "input": pair.instruction.input,
            "output_1": pair.output_1,
            "output_2": pair.output_2,
        }
        text = "".join(columns[name] for name in member.seed_columns)
        return draw_like_alpaca_eval([False, True], "is_switched_outputs", text, self.config.seed)

    def _bind(self, member: DirectoryMember, ask: Ask) -> BoundEvaluator:
        """Bind a member to its judge. Raises `JudgeError` for the offline one, or if it lacks a parameter."""
        judge, capabilities = ask.judge(member.role), ask.capabilities(member.role)
        if judge.startswith("offline:"):
            raise JudgeError(
                f"alpaca_eval:{self.spec}: {member.name} needs a language model to judge, and {judge} only simulates "
                f"one: it was made for --judge {member.requested_judge}; name that or another with --judge"
            )
        degraded = ask.degraded(member.request([DUMMY], capabilities, seed=0, sample_index=0))
        fingerprint = seeding.digest(member.content, judge, capabilities.completion, degraded)
        return BoundEvaluator(
            member.name, member.spec.batch_size, fingerprint, degraded, member, capabilities, judge=judge
        )


def draw_like_alpaca_eval(
    options: Sequence[T], purpose: str, text: str, seed: int, weights: Sequence[float] | None = None
) -> T:
    """Draw one of `options` as alpaca_eval 0.6.6 does for this text."""
    return random.Random(f"{purpose}{text}{seed}").choices(options, weights)[0]
