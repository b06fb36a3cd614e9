"""Judges of the three vendors' kinds against a local server, and requests to ask them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wire_server import WireServer

from afarm.core.interfaces import BuildContext, RewardModel
from afarm.core.judge import ChatRequest, Completion, Price
from afarm.core.plugins import discover
from afarm.core.records import Message
from afarm_plugins.judges.anthropic_judge import AnthropicJudge
from afarm_plugins.judges.openai_judge import CompatibleJudge, OpenAIJudge
from afarm_plugins.judges.vendor import VendorJudge

KEY = "sk-planted-Zq81xT44wvUu0"
PRICE = Price(input=10.0, output=30.0, cached_input=1.0)
WORTH = (80 * 10.0 + 20 * 1.0 + 7 * 30.0) / 1e6
"""Dollars of one answer of the local server (100 tokens in, 20 of them cached, 7 out) at `PRICE`."""

MODELS = {"openai": "gpt-4o", "anthropic": "claude-opus-4-8", "openai-compatible": "llama3:8b"}
CLASSES: dict[str, type[VendorJudge]] = {
    "openai": OpenAIJudge,
    "anthropic": AnthropicJudge,
    "openai-compatible": CompatibleJudge,
}
PLUGINS = discover()


def write_two_systems(count: int) -> None:
    """Write mine.json and theirs.json here: what two systems answer to `count` questions."""
    for name in ("mine", "theirs"):
        rows = [{"instruction": f"Question {i}?", "output": f"{name} {i}"} for i in range(count)]
        Path(f"{name}.json").write_text(json.dumps(rows))


def no_reward_model(name: str) -> RewardModel:
    raise AssertionError(f"no vendor's judge needs a reward model, {name} least")


def make(
    name: str, server: WireServer, model: str = "", allowances: list[tuple[float, float]] | None = None, **settings: Any
) -> VendorJudge:
    """The judge `name` as afarm builds it, with `server` in its vendor's place."""
    config = PLUGINS.get("judges", name).settings({"max_retries": 2, "timeout": 5, **settings})
    spec = model or MODELS[name]
    if name == "openai-compatible":
        spec = f"{spec}@{server.openai_url}"
    else:
        config = config.model_copy(update={"base_url": server.openai_url if name == "openai" else server.url})
    told = [] if allowances is None else allowances
    context = BuildContext(
        no_reward_model,
        price=lambda provider, model: PRICE,
        allowed=lambda requests, seconds, words: told.append((requests, seconds)),
    )
    return CLASSES[name](spec, config, context)


def ask(judge: VendorJudge, *requests: ChatRequest) -> list[Completion]:
    async def all_at_once() -> Sequence[Completion]:
        try:
            return await asyncio.gather(*(judge.complete(request) for request in requests))
        finally:
            await judge.close()

    return list(asyncio.run(all_at_once()))


def chat(*turns: str, system: str = "", **settings: Any) -> ChatRequest:
    """A chat in which user and assistant take turns."""
    turns = turns or ("Which is better?",)
    roles = ["user", "assistant"] * len(turns)
    first = (Message("system", system),) if system else ()
    turned = tuple(Message(role, text) for role, text in zip(roles, turns, strict=False))
    return ChatRequest("strong", first + turned, **{"max_tokens": 20, "annotator": "gpt4_4", **settings})
