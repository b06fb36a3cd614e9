"""Why an artifact was or was not reused: what it was made from, compared with its nearest relative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

from afarm.storage.artifacts import Artifact


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings, and lists of mappings, as one mapping with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            value = {str(number): item for number, item in enumerate(value)}
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One sentence for each ingredient that differs, named by its dotted path."""
    before, after = flatten(old), flatten(new)
    said = []
    for name in sorted(before.keys() | after.keys()):
        was, now = (str(values[name]) if name in values else "absent" for values in (before, after))
        if was != now:
            said.append(f"{name}: {_short(was, now)} → {_short(now, was)}")
    return said


def nearest(key_fields: Mapping[str, Any], others: Iterable[Artifact]) -> tuple[Artifact, list[str]] | None:
    """Of `others`, made for the same purpose, the one with the fewest differences (the newest of equals), and those."""
    ranked = [(len(d), -a.meta["created"], a, d) for a in others if (d := differences(a.key_fields, key_fields))]
    if not ranked:
        return None
    _, _, artifact, said = min(ranked, key=lambda r: r[:2])
    return artifact, said


def why_not_reused(key_fields: Mapping[str, Any], others: Iterable[Artifact]) -> str:
    """One line: nothing like it was stored, or what changed since the nearest one."""
    found = nearest(key_fields, others)
    if found is None:
        return "none stored yet"
    artifact, said = found
    shown = "; ".join(said[:3]) + (f"; and {len(said) - 3} more" if len(said) > 3 else "")
    return f"differs from {artifact.key[:8]} in {shown}"


def _short(text: str, other: str, width: int = 40) -> str:
    """At most `width` characters of `text`, those from shortly before where it begins to differ from `other`."""
    if len(text) <= width:
        return text
    start = max(
        0, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False))) - width // 4
    )
    return ("…" if start else "") + text[start : start + width] + ("…" if start + width < len(text) else "")
