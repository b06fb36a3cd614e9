"""Headers about rate limits, in the forms of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

SCARCE = 0.2
"""Share of a limit below which what remains is held to."""

EPOCH = 1e9
"""Seconds beyond which a number is no wait but a Unix time (of 2001 and later)."""
EPOCH_MS = 1e11
"""The number beyond which a Unix time is in milliseconds."""

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FORMS = (
    ("x-ratelimit-{what}-{kind}", ("requests", "tokens")),
    ("anthropic-ratelimit-{kind}-{what}", ("requests", "tokens", "input-tokens", "output-tokens")),
)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from milliseconds, seconds, a Unix time or a date; None if they do not say."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds):
            return _wait(seconds)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time())
    except (KeyError, ValueError):
        return None


def wait_asked(headers: Mapping[str, str]) -> float | None:
    """Seconds that a refused request is to wait: `retry_after`, otherwise until what is used up is reset."""
    asked = retry_after(headers)
    if asked is None:
        asked = seconds_until(headers.get("x-ratelimit-reset", ""))
    if asked is not None:
        return asked
    return max((limit.seconds for limit in _limits(headers) if limit.remaining <= 0), default=None)


def allowance(headers: Mapping[str, str], tokens: int) -> tuple[float, float, str] | None:
    """Requests of `tokens` each and seconds until the nearest limit's reset, with the headers about it.

    Infinitely many while no limit is near; None if no header says.
    """
    limits = list(_limits(headers))
    scarce = [limit for limit in limits if limit.remaining < SCARCE * limit.most]
    if not limits:
        return None
    allowed = [
        (limit.remaining if limit.kind == "requests" else limit.remaining / max(1, tokens), limit.seconds)
        for limit in scarce
        if limit.seconds > 0
    ]
    words = ", ".join(f"{name}: {headers[name]}" for limit in scarce for name in limit.names)
    return *min(allowed, key=lambda found: found[0] / found[1], default=(math.inf, 0.0)), words


class _Limit(NamedTuple):
    """A limit that is told in full; `names` are the headers of what remains and of the reset."""

    kind: str
    remaining: float
    most: float
    seconds: float
    names: tuple[str, str]


def _limits(headers: Mapping[str, str]) -> Iterator[_Limit]:
    for form, kinds in FORMS:
        for kind in kinds:
            remaining, most, reset = (form.format(kind=kind, what=what) for what in ("remaining", "limit", "reset"))
            seconds = seconds_until(headers.get(reset, ""))
            with suppress(KeyError, ValueError):
                if seconds is not None:
                    yield _Limit(kind, float(headers[remaining]), float(headers[most]), seconds, (remaining, reset))


def seconds_until(reset: str) -> float | None:
    """Seconds from "6m0s", "120ms", "1.5", a Unix time or a date in ISO's form; None for any other text."""
    if parts := re.fullmatch(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", reset):
        pieces = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", parts[0])
        return sum(float(number) * UNITS[unit] for number, unit in pieces)
    try:
        return _wait(float(reset)) if math.isfinite(float(reset)) else None
    except ValueError:
        pass
    try:
        date = datetime.fromisoformat(reset)
    except ValueError:
        return None
    return max(0.0, date.timestamp() - time.time())


def _wait(number: float) -> float:
    """Return the seconds that a number of a header stands for: a wait, or the time of its end."""
    if number > EPOCH:
        number = (number if number < EPOCH_MS else number / 1000) - time.time()
    return max(0.0, number)


def in_words(seconds: float) -> str:
    """Write a wait as people say it: "12 s", "5 min", "3.5 h", "2 days", "more than a year"."""
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < most * length:
            return f"{round(seconds / length, 1):g} {unit}" if unit == "h" else f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} days" if seconds < 366 * 86400 else "more than a year"
