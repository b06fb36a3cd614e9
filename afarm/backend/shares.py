"""Sizes that processes share: what of a step falls to each, and which settings do not divide."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from afarm.core.config import OnPolicyConfig, TrainerConfig
from afarm.core.errors import ConfigError

ON_POLICY_SIZES = ("rollout_batch_size", "mini_batch_size")
"""Settings of on-policy methods that the processes must divide if they shard; a config's `even_sizes` replace them."""


def shared_batch(config: TrainerConfig, processes: int) -> tuple[int, int]:
    """Divide the batch among processes: (rows per forward pass, passes per step) of each.

    Fewer passes if that will do, then smaller ones. Raises `ConfigError` if it cannot be divided.
    """
    size, accumulation = config.per_device_train_batch_size, config.gradient_accumulation_steps
    fewer = math.gcd(accumulation, processes)
    smaller = processes // fewer
    if size % smaller:
        raise ConfigError(
            [
                f"a batch of per_device_train_batch_size {size} times gradient_accumulation_steps {accumulation} does "
                f"not divide by {processes} processes: choose figures whose product does"
            ]
        )
    return size // smaller, accumulation // fewer


def uneven_sizes(section: str, config: Any, processes: int, *, sharded: bool) -> list[str]:
    """Say which settings of a section do not divide among the processes: a run refuses them."""
    try:
        if isinstance(config, TrainerConfig):
            shared_batch(config, processes)
    except ConfigError as error:
        return [f"{section}: {problem}" for problem in error.problems]
    if not sharded or not isinstance(config, OnPolicyConfig):
        return []
    names: Iterable[str] = getattr(type(config), "even_sizes", ON_POLICY_SIZES)
    uneven = {name: size for name in names if (size := getattr(config, name)) % processes}
    return [
        f"{section}.{name} ({size}) must be divisible by the {processes} processes of FSDP2"
        for name, size in uneven.items()
    ]
