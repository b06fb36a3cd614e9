"""Judges of vendors that speak OpenAI's format, by name: a class each, over one client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from afarm_plugins.judges.vendor_table import LIMITS, VENDORS

if TYPE_CHECKING:
    from afarm_plugins.judges.openai_judge import EndpointJudge


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
