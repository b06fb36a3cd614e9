"""Rollouts: keyed prompt order and scored samples.

Orders are functions of seed and step alone, so that resuming needs no generator's state.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from operator import itemgetter

import torch

from afarm.backend.logprobs import position_limit
from afarm.backend.policy import CheckpointPolicy
from afarm.backend.reward_model import TorchRewardModel
from afarm.core.errors import DataError, TrainingError
from afarm.core.interfaces import Decoding, Policy, RewardModel
from afarm.core.records import Instruction, Output, Sample
from afarm.core.seeding import integer
from afarm.storage.record_fields import require_samples

logger = logging.getLogger(__name__)


LARGEST = torch.finfo(torch.float32).max

SampleScorer = Callable[[Sequence[Instruction], Sequence[Sample]], list[float]]
"""The reward of each sample, given what it answers."""


def short_prompts(
    policy: CheckpointPolicy,
    instructions: Sequence[Instruction],
    max_prompt_length: int,
    response_length: int,
    limited_by: str,
) -> list[Instruction]:
    """Select the instructions whose whole prompt fits, with room for a response; lengths are in tokens.

    Longer ones are dropped with a warning, not cut, since a cut prompt does not ask for what is scored. Raises
    `DataError` if none is left. Both messages name the setting `limited_by` ("ppo.max_prompt_length").
    """
    lengths = [len(ids) for ids in policy.prompt_ids(instructions)]
    limit = position_limit(policy.model) or math.inf
    longest = min(max_prompt_length, limit - response_length)
    short = [i for i, length in zip(instructions, lengths, strict=True) if length <= longest]
    if not short:
        response_setting = limited_by.partition(".")[0] + ".response_length"
        if longest < max_prompt_length:
            advice = (
                f"lower {response_setting} ({response_length}), which leaves no more of the model's {limit} positions"
            )
        else:
            advice = f"raise {limited_by}"
        raise DataError(
            f"none of the {len(lengths)} unlabeled instructions has a prompt of at most {max(0, longest)} tokens (the "
            f"shortest has {min(lengths, default=0)}): {advice}"
        )
    if left_out := len(lengths) - len(short):
        logger.warning(
            f"{left_out} of {len(lengths)} unlabeled instructions have prompts of more than {longest} tokens and are "
            f"left out: {limited_by}"
        )
    return short


def prompt_order(prompts: int, step: int, batch_size: int, *key: object) -> list[tuple[int, list[int]]]:
    """List (pass, rows) for each pass over the prompts that the batch of `step` touches.

    Batches follow each other through endless passes, each in its own random order, drawn for `key`.
    """
    places = range(step * batch_size, (step + 1) * batch_size)
    passes = []
    for number, group in groupby(places, key=lambda place: place // prompts):
        order = permutation(prompts, *key, "prompts", number)
        passes.append((number, [order[place % prompts] for place in group]))
    return passes


def permutation(length: int, *key: object) -> list[int]:
    """Draw an order of the numbers below `length` for `key`."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(integer(*key))).tolist()


def sample_scorer(reward_model: RewardModel, policy: Policy) -> SampleScorer:
    """Make the function that scores samples of `policy`: tokens if the vocabularies are equal, else text.

    It warns if the first rewards tell no two responses apart, or none to one prompt, if each has several.
    """
    score_tokens = None
    if isinstance(reward_model, TorchRewardModel) and reward_model.reads_tokens_of(policy):
        score_tokens = reward_model.score_samples
    has_scored = False

    def score(instructions: Sequence[Instruction], samples: Sequence[Sample]) -> list[float]:
        nonlocal has_scored
        if score_tokens:
            rewards = score_tokens(samples)
        else:
            told = zip(instructions, samples, strict=True)
            scores = reward_model.score_outputs(
                [Output(i, s.text, details={"finish_reason": s.finish_reason}) for i, s in told]
            )
            rewards = [score.value for score in scores]
            if any(LARGEST < abs(reward) < math.inf for reward in rewards):
                raise TrainingError(f"a reward of {max(map(abs, rewards)):g} does not fit float32: scale rewards down")
        if not has_scored and (what := equal_rewards(instructions, rewards)):
            logger.warning(f"{what}: a reward that tells no response from another teaches nothing")
        has_scored = True
        return rewards

    return score


def equal_rewards(instructions: Sequence[Instruction], rewards: Sequence[float]) -> str:
    """Say that all rewards are equal, or all that share an instruction, if all share one; empty if not."""
    groups = defaultdict[str, list[float]](list)
    for instruction, reward in zip(instructions, rewards, strict=True):
        groups[instruction.id].append(reward)
    if len(rewards) > 1 and max(rewards) == min(rewards):
        return f"each of the first {len(rewards)} responses has the reward {rewards[0]:g}"
    if all(len(group) > 1 and max(group) == min(group) for group in groups.values()):
        return f"each of the first {len(groups)} prompts has one reward for all responses to it"
    return ""


def scored_samples(
    policy: Policy, score: SampleScorer, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int
) -> Iterator[tuple[Sample, float]]:
    """Sample from `policy` and yield each sample with its reward, as they are ready.

    Batches are scored across instructions if n is small, within one if n is large. Raises `TrainingError` if a reward
    is not a number, and `PluginError` if the policy breaks its promises.
    """
    name = f"{type(policy).__module__}:{type(policy).__qualname__}"
    samples = require_samples(policy, "policy", name, instructions, decoding, seed)
    owners = (instruction for instruction in instructions for _ in range(decoding.n))
    while batch := list(islice(samples, decoding.per_device_batch_size)):
        owned = list(islice(owners, len(batch)))
        for instruction, sample, reward in zip(owned, batch, score(owned, batch), strict=True):
            if not math.isfinite(reward):
                raise TrainingError(
                    f"the reward of a response to {instruction.instruction!r} is not a number: "
                    "check the reward model, or name another with --reward-model"
                )
            yield sample, reward


def best_sample(scored: Iterable[tuple[Sample, float]]) -> Sample:
    """Return the sample with the highest reward, and its reward in `score`; of equal ones the first."""
    sample, reward = max(scored, key=itemgetter(1))
    return replace(sample, score=reward)
