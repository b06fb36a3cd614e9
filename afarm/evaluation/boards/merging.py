"""Merging of leaderboards of one protocol, and headings that set several protocols apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from afarm.evaluation.boards.board import NO_COMPARISON, Entry, Leaderboard, ranked
from afarm.evaluation.protocol import FIELDS, describe_field
from afarm.storage.text import describe_difference, looks_of


def group(boards: Iterable[Leaderboard]) -> list[Leaderboard]:
    """Merge boards of one protocol, those with more systems first.

    Of several evaluations of the same judgements the newest is kept. Two results of one system, such as runs with
    different settings, are named by their sources as well. A merged board has no rank intervals and differences: those
    of its parts no longer hold.
    """
    together: dict[str, list[Leaderboard]] = {}
    for board in boards:
        together.setdefault(board.id, []).append(board)
    merged = sorted(map(_merged, together.values()), key=lambda board: -len(board.entries))
    by_name: dict[str, list[Leaderboard]] = {}
    for board in merged:
        by_name.setdefault(board.name, []).append(board)
    return [
        replace(
            board,
            distinguishing=_distinguishing(board, by_name[board.name]),
            note="; ".join(filter(None, (board.note, *_look_alikes(board)))),
        )
        for board in merged
    ]


def _look_alikes(board: Leaderboard) -> list[str]:
    """Name the systems whose names differ by nothing that a reader sees, as sentences."""
    first: dict[str, str] = {}
    pairs = [(name, first.setdefault(looks_of(name), name)) for name in (entry.system for entry in board.entries)]
    return [f"{a!r} looks like {b!r} and {describe_difference(a, b)}: one system?" for a, b in pairs if a != b]


def _merged(parts: Sequence[Leaderboard]) -> Leaderboard:
    first = parts[0]
    if len(parts) == 1:
        return ranked(replace(first, entries=tuple(_with_distinct_names(_once(first.entries)))))
    kept = _once(entry for part in parts for entry in part.entries)
    entries = _with_distinct_names([replace(entry, **NO_COMPARISON) for entry in kept])
    notes = dict.fromkeys(part.note for part in parts if part.note)
    return ranked(replace(first, entries=tuple(entries), note="; ".join(notes), wins=None))


def _once(entries: Iterable[Entry]) -> list[Entry]:
    """Drop entries that are the same result, read or computed twice, but for the newest."""
    return [max(same, key=lambda entry: entry.source.created) for same in _same_results(entries)]


def _same_results(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Gather the entries that are the same result."""
    results: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        key = entry.system, entry.win_rate, entry.standard_error, entry.n, entry.length
        results.setdefault(key, []).append(entry)
    return list(results.values())


def repeated(boards: Iterable[Leaderboard]) -> list[str]:
    """Name the sources whose results `group` leaves out because another source has the same, as sentences."""
    by_protocol: dict[str, list[Entry]] = {}
    for board in boards:
        by_protocol.setdefault(board.id, []).extend(board.entries)
    sentences: dict[str, None] = {}
    for same in (same for entries in by_protocol.values() for same in _same_results(entries)):
        (kept,) = _once(same)
        for entry in same:
            if Path(entry.source.name).resolve() != Path(kept.source.name).resolve():
                sentences[
                    f"{entry.source.name or 'a board'}: its result of {entry.system} equals that of "
                    f"{kept.source.name or 'another board'} (win rate, error, number of judgements, mean length), "
                    "which stands for both"
                ] = None
    return list(sentences)


def _with_distinct_names(entries: Sequence[Entry]) -> list[Entry]:
    """Name systems of one name by their sources as well."""
    names = Counter(entry.system for entry in entries)
    files = [Path(entry.source.name).name for entry in entries]
    is_twice = len({(entry.system, file) for entry, file in zip(entries, files, strict=True)}) < len(entries)
    told = [f"{file}, {number}" if is_twice and file else file or number for number, file in enumerate(files, start=1)]
    return [
        replace(entry, system=f"{entry.system} ({apart})") if names[entry.system] > 1 else entry
        for entry, apart in zip(entries, told, strict=True)
    ]


def _distinguishing(board: Leaderboard, namesakes: Sequence[Leaderboard]) -> str:
    """The fields of `board` that are not the same of all boards of its name."""
    parts = [
        f"{words} {describe_field(board.protocol, name)}"
        for name, words in FIELDS.items()
        if any(getattr(other.protocol, name) != getattr(board.protocol, name) for other in namesakes)
    ]
    if any(other.origin != board.origin for other in namesakes):
        parts.append(board.origin)
    if any(other.order != board.order for other in namesakes):
        parts.append(f"by {board.order or 'win rate'}")
    return ", ".join(filter(None, parts))
