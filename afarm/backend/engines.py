"""The interface of sampling engines, and `TorchEngine`, which samples in this process."""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

from afarm.backend import cpu
from afarm.backend.policy import CheckpointPolicy
from afarm.backend.sampling import Sampler, TorchSampler


class SamplingEngine(Protocol):
    """Makes samplers of policies. Built as `Class(config, spec, context)`.

    `spec` is the text after the name's @ in `backend.sampler`, the context a `BuildContext`. Making one and reading
    its version must load no torch, since a dry run does both.
    """

    takes_whole_weights: ClassVar[bool]
    """True if it can sample from any weights; else only from changed adapters."""

    runs_here: ClassVar[bool]
    """True if it computes in this process, which then needs the whole policy on the device."""

    @property
    def version(self) -> str:
        """The engine and its version, for keys. Raises `ModelError` if it cannot be reached."""
        ...

    def sampler(self, policy: CheckpointPolicy) -> Sampler:
        """Make a sampler of a policy's current weights.

        A collective if they are sharded (`is_sharded`); then each process samples on its own. An engine that runs here
        finds all weights in each. Raises `ModelError` unless the engine is shown to sample from just these weights.
        """
        ...


class TorchEngine:
    """The engine `torch`: samples in this process, on the policy's own weights."""

    takes_whole_weights: ClassVar[bool] = True
    runs_here: ClassVar[bool] = True
    version = "torch"

    def sampler(self, policy: CheckpointPolicy) -> TorchSampler:
        """Make a sampler that always reads the policy's current weights. On a CPU freed memory is kept."""
        if policy.backend.device.type == "cpu":
            cpu.keep_freed_memory()
        bias = dict.fromkeys(policy.tokenizer.convert_tokens_to_ids(list(policy.control_tokens)), -math.inf)
        return TorchSampler(policy.model, policy.eos_ids, policy.pad_id, bias, policy.backend.progress)
