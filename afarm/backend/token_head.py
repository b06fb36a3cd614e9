"""The output head's part of a step: a plain matrix over the vocabulary, whose logits exist only a few rows at a time.

Autograd would keep several [n, V] tensors for a log-probability: logits, their exponentials, and the gradients of both.
Here one buffer of a chunk's size holds logits, then probabilities, then the gradient, and everything is computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from afarm.backend.products import product

ChunkLoss = Callable[[Tensor, slice], Tensor]
"""Takes log-probabilities [m] of some tokens and where these stand among all; returns a scalar loss. Losses add up."""


def chunk_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(log-probabilities [m] of `targets`, probabilities [m, V]), in float32, of one chunk of hidden states [m, H]."""
    logits = product(hidden, weight).float()
    if temperature != 1:
        logits /= temperature
    highest = logits.amax(-1)
    picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    probabilities = torch.softmax(logits, -1, out=logits)
    return picked - log_normaliser(highest, probabilities), probabilities


def log_normaliser(highest: Tensor, probabilities: Tensor) -> Tensor:
    """The log of the sum of exponentiated logits [m], from the highest logit [m] and the softmax [m, V] of all.

    Without a pass over exponentials of its own: the likeliest token's probability holds the sum.
    """
    return highest - probabilities.amax(-1).log()


class TokenLogprobs(torch.autograd.Function):
    """Log-probabilities [n] of `targets` after `hidden` [n, H], `rows` at a time; the backward pass recomputes them."""

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
    """The sum of `loss_of` over chunks. Gradients are taken with each chunk's logits at hand: nothing is recomputed."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, rows: int, loss_of: ChunkLoss
    ) -> Tensor:
        losses = []

        def gradient(logprobs: Tensor, where: slice) -> Tensor:
            with torch.enable_grad():
                loss = loss_of(logprobs.requires_grad_(), where)
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
        return *gradients, None, None, None, None


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
    """The gradients of hidden states and weight, where `upstream` gives those of a chunk's log-probabilities."""
    of_hidden = torch.empty_like(hidden)
    of_weight: Tensor | None = None
    with torch.autocast(hidden.device.type, enabled=False):
        cast = weight.to(dtype)
        for start in range(0, len(targets), rows):
            where = slice(start, start + rows)
            part, wanted = hidden[where].to(dtype), targets[where].unsqueeze(-1)
            logprobs, probabilities = chunk_logprobs(part, cast, wanted.squeeze(-1), temperature)
            # What the loss makes of a row multiplies its products, which are small beside the row of logits
            scale = (upstream(logprobs, where) / -temperature).unsqueeze(-1).to(dtype)
            probabilities.scatter_add_(-1, wanted, probabilities.new_full(wanted.shape, -1.0))
            residual = probabilities.to(dtype)
            of_hidden[where] = product(residual, cast.T) * scale
            if not train_weight:
                continue
            if of_weight is None:
                of_weight = torch.mm(residual.T, part * scale).to(weight.dtype)
            elif of_weight.dtype == dtype:
                of_weight.addmm_(residual.T, part * scale)
            else:
                of_weight += torch.mm(residual.T, part * scale)
    return of_hidden, of_weight


def _compute_dtype(hidden: Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
