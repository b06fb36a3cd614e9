"""Prompt annotators: which member judges a pair, in which order it sees the outputs, and how judgements become a label.

All draws are keyed by the seed and the pair, so labels do not depend on batching, concurrency or restarts:

    member   choice(seed, "member", pair id)      uniform over the configured members
    order    uniform(seed, "order", pair id)      over the canonical order, so that swapping the outputs mirrors labels
    draw     100 * vote + re-ask                  a vote's re-asks are its own: they shift no other vote

Source: Dubois et al. 2023 (AlpacaFarm), sections 3 and App. C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from afarm.errors import ConfigError
from afarm.interfaces import AnnotateContext, Annotator, BuildContext
from afarm.judges import DRAWS_A_VOTE, ChatRequest, Comparison, Judgement, JudgementKey
from afarm.keyed import choice, digest, uniform
from afarm.records import Pair, Preference
from afarm_plugins.annotators import PromptAnnotatorConfig
from afarm_plugins.annotators.labels import Verdict, of_orders, of_votes
from afarm_plugins.annotators.members import load_member
from afarm_plugins.annotators.pools import read_pool
from afarm_plugins.annotators.questions import Assigned, Pose, Question, assign, foresee, gather


@dataclass(frozen=True, slots=True)
class Look:
    """One of the judgements that make a label: which vote, and whether in the reverse of the order drawn."""

    vote: int = 0
    reverse: bool = False

    def draw(self, reask: int) -> int:
        """Which draw it is. The first vote's are those of an annotator without votes, so that they are known to it."""
        return self.vote * DRAWS_A_VOTE + reask


Slot = tuple[str, Look]


class PromptAnnotator(Annotator):
    """Draws a member for each pair and asks its judge. A single annotator is a pool of one."""

    def __init__(self, config: PromptAnnotatorConfig, spec: str = "", context: BuildContext | None = None):
        """`spec` is the YAML file of a pool of the user's own (`afarm_plugins.annotators.pools`), empty for none.

        Raises `ConfigError` with every problem of that file.
        """
        self.config = config
        self.spec = spec
        if spec and "members" in config.model_fields_set:
            raise ConfigError([f"pool:{spec} names its members in the file: leave pool.members out"])
        self.members = read_pool(Path(spec).expanduser()) if spec else [load_member(name) for name in config.members]
        self.looks = [
            Look(vote, reverse) for vote in range(config.votes) for reverse in (False, True)[: 1 + config.both_orders]
        ]

    @property
    def identity(self) -> str:
        """A digest of all that the user's file says, templates included; empty without one."""
        return digest([member.fingerprint() for member in self.members]) if self.spec else ""

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """One preference a pair, in order; "unparsed" (or "refused") where no draw gave a readable verdict.

        Judgements already learned are not asked for again. Raises `JudgeError` and `BudgetError` as `context.ask` does.
        """
        slots = self._slots(pairs, context)
        answers = gather(slots, self.config.max_reasks + 1, context)
        return [self._label(pair, [answers[pair.id, look] for look in self.looks]) for pair in pairs]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """What `annotate` would send now: the draws that are not known yet. Re-asks after them cannot be foreseen."""
        return foresee(self._slots(pairs, context), self.config.max_reasks + 1, context)

    def _slots(self, pairs: Sequence[Pair], context: AnnotateContext) -> dict[Slot, Pose]:
        """Every look at every pair, with the question that it asks at each re-ask."""
        assigned: dict[str, Assigned] = {}
        slots: dict[Slot, Pose] = {}
        for pair in pairs:
            pair_id = pair.id
            member = choice(self.members, context.seed, "member", pair_id)
            if member.name not in assigned:
                assigned[member.name] = assign(member, context.ask)
            shown = compare(pair, pair_id, context.seed)
            for look in self.looks:
                slots[pair_id, look] = _pose(shown, look, assigned[member.name], context.seed)
        return slots

    def _label(self, pair: Pair, answers: Sequence[tuple[Question, Judgement]]) -> Preference:
        """The label that the judgements of a pair's looks make together."""
        orders = [_order(pair, question.comparison) for question, _ in answers]
        verdicts = [_verdict(judgement, order) for (_, judgement), order in zip(answers, orders, strict=True)]
        seen = 1 + self.config.both_orders
        votes = [of_orders(verdicts[i : i + seen]) for i in range(0, len(verdicts), seen)]
        label = of_votes(votes, self.config.vote)
        by = answers[0][0].by
        return Preference(
            pair_id=answers[0][0].key.pair_id,
            p2=label.p2,
            outcome=label.outcome,
            member=by.member.name,
            order="both" if self.config.both_orders else orders[0],
            completion=",".join(dict.fromkeys(judgement.completion for _, judgement in answers)),
            degraded=by.degraded,
        )


def compare(pair: Pair, pair_id: str, seed: int) -> Comparison:
    """The pair as the judge is shown it, in an order drawn for (seed, pair)."""
    order = "ab" if uniform(seed, "order", pair_id) < 0.5 else "ba"
    first, second = pair.canonical if order == "ab" else pair.canonical[::-1]
    return Comparison(pair_id, pair.instruction, first, second, order)


def _pose(shown: Comparison, look: Look, by: Assigned, seed: int) -> Pose:
    if look.reverse:
        order = {"ab": "ba", "ba": "ab"}[shown.order]
        shown = replace(shown, first=shown.second, second=shown.first, order=order)

    def pose(reask: int) -> Question:
        draw = look.draw(reask)
        key = JudgementKey(by.fingerprint, shown.pair_id, shown.order, seed, draw)
        # Looks at one pair do not share a prompt: a judge that reads it twice would make them agree.
        return Question(key, replace(shown, draw=draw), by, batch=(look, reask), again=reask > 0)

    return pose


def _order(pair: Pair, shown: Comparison) -> str:
    """Which of the pair's own outputs the judge saw first."""
    return "12" if (shown.order == "ab") == pair.is_canonical else "21"


def _verdict(judgement: Judgement, order: str) -> Verdict:
    """The judgement in the pair's own order."""
    first = judgement.first
    p2 = None if first is None else 1 - first if order == "12" else first
    return Verdict(p2, judgement.outcome)  # type: ignore[arg-type]
