"""Log-probabilities of responses, without ever holding logits [B, T, V] for a whole batch.

The output head is applied to response positions only, at most `LOGITS_BUDGET` logits at a time. Autograd would still
keep several [n, V] tensors: logits, their exponentials, and the gradients of both. For a head that is a plain matrix
`TokenLogprobs` and `TokenLoss` hold logits, then probabilities, then the gradient in one buffer of a chunk's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from afarm.backend.batching import TokenBatch, join_and_pad, length_sorted_batches
from afarm.backend.cpu import OneDNNLinear, product
from afarm.backend.distributed import all_reduce_sum, shard
from afarm.core.interfaces import Progress, no_progress

LOGITS_BUDGET = 2**24
"""Logits held at once (64 MiB in float32)."""

CPU_LOGITS_BUDGET = 2**23 - 2**18
"""The same on a CPU: the C library keeps so much memory, and most of it stays in the cache."""

ChunkLoss = Callable[..., Tensor]
"""Takes log-probabilities [m] of a chunk and further values [m] of it; returns a scalar. Their sum is the loss."""


def base_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return the transformers model itself: `model`, or what PEFT wraps, its adapters still active."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def backbone(model: PreTrainedModel) -> PreTrainedModel:
    """Return `model` without its head: from token ids to hidden states."""
    whole = base_model(model)
    return getattr(whole, whole.base_model_prefix)


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Put `model` in eval mode (no dropout) for the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def positions(attention_mask: Tensor) -> Tensor:
    """Number the real tokens [B, T] for position embeddings, so that padding changes no result."""
    return (attention_mask.long().cumsum(-1) - 1).clamp_(min=0)


def position_limit(model: PreTrainedModel) -> int | None:
    """Read how many positions a model was made for, prompt and response together; None if it has no limit."""
    return getattr(base_model(model).config.get_text_config(), "max_position_embeddings", None) or None


def hidden_states(model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Compute the backbone's last hidden states [B, T, H], after the final norm.

    `model` may have any head, and adapters. `input_ids` and `attention_mask` are [B, T].
    """
    output = backbone(model)(
        input_ids=input_ids, attention_mask=attention_mask, position_ids=positions(attention_mask), use_cache=False
    )
    return output.last_hidden_state


def project(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Compute logits [..., V] in float32 from hidden states [..., H], scaled and capped by the family."""
    whole = base_model(model)
    config = whole.config.get_text_config()
    logits = whole.get_output_embeddings()(hidden).float()
    if getattr(config, "logits_scaling", None):  # Granite
        logits = logits / config.logits_scaling
    if getattr(config, "logit_scale", None):  # Cohere
        logits = logits * config.logit_scale
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    return cap * torch.tanh(logits / cap) if cap else logits


def response_scatter(values: Tensor, response_mask: Tensor) -> Tensor:
    """Align values of the True entries of `response_mask` [B, T], given in row order, as [B, R].

    Left-aligned, 0 after each row's end; R is the longest response.
    """
    lengths = response_mask.sum(-1)
    width = int(lengths.max()) if len(lengths) else 0
    aligned = torch.arange(width, device=values.device) < lengths.unsqueeze(-1)
    return values.new_zeros(aligned.shape).masked_scatter(aligned, values)


def response_logprobs(
    model: PreTrainedModel,
    input_ids: Tensor,
    attention_mask: Tensor,
    response_mask: Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
) -> Tensor:
    """Compute log-probabilities [B, R] (natural, float32) of the response tokens, 0 after each row's end.

    Differentiable; the projection is recomputed in the backward pass. For a sum over tokens `token_loss` is cheaper.

    Args:
        model: a causal LM, with adapters or without.
        input_ids: [B, T], as `join_and_pad` makes them; left padding gives the same numbers.
        attention_mask: [B, T].
        response_mask: [B, T], true for the tokens to score, each of which must have a token before it.
        temperature: logits are divided by it.
        chunk_size: positions projected at once; changes no result (default: as many as `LOGITS_BUDGET` allows).
    """
    hidden, targets = before_responses(model, input_ids, attention_mask, response_mask)
    logprobs = token_logprobs(model, hidden, targets, temperature=temperature, chunk_size=chunk_size)
    return response_scatter(logprobs, response_mask)


@torch.no_grad()
def read_responses(
    read: Callable[[TokenBatch], Tensor],
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    *,
    batch_size: int,
    pad_id: int,
    device: torch.device | str = "cpu",
    progress: Progress = no_progress,
    shared: bool = True,
) -> Tensor:
    """Read a value for each token of N responses: [N, R] in float32, left-aligned, 0 after each row's end.

    Rows of like length are read together, without gradient.

    Args:
        read: returns a value (log-probability, state value …) for each of a batch's n response tokens, row by row.
        prompts: token ids of the N prompts.
        responses: token ids of the N responses.
        batch_size: rows per batch.
        pad_id: the token that fills a batch up.
        device: the device of batches and result.
        progress: shows how many batches are read.
        shared: each process reads a shard of the rows and gets all values, which every process must ask for; False to
            read all rows in this process alone, as a reward model's `score` must.
    """
    values = torch.zeros(len(responses), max(map(len, responses), default=0), device=device)
    rows = shard(range(len(responses))) if shared else range(len(responses))
    lengths = [len(prompts[row]) + len(responses[row]) for row in rows]
    batches = length_sorted_batches(lengths, batch_size)
    for places in progress(batches, "batches read") if len(batches) > 1 else batches:
        picked = [rows[place] for place in places]
        batch = join_and_pad([prompts[row] for row in picked], [responses[row] for row in picked], pad_id, device)
        aligned = response_scatter(read(batch), batch.response_mask)
        values[picked, : aligned.shape[1]] = aligned
    if shared:
        all_reduce_sum([values])
    return values


def before_responses(
    model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor, response_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute (hidden states [n, H] that predict the response tokens, those tokens [n]), row after row.

    All arguments are [B, T], as in `response_logprobs`.
    """
    rows, columns = response_mask.nonzero(as_tuple=True)
    return hidden_states(model, input_ids, attention_mask)[rows, columns - 1], input_ids[rows, columns]


def token_logprobs(
    model: PreTrainedModel,
    hidden: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
) -> Tensor:
    """Compute log-probabilities [n] of `targets` [n] after `hidden` [n, H]; see `response_logprobs`."""
    rows = chunk_size or chunk_rows(model, hidden)
    if not len(targets):
        return hidden.new_zeros(0, dtype=torch.float32)
    weight = _plain_head(model)
    if weight is not None:
        return TokenLogprobs.apply(hidden, weight, targets, temperature, rows)

    def score(chunk: Tensor, chunk_targets: Tensor) -> Tensor:
        logits = project(model, chunk) / temperature
        return logits.gather(-1, chunk_targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)

    recompute = len(targets) > rows and hidden.requires_grad
    return torch.cat(
        [
            checkpoint(score, chunk, chunk_targets, use_reentrant=False) if recompute else score(chunk, chunk_targets)
            for chunk, chunk_targets in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
    )


def token_loss(
    model: PreTrainedModel,
    hidden: Tensor,
    targets: Tensor,
    loss_of: ChunkLoss,
    *tensors: Tensor,
    temperature: float = 1.0,
    chunk_size: int | None = None,
) -> Tensor:
    """Sum `loss_of` over chunks of log-probabilities: one scalar, to be differentiated once.

    Like `loss_of(token_logprobs(…), *tensors)` for a loss that is a sum over tokens, but no logits are computed twice
    or kept.

    Args:
        model: a causal LM, with adapters or without.
        hidden: [n, H], as `before_responses` gives them.
        targets: [n], the next tokens.
        loss_of: takes log-probabilities [m] of a chunk and the values [m] of `tensors` there; returns their loss.
        tensors: [n], further arguments of the loss.
        temperature: logits are divided by it.
        chunk_size: positions projected at once; changes no result.
    """
    weight = _plain_head(model)
    if weight is None or not len(targets):
        logprobs = token_logprobs(model, hidden, targets, temperature=temperature, chunk_size=chunk_size)
        return loss_of(logprobs, *tensors)
    rows = chunk_size or chunk_rows(model, hidden)
    return TokenLoss.apply(hidden, weight, targets, temperature, rows, loss_of, tensors)


def logits_at_once(device: str) -> int:
    """Return how many logits are held at once on a type of device, such as "cuda"."""
    return CPU_LOGITS_BUDGET if device == "cpu" else LOGITS_BUDGET


def chunk_rows(model: PreTrainedModel, hidden: Tensor, parts: int = 1) -> int:
    """Choose how many of the hidden states [n, H] to project at once, with `parts` tensors of logits."""
    most = max(1, logits_at_once(hidden.device.type) // parts // base_model(model).config.get_text_config().vocab_size)
    chunks = -(-len(hidden) // most)
    return max(1, -(-len(hidden) // max(1, chunks)))


def _plain_head(model: PreTrainedModel) -> Tensor | None:
    """Return the output head's matrix, if the model's family does nothing else to logits."""
    whole = base_model(model)
    head, config = whole.get_output_embeddings(), whole.config.get_text_config()
    extras = (getattr(config, name, None) for name in ("logits_scaling", "logit_scale", "final_logit_softcapping"))
    return (
        head.weight if type(head) in (torch.nn.Linear, OneDNNLinear) and head.bias is None and not any(extras) else None
    )


# ------------------------------------------------------------------------------------- plain output heads


def chunk_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Compute (log-probabilities [m] of `targets`, probabilities [m, V]) from `hidden` [m, H], in float32."""
    logits = product(hidden, weight).float()
    if temperature != 1:
        logits /= temperature
    highest = logits.amax(-1)
    picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    probabilities = torch.softmax(logits, -1, out=logits)
    return picked - log_normaliser(highest, probabilities), probabilities


def log_normaliser(highest: Tensor, probabilities: Tensor) -> Tensor:
    """Compute the logsumexp [m] of logits from the highest logit [m] and the softmax [m, V]."""
    return highest - probabilities.amax(-1).log()


class TokenLogprobs(torch.autograd.Function):
    """Log-probabilities [n] of `targets` after `hidden` [n, H], computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, rows: int) -> Tensor:
        ctx.save_for_backward(hidden, weight, targets)
        ctx.temperature, ctx.rows, ctx.dtype = temperature, rows, _compute_dtype(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            cast = weight.to(ctx.dtype)
            return torch.cat(
                [
                    chunk_logprobs(h.to(ctx.dtype), cast, t, temperature)[0]
                    for h, t in zip(hidden.split(rows), targets.split(rows), strict=True)
                ]
            )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets = ctx.saved_tensors
        gradients = _gradients(
            hidden, weight, targets, ctx.temperature, ctx.rows, ctx.dtype, ctx.needs_input_grad[1],
            lambda logprobs, where: upstream[0][where],
        )  # fmt: skip
        return *gradients, None, None, None


class TokenLoss(torch.autograd.Function):
    """The sum of `loss_of` over chunks, with gradients taken while each chunk's logits exist."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        rows: int,
        loss_of: ChunkLoss,
        tensors: Sequence[Tensor],
    ) -> Tensor:
        losses = []

        def gradient(logprobs: Tensor, where: slice) -> Tensor:
            with torch.enable_grad():
                loss = loss_of(logprobs.requires_grad_(), *(values[where] for values in tensors))
                losses.append(loss.detach())
                return torch.autograd.grad(loss, logprobs)[0]

        ctx.gradients = _gradients(
            hidden, weight, targets, temperature, rows, _compute_dtype(hidden), ctx.needs_input_grad[1], gradient
        )
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [g if g is None or upstream[0] == 1 else g * upstream[0] for g in ctx.gradients]
        del ctx.gradients
        return *gradients, None, None, None, None, None


def _gradients(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    rows: int,
    dtype: torch.dtype,
    train_weight: bool,
    upstream: Callable[[Tensor, slice], Tensor],
) -> tuple[Tensor, Tensor | None]:
    """Compute gradients of hidden states and weight; `upstream` gives a chunk's log-probabilities'."""
    hidden_gradient = torch.empty_like(hidden)
    weight_gradient: Tensor | None = None
    with torch.autocast(hidden.device.type, enabled=False):
        cast_weight = weight.to(dtype)
        for start in range(0, len(targets), rows):
            where = slice(start, start + rows)
            chunk, chunk_targets = hidden[where].to(dtype), targets[where].unsqueeze(-1)
            logprobs, probabilities = chunk_logprobs(chunk, cast_weight, chunk_targets.squeeze(-1), temperature)
            # The loss's gradient scales the products, which are small beside the row of logits
            scale = (upstream(logprobs, where) / -temperature).unsqueeze(-1).to(dtype)
            probabilities.scatter_add_(-1, chunk_targets, probabilities.new_full(chunk_targets.shape, -1.0))
            residual = probabilities.to(dtype)
            hidden_gradient[where] = product(residual, cast_weight.T) * scale
            if not train_weight:
                continue
            if weight_gradient is None:
                weight_gradient = torch.mm(residual.T, chunk * scale).to(weight.dtype)
            elif weight_gradient.dtype == dtype:
                weight_gradient.addmm_(residual.T, chunk * scale)
            else:
                weight_gradient += torch.mm(residual.T, chunk * scale)
    return hidden_gradient, weight_gradient


def _compute_dtype(hidden: Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
