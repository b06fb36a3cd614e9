"""The exact KL divergence from a reference at each response token.

It sums over the vocabulary. Both models' logits exist for a few positions at a time and are recomputed in the backward
pass, never as [B, T, V].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from afarm.backend import TokenBatch, chunk_rows, hidden_states, project, response_scatter

LOGITS_TENSORS = 4
"""Tensors of a chunk's logits: two models' logits, probabilities and products of them."""


class Divergence(NamedTuple):
    """Log-probabilities of response tokens, and KL and entropy of next-token distributions, each [B, R].

    In float32 and nats, left-aligned, 0 after each row's end, differentiable in the policy. `kl` is KL(policy ‖
    reference), `entropy` the policy's.
    """

    logprobs: Tensor
    kl: Tensor
    entropy: Tensor


def response_divergence(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    batch: TokenBatch,
    reference_batch: TokenBatch,
    *,
    left_out: Sequence[int] = (),
    chunk_size: int | None = None,
) -> Divergence:
    """Compute log-probabilities of the responses, and the policy's exact KL to the reference.

    KL and entropy are over the tokens that both vocabularies have, without those `left_out`; `logprobs` are over all.

    Args:
        policy: the model that is trained, differentiable.
        reference: the reference model, without gradient.
        batch: responses behind the prompts that the policy reads, [B, T].
        reference_batch: the same responses behind the reference's prompts (without a control token, say).
        left_out: tokens of the vocabulary that are never sampled.
        chunk_size: positions projected at once; changes no result (default: as the budget of logits allows).
    """
    rows, columns = batch.response_mask.nonzero(as_tuple=True)
    reference_rows, reference_columns = reference_batch.response_mask.nonzero(as_tuple=True)
    hidden = hidden_states(policy, batch.input_ids, batch.attention_mask)[rows, columns - 1]
    with torch.no_grad():
        all_hidden = hidden_states(reference, reference_batch.input_ids, reference_batch.attention_mask)
        reference_hidden = all_hidden[reference_rows, reference_columns - 1]
    targets = batch.input_ids[rows, columns]
    if chunk_size is None:
        chunk_size = chunk_rows(policy, hidden, LOGITS_TENSORS)

    def compare(chunk: Tensor, reference_chunk: Tensor, chunk_targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = project(policy, chunk)
        with torch.no_grad():
            reference_logits = project(reference, reference_chunk)
        logprobs = logits.gather(-1, chunk_targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
        common = min(logits.shape[-1], reference_logits.shape[-1])
        log_p = _without(logits[:, :common], left_out).log_softmax(-1)
        log_q = _without(reference_logits[:, :common], left_out).log_softmax(-1)
        p = log_p.exp()
        return logprobs, (p * (log_p - log_q)).sum(-1), -(p * log_p).sum(-1)

    recompute = len(targets) > chunk_size and hidden.requires_grad
    chunks = zip(hidden.split(chunk_size), reference_hidden.split(chunk_size), targets.split(chunk_size), strict=True)
    results = [
        checkpoint(compare, *chunk_inputs, use_reentrant=False) if recompute else compare(*chunk_inputs)
        for chunk_inputs in chunks
    ]
    return Divergence(
        *(response_scatter(torch.cat(values), batch.response_mask) for values in zip(*results, strict=True))
    )


def _without(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Give `tokens` the lowest finite logit in `logits` [N, V]; differences of infinities would be NaN."""
    inside = [token for token in tokens if token < logits.shape[-1]]
    if not inside:
        return logits
    return logits.index_fill(-1, torch.tensor(inside, device=logits.device), torch.finfo(logits.dtype).min)
