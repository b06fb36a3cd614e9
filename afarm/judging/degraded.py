"""Parameters of a request that its judge does not accept, and the request without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from afarm.core.judge import Capabilities, ChatRequest

PARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "temperature": ("temperature", {"temperature": 1.0}),
    "top_p": ("temperature", {"top_p": 1.0}),
    "logit_bias": ("logit_bias", {"favoured_tokens": (), "penalised_tokens": ()}),
    "top_logprobs": ("logprobs", {"top_logprobs": 0}),
    "tool": ("tool", {"tool": None}),
}
"""The capability that each parameter needs, and the fields of a request without it: every model's defaults."""


def unsupported(request: ChatRequest, capabilities: Capabilities) -> tuple[str, ...]:
    """List the parameters of `request` that a judge with these capabilities does not accept, by name.

    A schema is never listed: the prompt asks for the format as well.
    """
    return tuple(
        name
        for name, (capability, plain) in PARAMETERS.items()
        if not getattr(capabilities, capability)
        and any(getattr(request, field) not in (value, []) for field, value in plain.items())
    )


def without(request: ChatRequest, parameters: Sequence[str]) -> ChatRequest:
    """Copy `request` without these `parameters`, named as by `unsupported`."""
    left_out = {field: value for name in parameters for field, value in PARAMETERS[name][1].items()}
    return replace(request, **left_out)
