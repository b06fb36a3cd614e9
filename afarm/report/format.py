"""How numbers are written on the page. A value that is not known is a dash."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from afarm.evaluation.metrics import number
from afarm.storage.text import dollars as in_dollars

UNKNOWN = "–"


def count(value: object) -> str:
    """4000 → "4,000"."""
    known = number(value)
    return UNKNOWN if known is None else f"{known:,.0f}"


def decimal(value: object, places: int = 2) -> str:
    """0.5 → "0.50", with a true minus sign."""
    known = number(value)
    if known is None:
        return UNKNOWN
    text = f"{known:,.{places}f}"
    return f"{known:.2g}".replace("-", "−") if known and not text.strip("-0.") else text.replace("-", "−")


def compact(value: object) -> str:
    """Four significant figures, whole numbers whole; text and anything else as it is."""
    known = number(value)
    if known is None:
        return UNKNOWN if value is None or isinstance(value, float) else str(value)
    text = f"{known:,}" if isinstance(known, int) else f"{known:,.0f}" if abs(known) >= 10_000 else f"{known:.4g}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def percent(share: object) -> str:
    """0.077 → "7.7%"."""
    known = number(share)
    return UNKNOWN if known is None else f"{100 * known:.1f}%"


def seconds(value: object) -> str:
    """7.1 → "7.1 s", 95 → "1 min 35 s", 7500 → "2 h 5 min"."""
    known = number(value)
    if known is None:
        return UNKNOWN
    if known < 60:
        return f"{known:.1f} s"
    whole = round(known)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def dollars(value: object) -> str:
    """0 → "$0.00"; below a cent, as many digits as show it."""
    known = number(value)
    return UNKNOWN if known is None else in_dollars(known)


def moment(value: object) -> str:
    """Seconds since 1970, or an ISO 8601 time, to the minute; anything else as it is."""
    known = number(value)
    try:
        time = datetime.fromisoformat(str(value)) if known is None else datetime.fromtimestamp(known, UTC)
    except (ValueError, OverflowError, OSError):
        return str(value)
    return f"{time:%Y-%m-%d %H:%M} {time.tzname() or ''}".strip()


FILTERS: dict[str, Callable[..., Any]] = {
    "count": count,
    "decimal": decimal,
    "compact": compact,
    "percent": percent,
    "seconds": seconds,
    "dollars": dollars,
    "moment": moment,
}
