"""Which prompts a step samples, and in which order it learns from them: a function of seed and step."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import torch

from afarm.backend import CheckpointPolicy
from afarm.errors import DataError
from afarm.keyed import integer
from afarm.records import Instruction
from afarm_plugins.ppo import PPOConfig

logger = logging.getLogger(__name__)


def short_enough(instructions: Sequence[Instruction], policy: CheckpointPolicy, config: PPOConfig) -> list[Instruction]:
    """The instructions whose prompts leave room for a response. Raises `DataError` where there is none."""
    lengths = [len(ids) for ids in policy.prompt_ids(instructions)]
    limit = getattr(policy.model.config, "max_position_embeddings", None) or math.inf
    longest = min(config.max_prompt_length, limit - config.response_length)
    kept = [i for i, length in zip(instructions, lengths, strict=True) if length <= longest]
    if not kept:
        raise DataError(
            f"none of the {len(lengths)} unlabeled instructions has a prompt of at most {longest} tokens "
            f"(the shortest has {min(lengths, default=0)}): raise ppo.max_prompt_length, or lower "
            f"ppo.response_length where both exceed the model's {limit} positions"
        )
    if left_out := len(lengths) - len(kept):
        logger.warning(
            "%d of %d unlabeled instructions have prompts of more than %d tokens and are left out: "
            "ppo.max_prompt_length",
            left_out,
            len(lengths),
            longest,
        )
    return kept


def prompt_order(prompts: int, step: int, batch_size: int, seed: int) -> list[tuple[int, list[int]]]:
    """(pass, rows) for each pass over the prompts that the batch of `step` touches.

    The batches are consecutive pieces of one endless row of passes, each in a random order of its own.
    """
    places = range(step * batch_size, (step + 1) * batch_size)
    drawn = []
    for number, group in groupby(places, key=lambda place: place // prompts):
        order = permutation(prompts, seed, "prompts", number)
        drawn.append((number, [order[place % prompts] for place in group]))
    return drawn


def minibatches(rows: int, step: int, config: PPOConfig, seed: int) -> Iterator[list[int]]:
    """The rows of each optimiser step: every pass over the rollout in a random order of its own."""
    for epoch in range(config.num_ppo_epochs):
        order = permutation(rows, seed, "minibatches", step, epoch)
        for start in range(0, rows, config.mini_batch_size):
            yield order[start : start + config.mini_batch_size]


def permutation(length: int, seed: int, *purpose: object) -> list[int]:
    generator = torch.Generator().manual_seed(integer(seed, "ppo", *purpose))
    return torch.randperm(length, generator=generator).tolist()
