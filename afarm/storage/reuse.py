"""Reasons why an artifact was or was not reused: its key fields compared with the nearest one's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from afarm.storage.artifacts import Artifact
from afarm.storage.text import shortened

MOST_CHANGES = 3
"""Changed fields that a reason names one by one."""

DIGEST = re.compile("@?[0-9a-f]{12,}")
"""A digest in a key field's value, such as that of a model's files or of a judge."""

CODE = {"afarm", "source", "doors"}
"""The fields of a key that stand for code: afarm's, a plugin's, and that behind the doors."""


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings, and lists of mappings, to one mapping with dotted names."""
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
    """List what differs, one `path: old → new` per key field, without digests."""
    before, after = flatten(old), flatten(new)
    changes = []
    for name in sorted(before.keys() | after.keys()):
        was, now = (str(values[name]) if name in values else "absent" for values in (before, after))
        if was != now:
            was, now = (DIGEST.sub("…", text) for text in (was, now))
            told = "other contents" if was == now else f"{shortened(was, now)} → {shortened(now, was)}"
            changes.append(f"{name}: {told}")
    return changes


def nearest(key_fields: Mapping[str, Any], others: Iterable[Artifact]) -> tuple[Artifact, list[str]] | None:
    """Find the one of `others` with the fewest differences, the newest of equals, and list those."""
    ranked = [(len(d), -a.meta["created"], a, d) for a in others if (d := differences(a.key_fields, key_fields))]
    if not ranked:
        return None
    _, _, artifact, changes = min(ranked, key=lambda r: r[:2])
    return artifact, changes


def why_not_reused(key_fields: Mapping[str, Any], others: Iterable[Artifact]) -> str:
    """Say why nothing stored was reused: none is there, or which key fields differ from the nearest."""
    closest = nearest(key_fields, others)
    if closest is None:
        return "none stored yet"
    artifact, changes = closest
    names = [change.partition(":")[0] for change in changes]
    if CODE.issuperset(name.rpartition(".")[2] for name in names):
        return f"the code has changed since {artifact.key[:8]} ({', '.join(names)}); paid answers are kept"
    if len(changes) <= MOST_CHANGES:
        return f"differs from {artifact.key[:8]} in {'; '.join(changes)}"
    parts = Counter(change.partition(":")[0].partition(".")[0] for change in changes)
    counted = ", ".join(name if count == 1 else f"{name} ({count})" for name, count in parts.items())
    return f"differs from {artifact.key[:8]} in {len(changes)} fields: {counted}"
