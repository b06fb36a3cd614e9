"""Which prompts a step samples, and in which order it learns from them: a function of seed and step alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import torch

from afarm.keyed import integer
from afarm_plugins.ppo import PPOConfig


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
