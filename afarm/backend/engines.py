"""The seam of samplers: an engine makes one of a policy. `TorchEngine` samples in this process."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Protocol

from afarm.backend import cpu
from afarm.backend.sampling import Sampler, TorchSampler

if TYPE_CHECKING:
    from afarm.backend.policy import CheckpointPolicy


class SamplingEngine(Protocol):
    """Makes samplers of policies. Built as `Class(config, spec, context)`.

    `spec` is the text after the name's @ in `backend.sampler`, the context a `BuildContext`. Making one and asking for
    its version must load no torch: a dry run does.
    """

    takes_whole_weights: ClassVar[bool]
    """True if it follows any change of a policy's weights; else it follows adapters only."""

    runs_here: ClassVar[bool]
    """True if it computes in this process, which then needs the whole policy on the device."""

    @property
    def version(self) -> str:
        """Name the engine and its version, for keys. Raises `ModelError` if it is not there."""
        ...

    def sampler(self, policy: CheckpointPolicy) -> Sampler:
        """Make the sampler of a policy as its weights are now.

        A collective if they are sharded (`is_sharded`); then each process samples on its own. An engine that runs here
        finds all weights in each. Raises `ModelError` if the engine cannot be shown to sample with just these weights.
        """
        ...


class TorchEngine:
    """The engine `torch`: this process's own, on the very weights of the policy."""

    takes_whole_weights: ClassVar[bool] = True
    runs_here: ClassVar[bool] = True
    version = "torch"

    def sampler(self, policy: CheckpointPolicy) -> TorchSampler:
        """Make a sampler that reads the policy's weights whenever it samples. On a CPU freed memory is kept."""
        if policy.backend.device.type == "cpu":
            cpu.keep_freed_memory()
        bias = dict.fromkeys(policy.tokenizer.convert_tokens_to_ids(list(policy.control_tokens)), -math.inf)
        return TorchSampler(policy.model, policy.eos_ids, policy.pad_id, bias, policy.backend.progress)
