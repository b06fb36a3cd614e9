"""Vendors whose endpoint speaks OpenAI's format, by name: an entry of data each, over one client.

An entry holds what the vendor's own documentation says, read on the date in `READ`. Prices are those that genai-prices
lists under `prices`; a model that it does not list has no price, and is said to have none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

READ = "2026-11-29"

OPEN_THINKERS = (
    r"gpt-oss|thinking|reason(er|ing)|\bqwq|qwen-?3(?!.*instruct)|deepseek-(flash|v[4-9])|deepseek.*\br1\b|glm-?[4-9]"
    r"|kimi-k2[p.]|minimax-m\d|magistral|nemotron"
)
"""Models with public weights that think before they answer, under whatever name a vendor serves them."""


@dataclass(frozen=True)
class Vendor:
    """A vendor's endpoint: address, key, prices, and where it differs from OpenAI's."""

    name: str
    url: str
    key_variable: str
    prices: str
    """The vendor's name in genai-prices."""
    documentation: str
    example: str
    """A model, as the vendor names it."""
    limit: str = "max_tokens"
    """The parameter of an answer's limit."""
    logprobs: str = ""
    """The way to ask for log-probabilities: "flag" (OpenAI's), "count" (their number), or none."""
    schema: bool = True
    """True if every model can be held to a JSON schema."""
    thinks: str = OPEN_THINKERS
    """A pattern of models that think before they answer."""
    thinking_lacks: tuple[str, ...] = ()
    """Capabilities that a model does not have while it thinks."""
    without_thoughts: tuple[tuple[str, Any], ...] = (("reasoning_effort", "none"),)
    """The fields that `effort=none` sends."""


VENDORS = {
    "gemini": Vendor(
        "Google",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
        "google",
        "https://ai.google.dev/gemini-api/docs/openai",
        "gemini-2.5-flash",
        thinks=r"^(models/)?gemini-(2\.5-(?!flash-lite)|[3-9])|gemini-.*-latest",
    ),
    "openrouter": Vendor(
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        "openrouter",
        "https://openrouter.ai/docs/api/reference/overview",
        "meta-llama/llama-3.3-70b-instruct",
        logprobs="flag",
        schema=False,
        thinks=rf"{OPEN_THINKERS}|openai/(o\d|gpt-[5-9](?!.*-chat))|google/gemini-(2\.5|[3-9])|x-ai/grok-(4|3-mini)",
    ),
    "groq": Vendor(
        "Groq",
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        "groq",
        "https://console.groq.com/docs/openai",
        "llama-3.3-70b-versatile",
        limit="max_completion_tokens",
        schema=False,
    ),
    "together": Vendor(
        "Together",
        "https://api.together.xyz/v1",
        "TOGETHER_API_KEY",
        "together",
        "https://docs.together.ai/reference/chat-completions-1",
        "meta-llama/Llama-3.3-70B-Instruct-Turbo",
        logprobs="count",
        schema=False,
    ),
    "deepseek": Vendor(
        "DeepSeek",
        "https://api.deepseek.com",
        "DEEPSEEK_API_KEY",
        "deepseek",
        "https://api-docs.deepseek.com/api/create-chat-completion",
        "deepseek-v4-flash",
        logprobs="flag",
        schema=False,
        thinks=r"^deepseek-(?!chat)",
        thinking_lacks=("temperature", "logprobs", "tool"),
        without_thoughts=(("thinking", {"type": "disabled"}),),
    ),
    "mistral": Vendor(
        "Mistral",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        "mistral",
        "https://docs.mistral.ai/api/endpoint/chat",
        "mistral-large-latest",
    ),
    "fireworks": Vendor(
        "Fireworks",
        "https://api.fireworks.ai/inference/v1",
        "FIREWORKS_API_KEY",
        "fireworks",
        "https://docs.fireworks.ai/tools-sdks/openai-compatibility",
        "accounts/fireworks/models/llama-v3p3-70b-instruct",
        logprobs="flag",
    ),
    "xai": Vendor(
        "xAI",
        "https://api.x.ai/v1",
        "XAI_API_KEY",
        "x-ai",
        "https://docs.x.ai/docs/api-reference",
        "grok-4-fast-non-reasoning",
        limit="max_completion_tokens",
        thinks=r"^grok-(?!.*non-reasoning)([4-9]|3-mini|code)",
    ),
    "cerebras": Vendor(
        "Cerebras",
        "https://api.cerebras.ai/v1",
        "CEREBRAS_API_KEY",
        "cerebras",
        "https://inference-docs.cerebras.ai/api-reference/chat-completions",
        "llama-3.3-70b",
        limit="max_completion_tokens",
        logprobs="flag",
    ),
}


@cache
def __getattr__(name: str) -> type:
    """The judge's class of a vendor in `VENDORS`, made when it is first used: it needs the package openai."""
    if name not in VENDORS:
        raise AttributeError(name)
    from afarm import Capabilities, ChatRequest, Completion
    from afarm_plugins.judges.openai_judge import EndpointJudge
    from afarm_plugins.judges.payloads import turns
    from afarm_plugins.judges.vendor import SYSTEM, Form

    entry = VENDORS[name]
    limits = ("max_tokens", "max_completion_tokens")

    class NamedJudge(EndpointJudge):
        section, vendor, vendor_url, priced_as = name, entry.name, entry.url, entry.prices
        limit_names = limits if entry.limit == limits[0] else limits[::-1]

        def capabilities_of_model(self) -> Capabilities:
            takes = Capabilities(
                chat=True, temperature=True, tool=True, schema=entry.schema, logprobs=bool(entry.logprobs)
            )
            return replace(takes, **dict.fromkeys(entry.thinking_lacks if self.thinks else (), False))

        @property
        def thinks(self) -> bool:
            named = re.search(entry.thinks, self.model, re.IGNORECASE) is not None
            return self.config.effort != "none" if named else bool(self.config.effort) and self.config.effort != "none"

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
                body |= dict(entry.without_thoughts)
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

    NamedJudge.__name__ = NamedJudge.__qualname__ = f"{entry.name}Judge"
    return NamedJudge
