"""Vendors that speak OpenAI's format, by name: an entry of vendors.yaml each, over one client."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from afarm_plugins.judges.openai_judge import EndpointJudge

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


@cache
def __getattr__(name: str) -> type[EndpointJudge]:
    """Make the judge's class of a vendor, when it is first used: it needs the package openai."""
    if name not in VENDORS:
        raise AttributeError(name)
    from afarm import Capabilities, ChatRequest, Completion
    from afarm_plugins.judges.openai_judge import EndpointJudge
    from afarm_plugins.judges.payloads import turns
    from afarm_plugins.judges.vendor import SYSTEM, Form

    entry = VENDORS[name]

    class NamedJudge(EndpointJudge):
        section, vendor, vendor_url, priced_as = name, entry.name, entry.url, entry.prices
        limit_names = LIMITS if entry.limit == LIMITS[0] else LIMITS[::-1]

        def capabilities_of_model(self) -> Capabilities:
            shared = Capabilities(chat=True, temperature=True, tool=True)
            takes = replace(shared, schema=entry.schema, logprobs=bool(entry.logprobs))
            return replace(takes, **dict.fromkeys(entry.thinking_lacks if self.thinks else (), False))

        @property
        def thinks(self) -> bool:
            return self.config.effort != "none" and bool(self.config.effort or entry.thinks_by_name(self.model))

        def payload(self, request: ChatRequest, form: Form = frozenset()) -> tuple[str, dict[str, Any]]:
            """As OpenAI's, with turns that alternate and have no names, which Groq and Mistral refuse."""
            path, body = super().payload(request, form)
            if request.messages:
                system, others = turns(request, is_moved=SYSTEM in form)
                body["messages"] = [{"role": "system", "content": system}] * bool(system) + others
                if entry.logprobs == "count" and request.top_logprobs:
                    body["logprobs"] = body.pop("top_logprobs")
            if body.get("reasoning_effort") == "none":
                del body["reasoning_effort"]
                body |= entry.without_thoughts
            return path, body

        def holds_answer(self, body: Any) -> bool:
            """False as well for a choice that ended in a provider's error (OpenRouter)."""
            return super().holds_answer(body) and not body["choices"][0].get("error")

        def read(self, body: Mapping[str, Any]) -> Completion:
            """Count thoughts as output, as they are charged: Google and xAI leave them out of `completion_tokens`."""
            answer = super().read(body)
            [total] = self.counts(body, "usage", "total_tokens")
            made = max(answer.output_tokens, total - answer.input_tokens) if answer.input_tokens else 0
            return replace(answer, output_tokens=made or answer.output_tokens)

    return NamedJudge
