"""A simulated crowd: 16 people who agree on what is good in the main, and differ in taste.

AlpacaFarm's human labels came from 16 crowdworkers (appendix B). Each member weighs the features of an answer by the
gold weights times a factor of their own, likes length more or less, and errs. All of them also see something in an
answer that neither the gold reward nor a judge sees, so that a judge can be consistent and still at odds with people.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from afarm import AnnotateContext, Annotator, ChatRequest, Instruction, Pair, Preference, seeding
from afarm_plugins.toy import CrowdConfig
from afarm_plugins.toy.world import GOLD, read_answer, read_task

SIZE = 16
TASTE_SPREAD = 0.5
"""Standard deviation of the log of a member's weight over the gold weight."""
LENGTH_TASTE = (2.0, 0.5)
"""Mean and standard deviation over members of the utility of one natural log of the word count."""
SHARED_TASTE = 1.4
"""Standard deviation of what all members see in an answer and the gold reward does not hold."""
NOISE = 2.6
"""Temperature of a member's logistic noise, in units of the gold reward."""


@dataclass(frozen=True, slots=True)
class CrowdMember:
    """One person: a weight for each feature and a taste for length."""

    name: str
    weights: tuple[tuple[str, float], ...]
    length: float

    def utility(self, instruction: Instruction, answer: str) -> float:
        """Utility of the answer to this person, in units of the gold reward."""
        features = read_answer(read_task(instruction.instruction, instruction.input), answer)
        own = sum(weight * getattr(features, name) for name, weight in self.weights)
        shared = SHARED_TASTE * _normal("shared", instruction.id, answer)
        return own + self.length * math.log(1 + features.words) + shared

    def prefers_second(self, instruction: Instruction, first: str, second: str) -> float:
        """The probability that this person prefers the second of two answers."""
        gap = self.utility(instruction, second) - self.utility(instruction, first)
        return 0.5 * (1 + math.tanh(gap / NOISE / 2))


@lru_cache(maxsize=1)
def members() -> tuple[CrowdMember, ...]:
    """The crowd, the same in every run."""
    mean, spread = LENGTH_TASTE
    return tuple(
        CrowdMember(
            name=f"crowd_{i}",
            weights=tuple((name, weight * math.exp(TASTE_SPREAD * _normal(i, name))) for name, weight in GOLD.items()),
            length=mean + spread * _normal(i, "length"),
        )
        for i in range(1, SIZE + 1)
    )


def _normal(*key: object) -> float:
    return NormalDist().inv_cdf(min(max(seeding.uniform("crowd", *key), 1e-9), 1 - 1e-9))


class Crowd(Annotator):
    """Asks `votes` different members about each pair, drawn by the pair's key, and makes no judge call.

    p2 is the share of votes for output_2. Swapping a pair's outputs mirrors its label. Raises `DataError` for an
    instruction that is not of the toy world.
    """

    def __init__(self, config: CrowdConfig | None = None):
        self.config = config or CrowdConfig()

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        return [self._judge(pair, context.seed) for pair in context.progress(pairs, "asking the crowd", len(pairs))]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> Sequence[ChatRequest]:
        """Plan no request. Raises `DataError` as `annotate` would, before anything is made."""
        for pair in pairs:
            read_task(pair.instruction.instruction, pair.instruction.input)
        return ()

    def _judge(self, pair: Pair, seed: int) -> Preference:
        voters = sorted(members(), key=lambda member: seeding.uniform(seed, "crowd member", member.name, pair.id))
        voters = voters[: self.config.votes]
        votes = [
            seeding.uniform(seed, "crowd vote", member.name, pair.id)
            < member.prefers_second(pair.instruction, *pair.canonical)
            for member in voters
        ]
        share = sum(votes) / len(votes)
        p2 = share if pair.is_canonical else 1 - share
        return Preference(pair.id, p2, source="judge", member="+".join(member.name for member in voters))
