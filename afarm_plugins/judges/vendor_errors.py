"""Vendors' errors, read alike, with every key taken out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import httpx2

from afarm_plugins.judges.rate_headers import retry_after, seconds_until, wait_asked

SLOW_DOWN = frozenset({429, 529})
NO_CREDIT = ("insufficient_quota", "credit balance is too low", "billing_hard_limit")
FILTERED_CODES = frozenset({"content_filter", "content_policy_violation", "invalid_prompt"})
FILTERED_WORDS = (
    "content filtering policy",
    "content management policy",
    "violating our usage policy",
    "your input was flagged",
)
BAD_KEY = re.compile(r"(?i)\b(in(valid|correct) api key|api key (is )?(not valid|invalid|incorrect|expired))")
RETRY_DELAY = re.compile(r'"retryDelay":\s*"([\d.]+s)"')
LONGEST_MESSAGE, LONGEST_PAGE = 300, 100
OF_ACCOUNT_OR_TIME = frozenset({401, 402, 403, 404, 405, 407, 408, 409, 410, 425, 426, 429})
REFUSED = frozenset(range(400, 500)) - OF_ACCOUNT_OR_TIME
"""Statuses that say that a request is not taken as it is: those of a client's error that is no other request's too."""

LIKE_A_KEY = re.compile(r"\b(sk|pk|key|Bearer)[-_][\w*.…-]{4,}|\*{4,}")
BEARER = re.compile(r"\bBearer\s+\S+", re.IGNORECASE)

CAPABILITY_OF = {
    "temperature": "temperature",
    "top_p": "temperature",
    "logit_bias": "logit_bias",
    "logprobs": "logprobs",
    "top_logprobs": "logprobs",
    "response_format": "schema",
    "output_config": "schema",
    "tools": "tool",
    "tool_choice": "tool",
}
"""The capability of each vendor's parameter, for errors that name the parameter."""


NOT_CONNECTED = frozenset(
    {"ClientConnectorError", "ConnectionTimeoutError", "ConnectError", "ConnectTimeout", "PoolTimeout"}
)
"""Names of the errors of aiohttp (the first two) and httpcore that come before anything is sent."""


def asks_to_slow_down(status: int, headers: Mapping[str, str]) -> bool:
    """True for an answer that says to come later: also a status 503 (overloaded) that says when."""
    return status in SLOW_DOWN or (status == 503 and retry_after(headers) is not None)


def seconds_to_wait(error: Any) -> float | None:
    """The seconds that a refused request is to wait, from its headers, or from its body as Google says it."""
    in_body = RETRY_DELAY.search(error.response.text)
    asked = wait_asked(error.response.headers)
    return seconds_until(in_body[1]) if in_body and asked is None else asked


def status_of(error: Any) -> int:
    """The status of an error, and 401 for a 400 that is about the key (Google, xAI)."""
    return 401 if error.status_code == 400 and BAD_KEY.search(vendor_words(parsed(error))) else int(error.status_code)


def redacted(text: str, key: str) -> str:
    """Put `text` on one line, cut, without words that look like a key or begin as `key` does."""
    start = key[:6]
    long = len(start) == 6
    words = [
        "[key]"
        if (start and (start in word if long else start in re.split(r"\W+", word))) or LIKE_A_KEY.search(word)
        else word
        for word in text.split()
    ]
    line = BEARER.sub("[key]", " ".join(words))
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"


class NoAnswer(httpx2.RemoteProtocolError):
    """A response with status 200 that holds no answer. Of a kind that SDKs send again after."""


def nonsense(body: Any, text: str) -> str:
    """The text that a server sent in place of an answer."""
    if isinstance(body, Mapping) and body.get("error"):
        return vendor_words(body)
    return f"no answer in {text[:80]!r}" if body is not None else f"no JSON: {text[:80]!r}"


def list_causes(error: BaseException) -> list[BaseException]:
    """List `error` and its causes: SDKs and transports wrap each other's errors in less specific ones."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    return chain


def unsent(error: BaseException) -> bool:
    """Tell if a request was surely not sent, by the errors below the SDK's, which are less specific."""
    below = (cause for cause in list_causes(error) if not isinstance(cause, httpx2.TransportError))
    return any(kind.__name__ in NOT_CONNECTED for cause in below for kind in type(cause).__mro__)


WORDS = ("error", "message", "detail", "msg", "errors", "title")
"""Fields in which servers put an error's words, the outer ones first."""


def vendor_words(body: Any) -> str:
    """Return the words in an error's body: text, a web page, an object, or a list of those."""
    if isinstance(body, str):
        page = re.search(r"<(!doctype|html|head|body)\b", body, re.IGNORECASE)
        words = re.sub(r"(?is)<(script|style).*?</\1>|<[^>]*>", " ", body) if page else body
        return f"a web page: {' '.join(words.split())[:LONGEST_PAGE]}" if page else words.strip()
    if isinstance(body, list):
        return "; ".join(filter(None, map(vendor_words, body)))
    if not isinstance(body, Mapping):
        return "" if body is None else str(body)
    found = next((words for name in WORDS if (words := vendor_words(body.get(name)))), json.dumps(body) if body else "")
    place = body.get("loc")
    return f"{'.'.join(map(str, place))}: {found}" if isinstance(place, list) else found


def details(error: Any) -> Mapping[str, Any]:
    """The fields of the vendor's error: its code, its type, the parameter that it is about."""
    body = parsed(error)
    while isinstance(body, list) and body:
        body = body[0]
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    return inner if isinstance(inner, Mapping) else body if isinstance(body, Mapping) else {}


def parsed(error: Any) -> Any:
    """The body of an error of status: JSON as it is parsed, or a text."""
    try:
        return json.loads(error.response.text)
    except (ValueError, RecursionError):
        return error.response.text


def lacks_credit(error: Any) -> bool:
    """True if a request was refused since the account is empty: no wait will do."""
    return error.status_code == 402 or any(word in f"{error} {error.body}" for word in NO_CREDIT)


def is_filtered(error: Any) -> bool:
    """True if a request was refused for its content. Azure, OpenAI, Anthropic and OpenRouter differ."""
    message = str(error).lower()
    return error.status_code in (400, 403) and (
        details(error).get("code") in FILTERED_CODES or any(words in message for words in FILTERED_WORDS)
    )
