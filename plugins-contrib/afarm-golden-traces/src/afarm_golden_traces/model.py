"""A Llama of one layer in numpy: log-probabilities, values and scores of responses.

Weights are named as in transformers, and may be complex: all is analytic, so an imaginary part is a derivative. Shapes:
B rows, P tokens in the longest prompt, R in the longest response, T = P + R, D the width, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Weights = Mapping[str, Array]

HEADS, THETA, NORM_EPS = 2, 10000.0, 1e-6


class Batch(NamedTuple):
    """Prompts padded on the left, responses on the right."""

    ids: Array
    """Token ids [B, T]."""
    attention: Array
    """True at tokens [B, T]."""
    mask: Array
    """1 at response tokens, 0 at pads [B, R]."""

    @property
    def lengths(self) -> Array:
        """Tokens of each response [B]."""
        return self.mask.sum(-1).astype(int)


def pad(rows: Sequence[Sequence[int]], side: str, pad_id: int = 0) -> tuple[Array, Array]:
    """Pad token ids to the longest row, on the "left" or the "right": (ids, True at tokens)."""
    width = max(map(len, rows))
    ids, real = np.full((len(rows), width), pad_id), np.zeros((len(rows), width), dtype=bool)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[number, place], real[number, place] = row, True
    return ids, real


def join(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], pad_id: int) -> Batch:
    """Put each response behind its prompt."""
    (left, left_real), (right, right_real) = pad(prompts, "left", pad_id), pad(responses, "right", pad_id)
    attention = np.concatenate([left_real, right_real], 1)
    return Batch(np.concatenate([left, right], 1), attention, right_real.astype(float))


def normalise(x: Array, weight: Array) -> Array:
    """RMSNorm (Zhang and Sennrich 2019) of the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + NORM_EPS) * weight


def rotate(x: Array) -> Array:
    """Rotary position embedding (Su et al. 2021) of [B, T, heads, d], by columns: only differences matter."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * THETA ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def log_softmax(x: Array) -> Array:
    """Log-probabilities over the last axis."""
    x = x - x.real.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def hidden_states(weights: Weights, batch: Batch) -> Array:
    """Read the batch, [B, T, D]. A token sees the tokens before it and itself, and no pad."""
    rows, width = batch.ids.shape
    seen = np.tril(np.ones((width, width), dtype=bool)) & batch.attention[:, None, :]
    seen |= np.eye(width, dtype=bool)  # a pad sees itself, so that no softmax is empty
    layer = "layers.0"

    def of(name: str) -> Array:
        return weights[f"model.{name}.weight"]

    x = of("embed_tokens")[batch.ids]
    states = normalise(x, of(f"{layer}.input_layernorm"))
    query, key, value = (
        (states @ of(f"{layer}.self_attn.{name}_proj").T).reshape(rows, width, HEADS, -1) for name in "qkv"
    )
    scores = np.einsum("bqhd,bkhd->bhqk", rotate(query), rotate(key)) / np.sqrt(query.shape[-1])
    attention = np.exp(log_softmax(np.where(seen[:, None], scores, -1e30)))
    attended = np.einsum("bhqk,bkhd->bqhd", attention, value).reshape(rows, width, -1)
    x = x + attended @ of(f"{layer}.self_attn.o_proj").T
    states = normalise(x, of(f"{layer}.post_attention_layernorm"))
    gate, up = states @ of(f"{layer}.mlp.gate_proj").T, states @ of(f"{layer}.mlp.up_proj").T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ of(f"{layer}.mlp.down_proj").T
    return normalise(x, of("norm"))


def before_responses(weights: Weights, batch: Batch, shift: int = 0) -> Array:
    """Read the states [B, R, D] that predict each response token; `shift` 1 takes their own."""
    responses = batch.mask.shape[1]
    last = batch.ids.shape[1] - 1 + shift
    return hidden_states(weights, batch)[:, last - responses : last]


def next_logprobs(weights: Weights, batch: Batch, temperature: float = 1.0, shift: int = 0) -> Array:
    """Log-probabilities [B, R, V] of all tokens in the place of each response token."""
    return log_softmax(before_responses(weights, batch, shift) @ weights["lm_head.weight"].T / temperature)


def token_logprobs(weights: Weights, batch: Batch, temperature: float = 1.0, shift: int = 0) -> Array:
    """Log-probabilities [B, R] of the response tokens, 0 at pads."""
    responses = batch.mask.shape[1]
    chosen = batch.ids[:, -responses:, None]
    return np.take_along_axis(next_logprobs(weights, batch, temperature, shift), chosen, -1)[..., 0] * batch.mask


def token_entropies(weights: Weights, batch: Batch, temperature: float = 1.0) -> Array:
    """Entropies [B, R] of the distributions that response tokens are drawn from, in nats, 0 at pads."""
    logprobs = next_logprobs(weights, batch, temperature)
    return -(np.exp(logprobs) * logprobs).sum(-1) * batch.mask


def token_values(weights: Weights, batch: Batch, shift: int = 0) -> Array:
    """Values [B, R] of the state before each response token; at the first pad that after the end."""
    return (before_responses(weights, batch, shift) @ weights["score.weight"].T)[..., 0]


def scores_at(weights: Weights, batch: Batch, places: Array) -> Array:
    """Scores [B] that the head gives at one column of each row."""
    states = hidden_states(weights, batch)[np.arange(len(places)), places]
    return (states @ weights["score.weight"].T)[..., 0]


# ------------------------------------------------------------------------------------------------------- arithmetic


def by_token(values: Array, mask: Array) -> Array:
    """The mean over all response tokens."""
    return (values * mask).sum() / mask.sum()


def by_row(values: Array, mask: Array) -> Array:
    """The mean over each row's tokens, then over rows."""
    return ((values * mask).sum(-1) / mask.sum(-1)).mean()


def maximum(x: Array, y: Array) -> Array:
    """The larger by real parts."""
    return np.where(np.real(x) >= np.real(y), x, y)


def minimum(x: Array, y: Array) -> Array:
    """The smaller by real parts."""
    return np.where(np.real(x) <= np.real(y), x, y)


def clip(x: Array, low: Any, high: Any) -> Array:
    """`x` within bounds, by real parts; a bound has no derivative."""
    return minimum(maximum(x, np.zeros_like(x) + low), np.zeros_like(x) + high)


def log_sigmoid(x: Array) -> Array:
    return -np.log(1 + np.exp(-x))
