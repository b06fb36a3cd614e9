"""Parameters of a request that its judge does not accept, and the request without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from afarm.core.judge import Capabilities, ChatRequest


def unsupported(request: ChatRequest, capabilities: Capabilities) -> tuple[str, ...]:
    """List the parameters of `request` that a judge with these capabilities does not accept, by name.

    A temperature and a top_p of 1 are every model's default. A schema is never listed: the prompt asks for the format
    as well.
    """
    missing = {
        "temperature": request.temperature != 1.0 and not capabilities.temperature,
        "top_p": request.top_p != 1.0 and not capabilities.temperature,
        "logit_bias": bool(request.favoured_tokens or request.penalised_tokens) and not capabilities.logit_bias,
        "top_logprobs": request.top_logprobs > 0 and not capabilities.logprobs,
        "tool": request.tool is not None and not capabilities.tool,
    }
    return tuple(name for name, lacks in missing.items() if lacks)


def without(request: ChatRequest, parameters: Sequence[str]) -> ChatRequest:
    """Copy `request` without these `parameters`, named as by `unsupported`."""
    plain: dict[str, dict[str, Any]] = {
        "temperature": {"temperature": 1.0},
        "top_p": {"top_p": 1.0},
        "logit_bias": {"favoured_tokens": (), "penalised_tokens": ()},
        "top_logprobs": {"top_logprobs": 0},
        "tool": {"tool": None},
    }
    left_out = {field: value for name in parameters for field, value in plain[name].items()}
    return replace(request, **left_out)
