"""Numbers and times as the page writes them. An unknown value is a dash."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from afarm.evaluation.metrics import finite_number
from afarm.storage.text import code, dollars, markdown

UNKNOWN = "–"


def decimal(value: object, places: int = 2) -> str:
    """Write 0.5 as "0.50", with a true minus sign."""
    finite = finite_number(value)
    if finite is None:
        return UNKNOWN
    finite = 0.0 if abs(finite) < 1e-9 else finite  # what rounding leaves of nothing
    text = f"{finite:,.{places}f}"
    return f"{finite:.2g}".replace("-", "−") if finite and not text.strip("-0.") else text.replace("-", "−")


def compact(value: object) -> str:
    """Write four significant figures, whole numbers whole; text and anything else unchanged."""
    finite = finite_number(value)
    if finite is None:
        return UNKNOWN if value is None or isinstance(value, float) else str(value)
    text = f"{finite:,}" if isinstance(finite, int) else f"{finite:,.0f}" if abs(finite) >= 10_000 else f"{finite:.4g}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def seconds(value: object) -> str:
    """Write 7.1 as "7.1 s", 95 as "1 min 35 s", 7500 as "2 h 5 min"."""
    finite = finite_number(value)
    if finite is None:
        return UNKNOWN
    if finite < 60:
        return f"{finite:.1f} s"
    whole = round(finite)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def in_dollars(value: object) -> str:
    """Write 0 as "$0.00"; below a cent, as many digits as show it."""
    finite = finite_number(value)
    return UNKNOWN if finite is None else dollars(finite)


def moment(value: object) -> str:
    """Write seconds since 1970 to the minute; anything else unchanged."""
    try:
        return f"{datetime.fromtimestamp(float(str(value)), UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return str(value)


FILTERS: dict[str, Callable[..., Any]] = {
    **{function.__name__: function for function in (decimal, compact, seconds, moment)},
    "count": lambda value: decimal(value, 0),
    "dollars": in_dollars,
    "text": lambda value: "" if value is None else str(value),
    "setting": lambda value: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
    "markdown": markdown,
    "code": code,
}
