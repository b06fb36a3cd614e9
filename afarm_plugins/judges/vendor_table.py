"""Vendors that speak OpenAI's format: an entry of vendors.yaml each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

OPEN_THINKERS = (
    r"gpt-oss|thinking|reason(er|ing)|\bqwq|qwen-?3(?!.*instruct)|deepseek-(flash|v[4-9])|deepseek.*\br1\b|glm-?[4-9]"
    r"|kimi-k2[p.]|minimax-m\d|magistral|nemotron"
)
"""Models with public weights that think before they answer, whoever serves them."""
LIMITS = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True)
class Vendor:
    """A vendor's endpoint: address, key, prices, a model as `example`, and what differs from OpenAI's.

    `limit` is the parameter of an answer's limit. Log-probabilities are asked for by a "flag", as OpenAI's, or by their
    "count"; empty where there are none. `schema` holds if every model can be held to a JSON schema. `thinks` is a
    pattern of models that think, beside those with public weights; `thinking_lacks` what they then do not take, and
    `without_thoughts` what `effort=none` sends.
    """

    name: str
    url: str
    key_variable: str
    prices: str
    documentation: str
    example: str
    limit: str = LIMITS[0]
    logprobs: str = ""
    schema: bool = True
    thinks: str = ""
    thinking_lacks: Sequence[str] = ()
    without_thoughts: Mapping[str, Any] = field(default_factory=lambda: {"reasoning_effort": "none"})

    def thinks_by_name(self, model: str) -> bool:
        patterns = [self.thinks] if self.thinks.startswith("^") else [OPEN_THINKERS, *filter(None, [self.thinks])]
        return any(re.search(pattern, model, re.IGNORECASE) for pattern in patterns)


def read_vendors() -> dict[str, Vendor]:
    text = Path(__file__).with_name("vendors.yaml").read_text(encoding="utf-8")
    loaded = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {name: Vendor(**entry) for name, entry in loaded.items()}


VENDORS = read_vendors()
