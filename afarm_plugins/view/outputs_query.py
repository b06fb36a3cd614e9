"""Queries of the page of outputs: the pairs that are shown and their order, found in the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from pydantic import ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from afarm import ConfigError, Row, member_family
from afarm.report import VERDICTS
from afarm_plugins.view.outputs_index import Figure, OutputsIndex

Order = Literal["file", Figure]
"""The file's order, or by a figure of the pair."""

Kind = Literal["", "flagged", "cut"]
Verdict = Literal["", "win", "loss", "draw", "none"]

MOST_ROWS = 200
"""Rows of one answer."""


@pydantic_dataclass(frozen=True)
class Query:
    """A query; empty filters leave all rows. `flips` is the id of a run whose verdicts differ."""

    words: str = ""
    verdict: Verdict = ""
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
        """Read a query from an address. Raises `ConfigError` for a value that is none."""
        names = [field.name for field in fields(cls) if field.name not in ("words", "descending")]
        values: dict[str, Any] = {name: value for name in names if (value := given.get(name))}
        try:
            return cls(given.get("q", "")[:1000], **values, descending=given.get("ascending") != "1")
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError([f"{first['loc'][0]}: {first['msg']}, not {first['input'][:80]!r}"]) from error


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
    if query.order != "file":
        order = index.ordered(query.order, query.descending)
        wanted = set(kept)
        kept = list(order) if len(kept) == len(order) else [number for number in order if number in wanted]
    return Found(kept, counts)


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
        theirs = other.rows_by_key if other else {}
        verdicts = other.verdicts if other else []
        filters.append(
            lambda number: (
                (there := theirs.get(index.keys[number])) is not None and verdicts[there] != index.verdicts[number]
            )
        )
    return filters


def choices(index: OutputsIndex) -> Row:
    """List what there is to choose from: members, families, and the figures that rows have."""
    members = index.members_counted
    families = Counter[str]()
    for name, count in members.items():
        families[member_family(name)] += count
    return {
        "members": sorted(members.items()),
        "families": sorted(families.items()) if len(families) < len(members) else [],
        **index.known,
        "cut": index.cut.count(1),
        "flagged": index.flagged.count(1) if index.flags_ready else None,
    }
