"""Judges behind Anthropic's Messages API.

It takes no temperature, top_p, log-probabilities or logit bias (2026-11), and tells no tokenizer. A schema holds the
answer to its format, and where a model may think, so does the schema of a tool's arguments: such models refuse a tool
that they are made to call, and the arguments are all that is wanted of the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from afarm import Capabilities, ChatRequest, Completion, JudgeError
from afarm_plugins.judges.payloads import closed, make_batch_id, parse_batch_id, turns, written
from afarm_plugins.judges.vendor import SYSTEM, Form, VendorJudge, require_package

require_package("anthropic")

PATH = "/v1/messages"
MOST_IN_A_BATCH = 100_000
DO_NOT_THINK_BY_THEMSELVES = re.compile(r"^claude-(\d|[a-z]+-[34]\b)")
"""Up to the fourth generation. Later models think unless they are told not to, and some even then."""
OLDER_THAN_SCHEMAS = re.compile(r"^claude-(\d|instant|[a-z]+-3\b|[a-z]+-4(?!-[2-9]\b))")
"""Up to version 4.1: structured outputs came with 4.5."""

FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "stop", "max_tokens": "length"}


class AnthropicJudge(VendorJudge):
    """`anthropic:MODEL`."""

    sdk_name = "anthropic"
    section, vendor, vendor_url = "anthropic", "Anthropic", "https://api.anthropic.com"
    beyond = frozenset({"completion", "logit_bias", "logprobs"})

    def capabilities_of_model(self) -> Capabilities:
        return Capabilities(temperature=False, schema=not OLDER_THAN_SCHEMAS.match(self.model), tool=True, batch=True)

    @property
    def thinks(self) -> bool:
        return self.config.effort != "none" and not DO_NOT_THINK_BY_THEMSELVES.match(self.model)

    def client(self, **options: Any) -> Any:
        return self.sdk.AsyncAnthropic(**options, open_telemetry=False)

    # ------------------------------------------------------------------------------------------------ what is sent

    def payload(self, request: ChatRequest, form: Form = frozenset()) -> tuple[str, dict[str, Any]]:
        system, messages = turns(request, is_moved=SYSTEM in form)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.most_output_tokens(request),
            "messages": messages,
        }
        if system:
            body["system"] = system
        sampling = {"temperature": request.temperature, "top_p": request.top_p}  # older models take them
        body |= {name: value for name, value in sampling.items() if value != 1.0}
        output: dict[str, Any] = {}
        if self.config.effort == "none":
            body["thinking"] = {"type": "disabled"}
        elif self.config.effort:
            output["effort"] = self.config.effort
        schema = request.schema
        if request.tool is not None:
            if self.thinks:
                schema = request.tool.parameters
            else:
                tool = request.tool
                body["tools"] = [{"name": tool.name, "description": tool.description, "input_schema": tool.parameters}]
                body["tool_choice"] = {"type": "tool", "name": tool.name}
                schema = None
        if schema is not None and self.capabilities.schema:
            output["format"] = {"type": "json_schema", "schema": closed(schema)}
        if output:
            body["output_config"] = output
        return PATH, body

    # -------------------------------------------------------------------------------------------- what is received

    def holds_answer(self, body: Any) -> bool:
        return isinstance(body, Mapping) and isinstance(body.get("content"), list) and body.get("type") == "message"

    def read(self, body: Mapping[str, Any]) -> Completion:
        """Thoughts are not part of the text. What was written to the vendor's cache counts as input."""
        blocks = [block for block in body["content"] if isinstance(block, Mapping)]
        calls = [json.dumps(b.get("input"), ensure_ascii=False) for b in blocks if b.get("type") == "tool_use"]
        text = "".join(written(block.get("text")) for block in blocks if block.get("type") == "text")
        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
        fresh, stored, cached, made = self.counts(body, "usage", *names)
        reason = self.word(body, "stop_reason")
        return Completion(
            calls[0] if calls else text,
            input_tokens=fresh + stored + cached,
            output_tokens=made,
            cached_input_tokens=cached,
            finish_reason=FINISH.get(reason, reason),
            model=self.word(body, "model") or self.model,
        )

    # -------------------------------------------------------------------------------------------- the batch endpoint

    async def submit(self, requests: Sequence[ChatRequest]) -> str:
        if not 0 < len(requests) <= MOST_IN_A_BATCH:
            raise JudgeError(f"a batch for {self.identity} takes 1 to {MOST_IN_A_BATCH} requests", charged=False)
        named = [
            {"custom_id": name, "params": self.sent(request)[1]}
            for name, request in zip(self.names_in_batch(requests), requests, strict=True)
        ]
        with self.explaining():
            # Not sent again after a broken connection: the first may have arrived, and would be paid for as well.
            batch = await self._client.with_options(max_retries=0).messages.batches.create(requests=named)
        return make_batch_id(batch.id, len(requests))

    async def collect(self, batch_id: str) -> Sequence[Completion | None] | None:
        name, count = parse_batch_id(batch_id)
        with self.explaining(missing=f"the batch {name} is not known to {self.vendor} (any more)"):
            batch = await self._client.messages.batches.retrieve(name)
            if batch.processing_status != "ended":
                return None
            results = await self._client.get(f"{PATH}/batches/{name}/results", cast_to=httpx2.Response)
            rows = [json.loads(line) for line in results.text.splitlines() if line.strip()]
        return self.in_order(count, [(row["custom_id"], row.get("result") or {}) for row in rows])

    def answer_in_batch(self, result: Mapping[str, Any]) -> Mapping[str, Any] | None:
        message = result.get("message")
        return message if result.get("type") == "succeeded" and self.holds_answer(message) else None
