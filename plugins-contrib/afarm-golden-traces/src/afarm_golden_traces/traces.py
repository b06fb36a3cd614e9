"""Traces: one JSON file per method, with what a trainer is given and every quantity that comes out."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from afarm_golden_traces.model import Array, pad
from afarm_golden_traces.on_policy import GRPO, PPO, RLOO
from afarm_golden_traces.preferences import DPO, KTO, REWARD
from afarm_golden_traces.quantities import Method

METHODS: Mapping[str, Method] = {method.name: method for method in (PPO, DPO, GRPO, RLOO, KTO, REWARD)}


class TraceError(ValueError):
    """An unknown method or variant, or a dump that cannot be read. The message says what to do."""


@dataclass(frozen=True)
class Trace:
    """The inputs of a trainer, and what comes out."""

    method: Method
    variant: str
    stored: Mapping[str, Any]
    """The trace as JSON has it."""
    model: Mapping[str, Any]
    """Settings of transformers' `LlamaConfig`."""
    inputs: Mapping[str, Any]
    """Token ids, not padded: `prompts`, `responses` …, one list a row; rewards and labels."""
    hyperparameters: Mapping[str, Any]
    weights: Mapping[str, Mapping[str, Array]]
    """Weights by network ("learned", "reference", "old" …) and by transformers' names."""
    quantities: Mapping[str, Any]
    """By name, in order: arrays, 0 at pads; "gradients" and "parameters" are dicts of arrays."""

    def padded(self, name: str, side: str) -> tuple[Array, Array]:
        """Pad an input on the "left" or the "right": token ids, and True at tokens, both [rows, width]."""
        return pad(self.inputs[name], side, self.hyperparameters["pad_token_id"])


def load_trace(method: str, variant: str = "") -> Trace:
    """Load a method's trace. Raises `TraceError` for an unknown name."""
    if method not in METHODS:
        near = difflib.get_close_matches(method, METHODS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise TraceError(f"there is no trace of {method!r}.{hint} There are: {', '.join(METHODS)}.")
    known = METHODS[method]
    if variant and variant not in known.variants:
        there = ", ".join(known.variants)
        raise TraceError(f"{method} has no variant {variant!r}. It has: {there}; without one it is {known.title}.")
    stored = json.loads((files("afarm_golden_traces") / "data" / f"{method}.json").read_text("utf-8"))
    stored["hyperparameters"] |= known.variants.get(variant, {})
    stored["quantities"] |= stored.pop("variants").get(variant, {})
    quantities = {n: arrays(q) if isinstance(q, dict) else np.array(q) for n, q in stored["quantities"].items()}
    weights = {network: arrays(found) for network, found in stored["weights"].items()}
    model, inputs, settings = stored["model"], stored["inputs"], stored["hyperparameters"]
    return Trace(known, variant, {**stored, "variant": variant}, model, inputs, settings, weights, quantities)


def arrays(weights: Mapping[str, Any]) -> dict[str, Array]:
    return {name: np.array(value, dtype=float) for name, value in weights.items()}
