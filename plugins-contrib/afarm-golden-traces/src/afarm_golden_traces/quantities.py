"""Parts of a trace: quantities in order, each a formula of those before it.

A step of training is `before` (what is collected once) and twice `each_pass`: the loss at the present weights, its
gradient, and a step of AdamW. The second pass learns from the same rows, at the weights after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from afarm_golden_traces.model import Array, Weights, join, token_entropies, token_logprobs

PASSES = ("", "second/")
"""What names of quantities begin with in each pass."""

SAYS = {
    "gradients": "the derivative of loss by each weight, before clipping; what was collected before is constant",
    "gradient_norm": "the L2 norm of all gradients together, before clipping",
    "parameters": "each weight after a step of AdamW on gradients clipped to max_grad_norm; every weight decays",
}
"""Definitions of what ends each pass."""


class Values(dict[str, Any]):
    """Inputs, hyperparameters and quantities by name, also as attributes. `read` has those looked at."""

    def __init__(self, *others: Mapping[str, Any], **changes: Any):
        for other in (*others, changes):
            self.update(other)
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> Any:
        self.read[name] = None
        return super().__getitem__(name)

    def __getattr__(self, name: str) -> Any:
        return self[name]


Formula = Callable[..., Any]


@dataclass(frozen=True)
class Quantity:
    """A quantity, its definition in words and as a formula, and mistakes in it that no general rule makes."""

    name: str
    axes: tuple[str, ...]
    """Of "row" or "pair", then "token"; () is a number."""
    says: str
    formula: Formula
    """From `Values` to the quantity. It may be complex: the imaginary part is then a derivative."""
    batch: str = "batch"
    """The `Batch` that tokens are of."""
    mistakes: Mapping[str, Formula] = field(default_factory=dict)
    at_pads: bool = False
    """True if its zeros at pads are part of it."""


def reading(name: str, axis: str, batch: str, weights: str, whose: str, network: str = "") -> Quantity:
    """Make the quantity that a language model reads of each token: log-probability, or "entropy"."""

    def read(v: Values) -> Array:
        own = part(v[weights], network) if network else v[weights]
        if name == "entropy":
            return token_entropies(own, v[batch], v.temperature)
        return token_logprobs(own, v[batch], v.temperature, v.own_place)

    says = f"log-probability of each response token, its EOS included, under {whose}, logits divided by the temperature"
    if name == "entropy":
        return Quantity(name, (axis, "token"), f"entropy of {whose} where each response token is drawn, in nats", read)
    return Quantity(name, (axis, "token"), says, read, batch)


@dataclass(frozen=True)
class Method:
    """A method's quantities, and variants: hyperparameters under which other trainers define it."""

    name: str
    title: str
    before: Sequence[Quantity]
    each_pass: Sequence[Quantity]
    batches: Mapping[str, tuple[str, str]]
    """Names of `Batch`es, and the inputs that are their prompts and responses."""
    variants: Mapping[str, Mapping[str, Any]]

    def definitions(self) -> dict[str, str]:
        """Every quantity's definition, in order; those of the second pass are the same."""
        return {quantity.name: quantity.says for quantity in (*self.before, *self.each_pass)} | SAYS

    def start(self, inputs: Mapping[str, Any], hyperparameters: Mapping[str, Any]) -> Values:
        """The values that a step begins with: inputs, hyperparameters and batches."""
        values = Values({"temperature": 1.0, "own_place": 0}, inputs, hyperparameters)
        for name, (prompts, responses) in self.batches.items():
            values[name] = join(inputs[prompts], inputs[responses], hyperparameters["pad_token_id"])
        return values


def norm_of(gradients: Mapping[str, Array]) -> float:
    """The L2 norm over all weights."""
    return float(np.sqrt(sum((g * g).sum() for g in gradients.values())))


def adamw(weights: Weights, history: Sequence[Mapping[str, Array]], settings: Mapping[str, Any]) -> dict[str, Array]:
    """Take a step of AdamW (Loshchilov and Hutter 2019) after the gradients of `history`, the last new.

    Each gradient is first scaled to a norm of at most `max_grad_norm`. All weights decay.
    """
    first, second = settings["adam_beta1"], settings["adam_beta2"]
    scales = [min(1.0, settings["max_grad_norm"] / (norm_of(gradients) + 1e-6)) for gradients in history]
    stepped = {}
    for name, weight in weights.items():
        mean = square = np.zeros(weight.shape)
        for gradients, scale in zip(history, scales, strict=True):
            mean = first * mean + (1 - first) * scale * gradients[name]
            square = second * square + (1 - second) * (scale * gradients[name]) ** 2
        mean, square = mean / (1 - first ** len(history)), square / (1 - second ** len(history))
        decayed = weight * (1 - settings["learning_rate"] * settings["weight_decay"])
        stepped[name] = decayed - settings["learning_rate"] * mean / (np.sqrt(square) + settings["adam_epsilon"])
    return stepped


def part(weights: Weights, network: str) -> Weights:
    """One network's weights of several: those named `network.…`, without that word."""
    return {name.removeprefix(f"{network}."): w for name, w in weights.items() if name.startswith(f"{network}.")}
