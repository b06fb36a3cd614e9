"""Requests and answers in the forms that vendors take: texts, JSON schemas, batch ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from afarm import ChatRequest, without_system_turn

TOO_LONG = "context_length"
"""The finish reason of an answer without text to a prompt that is longer than the model's context."""


def texts(request: ChatRequest) -> list[str]:
    return [request.prompt, *(m.content for m in request.messages)]


def margin(request: ChatRequest) -> int:
    """The most tokens that a vendor's format, a schema and a tool add to a request's texts."""
    forms = [request.schema, request.tool and [request.tool.description, request.tool.parameters]]
    form_tokens = sum(1024 + len(json.dumps(form)) for form in forms if form)
    return 64 + 16 * len(request.messages) + form_tokens


def sendable(text: str) -> str:
    """Replace halves of surrogate pairs: models do emit half an emoji, which JSON cannot carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


NAMED = {"example_user": "user", "example_assistant": "assistant"}


def turns(request: ChatRequest, is_moved: bool = False) -> tuple[str, list[dict[str, Any]]]:
    """Return the system text and turns: same roles joined, empty ones dropped, named examples as turns.

    With `is_moved` the system text stands before the first turn, and none is returned apart.
    """
    system: list[str] = []
    turns: list[dict[str, str]] = []
    for message in request.messages:
        role, content = NAMED.get(message.name, message.role), sendable(message.content)
        if role == "system":
            system.append(content)
        elif not content.strip():
            continue
        elif turns and turns[-1]["role"] == role:
            turns[-1]["content"] += f"\n\n{content}"
        else:
            turns.append({"role": role, "content": content})
    text = "\n\n".join(system)
    return ("", without_system_turn([{"role": "system", "content": text}, *turns])) if is_moved else (text, turns)


def wrapped(schema: Mapping[str, Any] | None) -> bool:
    """True if `closed` puts `schema` inside an object."""
    return schema is not None and schema.get("type") != "object"


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Close the objects of a schema, and wrap a list in one, which `unwrapped` undoes in the answer."""
    made: dict[str, Any] = _closed(schema)
    if not wrapped(schema):
        return made
    return {"type": "object", "properties": {WRAPPED: made}, "required": [WRAPPED], "additionalProperties": False}


def unwrapped(text: str) -> str:
    """The answer's text without the wrapping of `closed`, and as it is where it does not have it."""
    try:
        return json.dumps(json.loads(text)[WRAPPED], ensure_ascii=False)
    except (ValueError, KeyError, TypeError):
        return text


WRAPPED = "answer"


def written(content: Any) -> str:
    """The text of a content, which some servers give in parts."""
    if isinstance(content, Mapping):
        return written(content.get("text"))
    if isinstance(content, list):
        return "".join(map(written, content))
    return "" if content is None else str(content)


def make_batch_id(batch: str, count: int) -> str:
    return f"{batch}/{count}"


def parse_batch_id(batch_id: str) -> tuple[str, int]:
    """Return the vendor's name of the batch, and its number of requests."""
    batch, _, count = batch_id.rpartition("/")
    return batch, int(count)


def _closed(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        closed_fields = {key: _closed(value) for key, value in schema.items()}
        return (
            {**closed_fields, "additionalProperties": False} if closed_fields.get("type") == "object" else closed_fields
        )
    return [_closed(value) for value in schema] if isinstance(schema, list | tuple) else schema
