"""How far boards agree on the systems that both have: simulated against human, this judge against that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, get_args

from afarm.core.records import Row
from afarm.leaderboard.board import Leaderboard

if TYPE_CHECKING:
    from afarm.statistics import Correlation
    from afarm.statistics.intervals import Floats

FEWEST = 3


@dataclass(frozen=True, slots=True)
class Agreement:
    """The correlations of the win rates of the `systems` that both boards have, with intervals over systems; and, where
    judgements of both are at hand, those on the `instructions` that both have, with intervals over instructions."""

    first: str
    second: str
    systems: tuple[str, ...]
    correlations: tuple[Correlation, ...]
    instructions: int = 0
    over_instructions: tuple[Correlation, ...] = ()

    @property
    def sentence(self) -> str:
        said = f"{_told(self.correlations)} over {len(self.systems)} systems (95 % over systems)"
        if not self.over_instructions:
            return said
        return (
            f"{said}; on the {self.instructions:,} instructions that both have: {_told(self.over_instructions)} (95 % "
            "over instructions)"
        )

    def to_row(self) -> Row:
        return asdict(self)


def _told(found: Sequence[Correlation]) -> str:
    return ", ".join(f"{c.kind.capitalize()} {_with_interval(c)}" for c in found)


def _with_interval(found: Correlation) -> str:
    if found.value is None:
        return "none (one board does not vary)"
    interval = "" if found.low is None or found.high is None else f" ({found.low:.2f} to {found.high:.2f})"
    return f"{found.value:.2f}{interval}"


def agreements(boards: Sequence[Leaderboard]) -> Iterator[Agreement]:
    """Of each two boards with three systems in common at least, by name."""
    from afarm.statistics import correlation
    from afarm.statistics.correlation import Kind

    for first, second in combinations(boards, 2):
        one, two = ({entry.system: entry.win_rate for entry in board.entries} for board in (first, second))
        systems = tuple(name for name in one if name in two)
        if len(systems) < FEWEST:
            continue
        rates = [one[name] for name in systems], [two[name] for name in systems]
        tables = _tables(first, second)
        yield Agreement(
            first.heading,
            second.heading,
            systems,
            tuple(correlation(*rates, kind) for kind in get_args(Kind)),
            tables[0].shape[1] if tables else 0,
            tuple(correlation(*tables, kind) for kind in get_args(Kind)) if tables else (),
        )


def _tables(first: Leaderboard, second: Leaderboard) -> tuple[Floats, Floats] | None:
    """The judgements of both boards on the systems and instructions that both have; None where they are too few."""
    if first.wins is None or second.wins is None:
        return None
    one, two = first.wins.shared(second.wins)
    judged = (one >= 0).any(axis=1) & (two >= 0).any(axis=1)
    return (one, two) if int(judged.sum()) >= FEWEST and one.shape[1] > 1 else None
