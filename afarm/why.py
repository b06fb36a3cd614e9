"""Why an artifact was or was not reused: what it was made from, compared with its nearest relative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from afarm.store import Artifact


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One sentence for each ingredient that differs, named by its dotted path."""
    before, after = flatten(old), flatten(new)
    said = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            said.append(f"{name}: {_short(before.get(name, 'absent'))} → {_short(after.get(name, 'absent'))}")
    return said


def nearest(made_from: Mapping[str, Any], others: Iterable[Artifact]) -> tuple[Artifact, list[str]] | None:
    """The artifact of the same stage with the fewest differences (the newest of equals), and those differences."""
    ranked = [(len(d), -a.meta["created"], a, d) for a in others if (d := differences(a.made_from, made_from))]
    if not ranked:
        return None
    _, _, artifact, said = min(ranked, key=lambda r: r[:2])
    return artifact, said


def why_not_reused(made_from: Mapping[str, Any], others: Iterable[Artifact]) -> str:
    """One line: nothing like it was stored, or what changed since the nearest one."""
    found = nearest(made_from, others)
    if found is None:
        return "none stored yet"
    artifact, said = found
    shown = "; ".join(said[:3]) + (f"; and {len(said) - 3} more" if len(said) > 3 else "")
    return f"differs from {artifact.key[:8]} in {shown}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:18] + "…" + text[-18:]
