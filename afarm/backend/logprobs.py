"""Log-probabilities of responses, without ever holding logits for a whole batch.

The output head is applied to response positions only, and to so many at a time that at most `LOGITS_BUDGET` logits
exist at once. A [B, T, V] tensor is what the reference implementation ran out of memory on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from afarm.backend.products import Linear
from afarm.backend.token_head import ChunkLoss, TokenLogprobs, TokenLoss

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOGITS_BUDGET = 2**24
"""Logits held at once (64 MiB in float32)."""

CPU_LOGITS_BUDGET = 2**23 - 2**18
"""The same on a CPU: little enough for the C library to keep the memory, and for most of it to stay in the cache."""


def base_model(model: PreTrainedModel) -> PreTrainedModel:
    """The transformers model itself: `model`, or what PEFT wraps (its adapters live inside and stay active)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def backbone(model: PreTrainedModel) -> PreTrainedModel:
    """`model` without its head: from token ids to hidden states."""
    whole = base_model(model)
    return getattr(whole, whole.base_model_prefix)


def positions(attention_mask: torch.Tensor) -> torch.Tensor:
    """Position ids [B, T] that count real tokens only, so that results depend on neither side nor amount of padding."""
    return (attention_mask.long().cumsum(-1) - 1).clamp_(min=0)


def hidden_states(model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """The backbone's last hidden states [B, T, H], after the final norm. `model` may have any head, and adapters."""
    output = backbone(model)(
        input_ids=input_ids, attention_mask=attention_mask, position_ids=positions(attention_mask), use_cache=False
    )
    return output.last_hidden_state


def project(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [..., V] in float32 for hidden states [..., H], with what some families do after their output head."""
    whole = base_model(model)
    config = whole.config.get_text_config()
    logits = whole.get_output_embeddings()(hidden).float()
    if getattr(config, "logits_scaling", None):  # Granite
        logits = logits / config.logits_scaling
    if getattr(config, "logit_scale", None):  # Cohere
        logits = logits * config.logit_scale
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    return cap * torch.tanh(logits / cap) if cap else logits


def response_scatter(values: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """One value for each True of `response_mask` [B, T], in row order, as [B, R]: left-aligned, 0 after each row's end.

    R is the longest response. `response_scatter(torch.ones(n), mask).bool()` is the mask that goes with it.
    """
    lengths = response_mask.sum(-1)
    width = int(lengths.max()) if len(lengths) else 0
    aligned = torch.arange(width, device=values.device) < lengths.unsqueeze(-1)
    return values.new_zeros(aligned.shape).masked_scatter(aligned, values)


def response_logprobs(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
) -> torch.Tensor:
    """Natural log-probabilities [B, R] (float32) of the response tokens, left-aligned, 0 after each row's end.

    `input_ids`, `attention_mask` and `response_mask` are [B, T], as `join_and_pad` makes them (right-padded for
    training; left padding gives the same numbers). `response_mask` marks the tokens to score, each of which must have
    a token before it. Logits are divided by `temperature`. `chunk_size` is how many positions are projected at once
    (default: as many as `LOGITS_BUDGET` allows) and changes no result. Differentiable; the projection is recomputed in
    the backward pass (a loss that is a sum over tokens can do without: `token_loss`).
    """
    hidden, targets = before_responses(model, input_ids, attention_mask, response_mask)
    logprobs = token_logprobs(model, hidden, targets, temperature=temperature, chunk_size=chunk_size)
    return response_scatter(logprobs, response_mask)


def before_responses(
    model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor, response_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(hidden states [n, H] from which the response tokens are predicted, those tokens [n]), row after row."""
    rows, columns = response_mask.nonzero(as_tuple=True)
    return hidden_states(model, input_ids, attention_mask)[rows, columns - 1], input_ids[rows, columns]


def token_logprobs(
    model: PreTrainedModel,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
) -> torch.Tensor:
    """Log-probabilities [n] of `targets` after `hidden`, as `before_responses` gives them; see `response_logprobs`."""
    rows = chunk_size or chunk_rows(model, hidden)
    if not len(targets):
        return hidden.new_zeros(0, dtype=torch.float32)
    weight = _plain_head(model)
    if weight is not None:
        found: torch.Tensor = TokenLogprobs.apply(hidden, weight, targets, temperature, rows)
        return found

    def score(part: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = project(model, part) / temperature
        return logits.gather(-1, wanted.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)

    recompute = len(targets) > rows and hidden.requires_grad
    return torch.cat(
        [
            checkpoint(score, part, wanted, use_reentrant=False) if recompute else score(part, wanted)
            for part, wanted in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
    )


def token_loss(
    model: PreTrainedModel,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    loss_of: ChunkLoss,
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
) -> torch.Tensor:
    """The sum of `loss_of` over chunks of log-probabilities: one scalar, to be differentiated once.

    For a loss that is a sum over tokens, `loss_of(logprobs [m], where)` being the share of the tokens `where` (a slice
    of the n). As `loss_of(token_logprobs(…), slice(None))`, but no logits are computed twice or kept.
    """
    weight = _plain_head(model)
    if weight is None or not len(targets):
        logprobs = token_logprobs(model, hidden, targets, temperature=temperature, chunk_size=chunk_size)
        return loss_of(logprobs, slice(None))
    loss: torch.Tensor = TokenLoss.apply(
        hidden, weight, targets, temperature, chunk_size or chunk_rows(model, hidden), loss_of
    )
    return loss


def chunk_rows(model: PreTrainedModel, hidden: torch.Tensor, parts: int = 1) -> int:
    """So many of the hidden states [n, H] at once that all chunks are about as large and keep to the budget.

    `parts` is how many tensors of a chunk's logits there are at a time.
    """
    budget = CPU_LOGITS_BUDGET if hidden.device.type == "cpu" else LOGITS_BUDGET
    most = max(1, budget // parts // base_model(model).config.get_text_config().vocab_size)
    chunks = -(-len(hidden) // most)
    return max(1, -(-len(hidden) // max(1, chunks)))


def _plain_head(model: PreTrainedModel) -> torch.Tensor | None:
    """The matrix that makes logits of hidden states, where the family does nothing else to them."""
    whole = base_model(model)
    head, config = whole.get_output_embeddings(), whole.config.get_text_config()
    more = (getattr(config, name, None) for name in ("logits_scaling", "logit_scale", "final_logit_softcapping"))
    return head.weight if type(head) in (torch.nn.Linear, Linear) and head.bias is None and not any(more) else None
