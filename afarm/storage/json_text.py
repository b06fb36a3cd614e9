"""JSON as text, with names for the numbers that JSON has not.

What a diverged run logs is real, and whoever looks for the cause wants to see it: NaN and infinities are written as
"NaN", "Infinity" and "-Infinity", as in the JSON form of protocol buffers; `float` reads them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""The names of the numbers that JSON has not."""


def json_text(value: Any, **options: Any) -> str:
    """Write `value` as JSON with the options of `json.dumps`, NaN and infinities by their names."""
    options = {"ensure_ascii": False, **options}
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_named(value), allow_nan=False, **options)


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _named(each) for name, each in value.items()}
    return [_named(each) for each in value] if isinstance(value, list | tuple) else value


def decode_json(text: str | bytes) -> Any:
    """Parse JSON. Raises `ValueError`, also for what is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
