"""Fields of records, held to their declared types before they are stored.

Any stands for JSON values: what else a plugin puts there could be written by nobody.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from afarm.core.errors import require_promise, type_name

SHOWN = 80
"""Characters of a wrong value that a message shows."""


def require_record(record: object, wanted: type, kind: str, name: str, promise: str, owner: object = None) -> None:
    """Check that a record is of the type `wanted`, and its fields of theirs; Any stands for JSON values."""
    require_promise(isinstance(record, wanted), kind, name, f"{promise}, not {type_name(record)}", owner)
    for field, adapter, is_json in _fields(wanted):
        value = getattr(record, field)
        try:
            adapter.validate_python(value, strict=True)
            if is_json and value:
                json.dumps(value, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:  # pydantic's error is a ValueError
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            require_promise(False, kind, name, f"{promise}; its {field} is {short_repr(value)}: {why}", owner)


@cache
def _fields(record: type) -> list[tuple[str, TypeAdapter[Any], bool]]:
    """List the fields of a record, with a validator of each, and True for one that holds any JSON values."""
    hints = get_type_hints(record)
    return [(field.name, TypeAdapter(hints[field.name]), "Any" in str(hints[field.name])) for field in fields(record)]


def short_repr(value: object) -> str:
    """Show a wrong value in a message, cut after `SHOWN` characters."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
