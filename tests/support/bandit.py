"""A task so small that the solution of each method can be written down: one of four words, each with a known reward.

The policy answers with one word and the end-of-sequence token, so the probability of every answer can be computed
exactly, and what a method should make of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations

import torch

from afarm.backend import CheckpointPolicy, join_and_pad, response_logprobs
from afarm.backend.batching import TokenBatch
from afarm.core.interfaces import RewardModel
from afarm.core.records import Instruction, JudgedPair, Pair, Preference, Score
from afarm.testing.models import tiny_policy

INSTRUCTIONS = [Instruction("w30"), Instruction("w31 w32"), Instruction("w33 w34 w35")]
ANSWERS = ("w10", "w11", "w12", "w13")
REWARDS: Mapping[str, float] = {"w10": 0.0, "w11": 0.5, "w12": 1.0, "w13": -0.5}
START = (0.4, 0.2, 0.1, 0.3)
"""About how probable each answer is to the policy that methods start from: the best one least."""

OTHER = -1.0
"""The reward of everything that is no answer."""


class BanditReward(RewardModel):
    """The known reward of each answer, read from its text."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(REWARDS.get(output, OTHER)) for output in outputs]


def bandit_policy() -> CheckpointPolicy:
    """A policy that answers every instruction about as `START` says. Its own copy for each caller."""
    return _fitted().copy()


@cache
def _fitted() -> CheckpointPolicy:
    policy = tiny_policy()
    optimizer, batch = torch.optim.Adam(policy.model.parameters(), lr=1e-2), _answer_batch(policy)
    for _ in range(60):
        loss = -(torch.tensor(START) * _answer_logprobs(policy, batch)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    return policy


def answer_probabilities(policy: CheckpointPolicy) -> torch.Tensor:
    """The probability [instructions, answers] that `policy` gives to each answer and its end; the rest is leftover."""
    with torch.no_grad():
        return _answer_logprobs(policy, _answer_batch(policy)).exp()


def _answer_batch(policy: CheckpointPolicy) -> TokenBatch:
    prompts = [p for p in policy.prompt_ids(INSTRUCTIONS) for _ in ANSWERS]
    return join_and_pad(prompts, policy.template.encode_responses(ANSWERS) * len(INSTRUCTIONS), policy.pad_id)


def _answer_logprobs(policy: CheckpointPolicy, batch: TokenBatch) -> torch.Tensor:
    logprobs = response_logprobs(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)
    return logprobs.sum(-1).reshape(len(INSTRUCTIONS), len(ANSWERS))


def rewards() -> torch.Tensor:
    """The answers' rewards, [answers]."""
    return torch.tensor([REWARDS[a] for a in ANSWERS])


def tilted(reference: torch.Tensor, beta: float) -> torch.Tensor:
    """The policy that maximises reward − beta · KL to `reference` [instructions, answers]: reference · exp(reward / β).

    What is no answer keeps its place in the sum, with the reward `OTHER`.
    """
    weight = reference * (rewards() / beta).exp()
    other = (1 - reference.sum(-1, keepdim=True)) * torch.tensor(OTHER / beta).exp()
    return weight / (weight.sum(-1, keepdim=True) + other)


def kl_to(reference: torch.Tensor, policy: torch.Tensor) -> float:
    """Mean KL (nats) of `policy` to `reference`, both [instructions, answers], between answers only, renormalised."""
    p, q = (x / x.sum(-1, keepdim=True) for x in (policy, reference))
    return float((p * (p / q).log()).sum(-1).mean())


def bandit_preferences(soft: bool = False, copies: int = 1) -> list[JudgedPair]:
    """Every pair of answers to every instruction: the one with the higher reward preferred, or, if `soft`, with the
    Bradley–Terry probability of their rewards. The better one is now first, now second."""
    judged = []
    for instruction in INSTRUCTIONS:
        for number, (one, two) in enumerate(list(combinations(ANSWERS, 2)) * copies):
            first, second = (one, two) if number % 2 else (two, one)
            gap = torch.tensor(REWARDS[second] - REWARDS[first])
            pair = Pair(instruction, first, second)
            judged.append(JudgedPair(pair, Preference(pair.id, float(gap.sigmoid() if soft else gap > 0))))
    return judged
