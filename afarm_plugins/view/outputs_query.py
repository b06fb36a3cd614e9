"""Queries of the page of outputs: the pairs that are shown and their order, found in the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from afarm import ConfigError, Row, member_family
from afarm_plugins.view.outputs_index import DRAW, LOSS, NONE, WIN, Figure, OutputsIndex

Order = Literal["file", Figure]
"""The file's order, or by a figure of the pair."""

Kind = Literal["", "flagged", "cut"]

VERDICTS = (WIN, LOSS, DRAW, NONE)

MOST_ROWS = 200
"""Rows of one answer."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query: what each filter is about is in `Query.read`. Empty filters leave all rows."""

    words: str = ""
    verdict: str = ""
    member: str = ""
    family: str = ""
    longer_from: int | None = None
    longer_to: int | None = None
    kind: Kind = ""
    flips: str = ""
    order: Order = "file"
    descending: bool = True

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Query:
        """Read a query from an address.

        `q` words to search for, `verdict`, `member`, `family`, `longer_from` and `longer_to` characters that the
        system's output is longer, `kind` (flagged, cut), `flips` (the id of a run whose verdicts differ), `order`,
        `ascending`. Raises `ConfigError` for a value that is none.
        """
        order, kind, verdict = given.get("order", "file"), given.get("kind", ""), given.get("verdict", "")
        for name, value, known in (
            ("order", order, get_args(Order)),
            ("kind", kind, get_args(Kind)),
            ("verdict", verdict, ("", *VERDICTS)),
        ):
            if value not in known:
                raise ConfigError([f"{name}: one of {', '.join(filter(None, known))}, not {value[:80]!r}"])
        return cls(
            given.get("q", "")[:1000],
            verdict,
            given.get("member", ""),
            given.get("family", ""),
            _number(given, "longer_from"),
            _number(given, "longer_to"),
            kind,  # type: ignore[arg-type]
            given.get("flips", ""),
            order,  # type: ignore[arg-type]
            given.get("ascending", "") != "1",
        )


def _number(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name, "").strip()
    if not value:
        return None
    try:
        return int(value)
    except ValueError:
        raise ConfigError([f"{name}: a whole number of characters, not {value[:80]!r}"]) from None


@dataclass(frozen=True, slots=True)
class Found:
    """The numbers of the rows that a query finds, and counts per verdict without its own filter of that."""

    numbers: list[int]
    counts: Mapping[str, int]


def find_rows(index: OutputsIndex, query: Query, other: OutputsIndex | None = None) -> Found:
    """Answer a query; `other` is the index of the run that `query.flips` names."""
    hits = index.search(query.words)
    kept = list(range(len(index)) if hits is None else hits)
    for keeps in _filters(index, query, other):
        kept = [number for number in kept if keeps(number)]
    verdicts = index.verdicts
    counts = dict.fromkeys(VERDICTS, 0) | Counter(map(verdicts.__getitem__, kept))
    if query.verdict:
        kept = [number for number in kept if verdicts[number] == query.verdict]
    return Found(_ordered(index, kept, query), counts)


def _filters(index: OutputsIndex, query: Query, other: OutputsIndex | None) -> list[Callable[[int], Any]]:
    filters: list[Callable[[int], Any]] = []
    if query.member:
        members, member = index.members, query.member
        filters.append(lambda number: members[number] == member)
    if query.family:
        wanted = {name for name in set(index.members) if member_family(name) == query.family}
        filters.append(lambda number: index.members[number] in wanted)
    if (least := query.longer_from) is not None:
        filters.append(lambda number: index.longer[number] >= least)
    if (most := query.longer_to) is not None:
        filters.append(lambda number: index.longer[number] <= most)
    if query.kind:
        marks = index.cut if query.kind == "cut" else index.flagged
        filters.append(lambda number: marks[number])
    if query.flips:
        theirs = other.by_key() if other else {}
        verdicts = other.verdicts if other else []
        filters.append(
            lambda number: (
                (there := theirs.get(index.keys[number])) is not None and verdicts[there] != index.verdicts[number]
            )
        )
    return filters


def _ordered(index: OutputsIndex, numbers: list[int], query: Query) -> list[int]:
    if query.order == "file":
        return numbers
    order = index.ordered(query.order, query.descending)
    if len(numbers) == len(order):
        return list(order)
    kept = bytearray(len(order))
    for number in numbers:
        kept[number] = 1
    return [number for number in order if kept[number]]


def choices(index: OutputsIndex) -> Row:
    """List what there is to choose from: members, families, and the figures that rows have."""
    members = index.members_counted
    families: dict[str, int] = {}
    for name, count in members.items():
        family = member_family(name)
        families[family] = families.get(family, 0) + count
    return {
        "members": sorted(members.items()),
        "families": sorted(families.items()) if len(families) < len(members) else [],
        **index.known,
        "cut": index.cut.count(1),
        "flagged": index.flagged.count(1) if index.flags_ready else None,
    }
