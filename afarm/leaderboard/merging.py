"""Boards of one protocol put together, and what sets those apart that are called alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from afarm.leaderboard.board import Entry, Leaderboard, ranked

DIGEST = 6
"""Characters of a digest: enough to tell a few apart."""
CALLED: Mapping[str, str] = {
    "annotator": "annotator",
    "settings": "annotator settings",
    "source": "annotator prompts",
    "judges": "judges",
    "label_noise": "label noise",
    "reference": "reference",
    "reference_outputs": "reference outputs",
    "instructions": "instructions",
    "drift": "shift of the judge",
}
"""The fields of a protocol that part boards, as a heading calls them."""


def group(boards: Iterable[Leaderboard]) -> list[Leaderboard]:
    """Boards of one protocol put together, those with more systems first. Of several evaluations of the same judgements
    the newest stands.

    Two results of one system, such as runs with different settings, are called by where they come from as well. Ranks
    with intervals and differences are those of the parts no more, and left out where a board had several.
    """
    together: dict[str, list[Leaderboard]] = {}
    for board in boards:
        together.setdefault(board.id, []).append(board)
    return _set_apart(sorted(map(_merged, together.values()), key=lambda board: -len(board.entries)))


def _merged(parts: Sequence[Leaderboard]) -> Leaderboard:
    first = parts[0]
    if len(parts) == 1:
        return ranked(replace(first, entries=tuple(_with_distinct_names(_once(first.entries)))))
    none: dict[str, Any] = dict.fromkeys(
        ("rank_low", "rank_high", "difference", "difference_low", "difference_high", "p_value", "detectable")
    )
    kept = _once(entry for part in parts for entry in part.entries)
    entries = _with_distinct_names([replace(entry, **none, difference_to="") for entry in kept])
    notes = dict.fromkeys(part.note for part in parts if part.note)
    return ranked(replace(first, entries=tuple(entries), note="; ".join(notes), wins=None))


def _once(entries: Iterable[Entry]) -> list[Entry]:
    """Of those that are the same result, read or worked out twice, the newest."""
    found: dict[tuple[Any, ...], Entry] = {}
    for entry in entries:
        key = entry.system, entry.win_rate, entry.standard_error, entry.n, entry.length
        if entry.source.created > found.setdefault(key, entry).source.created:
            found[key] = entry
    return list(found.values())


def _with_distinct_names(entries: Sequence[Entry]) -> list[Entry]:
    """Systems of one name called by their sources as well, by the last part that tells them apart."""
    names = Counter(entry.system for entry in entries)
    return [
        replace(entry, system=f"{entry.system} ({Path(entry.source.name).name or number})")
        if names[entry.system] > 1
        else entry
        for number, entry in enumerate(entries, start=1)
    ]


def _set_apart(boards: Sequence[Leaderboard]) -> list[Leaderboard]:
    """Boards that are called alike with what sets them apart."""
    alike: dict[str, list[Leaderboard]] = {}
    for board in boards:
        alike.setdefault(board.name, []).append(board)
    return [replace(board, distinguishing=_apart(board, alike[board.name])) for board in boards]


def _apart(board: Leaderboard, alike: Sequence[Leaderboard]) -> str:
    """What of `board` is not so for all that are called like it."""
    said = [
        f"{called} {_shown(getattr(board.protocol, name), 'none' if name == 'drift' else 'unknown')}"
        for name, called in CALLED.items()
        if any(getattr(other.protocol, name) != getattr(board.protocol, name) for other in alike)
    ]
    if any(other.origin != board.origin for other in alike):
        said.append(board.origin)
    if any(other.order != board.order for other in alike):
        said.append(f"by {board.order or 'win rate'}")
    return ", ".join(filter(None, said))


def _shown(value: object, none: str) -> str:
    """A digest is cut."""
    if isinstance(value, Mapping):
        return " + ".join(f"{role}: {identity}" for role, identity in value.items()) or "no LLM"
    if isinstance(value, str) and len(value) >= 2 * DIGEST and all(c in "0123456789abcdef" for c in value):
        return value[:DIGEST]
    return none if value in ("", None) else f"{value:g}" if isinstance(value, float) else str(value)
