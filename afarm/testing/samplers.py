"""Conformance of sampling engines: their weights, order and draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from afarm.core.errors import ModelError
from afarm.core.interfaces import Decoding
from afarm.testing.conformance import require
from afarm.testing.examples import make_instructions
from afarm.testing.models import tiny_policy

if TYPE_CHECKING:
    from afarm.backend import CheckpointPolicy, Generation, SamplingEngine

LONGEST = 8
"""Most tokens of a response."""

NEAR = 1e-3
"""The most a log-probability may differ from the policy's."""


def check_sampler(engine: SamplingEngine, policy: CheckpointPolicy | None = None) -> None:
    """Check that an engine samples from a policy's current weights, row by row as promised.

    `policy` (default: `tiny_policy()`) is a small one in float32, for an engine that must hold it already. Raises
    `ConformanceError` naming the broken promise.
    """
    policy = policy or tiny_policy()
    version = engine.version
    one_line = isinstance(version, str) and version.strip() != "" and "\n" not in version
    require(one_line and engine.version == version, f"version must be one line of text, always the same: {version!r}")
    for said in ("takes_whole_weights", "runs_here"):
        require(isinstance(getattr(engine, said, None), bool), f"{said} must be True or False")
    _check_greedy(engine, policy)
    _check_draws(engine, policy)
    _check_trained_adapters(engine, policy)
    _check_trained_weights(engine, policy)


def _check_greedy(engine: SamplingEngine, policy: CheckpointPolicy) -> None:
    greedy = Decoding(temperature=0, max_new_tokens=LONGEST, n=2)
    broken = "at temperature 0 the likeliest tokens must be chosen, prompt by prompt and n times each"
    _check_rows(policy, _check_likeliest(engine, policy, greedy, broken), greedy)
    require(not list(engine.sampler(policy).generate([], [], greedy, seed=0)), "no prompts give no generations")


def _check_rows(policy: CheckpointPolicy, rows: Sequence[Generation], decoding: Decoding) -> None:
    from afarm.backend import batched_logprobs

    prompts = [prompt for prompt in _prompts(policy)[0] for _ in range(decoding.n)]
    require(len(rows) == len(prompts), f"generate must yield n generations per prompt: {len(rows)} for {len(prompts)}")
    for row in rows:
        is_ended = row.token_ids[-1:] != [] and row.token_ids[-1] in policy.eos_ids
        whole = is_ended or len(row.token_ids) == decoding.max_new_tokens
        require(whole, f"a response must end with an end-of-sequence token or after max_new_tokens: {row}")
        require(row.finish_reason == ("stop" if is_ended else "length"), f"finish_reason must say how it ended: {row}")
    read = batched_logprobs(policy, prompts, [row.token_ids for row in rows], batch_size=8).tolist()
    for row, own in zip(rows, read, strict=True):
        if row.logprobs is not None:
            apart = max(abs(a - b) for a, b in zip(row.logprobs, own, strict=False))
            fits = len(row.logprobs) == len(row.token_ids) and apart < NEAR
            require(fits, f"logprobs must be the policy's at temperature 1, one per token: {apart:.2g} apart")


def _check_draws(engine: SamplingEngine, policy: CheckpointPolicy) -> None:
    decoding = Decoding(temperature=1.3, top_p=0.95, max_new_tokens=LONGEST, n=3)
    rows = _generate(engine, policy, decoding)
    _check_rows(policy, rows, decoding)
    prompts, keys = _prompts(policy)
    again = list(engine.sampler(policy).generate(prompts[1:2], keys[1:2], Decoding(1.3, 0.95, LONGEST, 2), seed=5))
    alone, together = [row.token_ids for row in again], [row.token_ids for row in rows[3:5]]
    require(alone == together, "sample j of key k must depend on (seed, k, j) only, not on companions or n")
    other = engine.sampler(policy).generate(prompts, keys, decoding, seed=6)
    require([row.token_ids for row in other] != [row.token_ids for row in rows], "another seed must give other draws")
    distinct = {tuple(row.token_ids) for row in rows[:3]}
    require(len(distinct) > 1, "samples of one prompt must be draws of their own")


def _check_trained_adapters(engine: SamplingEngine, policy: CheckpointPolicy) -> None:
    import torch

    from afarm.backend import trainable_copy
    from afarm.core.config import LoraConfig

    policy.backend.seed(0)
    trained = trainable_copy(policy, LoraConfig(r=4))
    greedy = Decoding(temperature=0, max_new_tokens=LONGEST)
    for step in range(2):
        with torch.no_grad():
            for name, weight in trained.model.named_parameters():
                if "lora_B" in name:
                    weight.copy_(torch.randn(weight.shape) * 0.2 * (step + 1))
        broken = "a sampler made after adapters have changed must sample by them as they are then"
        _check_likeliest(engine, trained, greedy, broken)
    broken = "a policy without adapters must be sampled without them, also after one that has some"
    _check_likeliest(engine, policy, greedy, broken)


def _check_trained_weights(engine: SamplingEngine, policy: CheckpointPolicy) -> None:
    import torch

    changed = policy.copy()
    with torch.no_grad():
        for weight in changed.model.parameters():
            weight.mul_(1.2)
    greedy = Decoding(temperature=0, max_new_tokens=LONGEST)
    broken = "weights that an engine does not hold must be refused with a ModelError, never sampled as others"
    try:
        _check_likeliest(engine, changed, greedy, broken)
    except ModelError:
        require(not engine.takes_whole_weights, "an engine that takes whole weights must take changed ones")


def _generate(engine: SamplingEngine, policy: CheckpointPolicy, decoding: Decoding) -> list[Generation]:
    return list(engine.sampler(policy).generate(*_prompts(policy), decoding, seed=5))


def _check_likeliest(
    engine: SamplingEngine, policy: CheckpointPolicy, greedy: Decoding, broken: str
) -> list[Generation]:
    """Check that an engine's greedy generations are those of the policy itself; return them."""
    from afarm.backend import TorchEngine

    rows, own = _generate(engine, policy, greedy), _generate(TorchEngine(), policy, greedy)
    require([row.token_ids for row in rows] == [row.token_ids for row in own], broken)
    return rows


def _prompts(policy: CheckpointPolicy) -> tuple[list[list[int]], list[str]]:
    instructions = make_instructions(4)
    return policy.prompt_ids(instructions), [instruction.id for instruction in instructions]
