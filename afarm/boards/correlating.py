"""How far boards agree on the systems that both have: simulated against human, this judge against that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, get_args

from afarm.boards.board import Board
from afarm.records import Row

if TYPE_CHECKING:
    from afarm.statistics import Correlation

FEWEST = 3


@dataclass(frozen=True, slots=True)
class Agreement:
    """The correlations of the win rates of the `systems` that both boards have."""

    first: str
    second: str
    systems: tuple[str, ...]
    correlations: tuple[Correlation, ...]

    @property
    def sentence(self) -> str:
        told = ", ".join(f"{c.kind.capitalize()} {_with_interval(c)}" for c in self.correlations)
        over = self.correlations[0].over
        return f"{told} over {len(self.systems)} systems (95 % over {over})"

    def to_row(self) -> Row:
        return asdict(self)


def _with_interval(found: Correlation) -> str:
    if found.value is None:
        return "none (one board does not vary)"
    interval = "" if found.low is None or found.high is None else f" ({found.low:.2f} to {found.high:.2f})"
    return f"{found.value:.2f}{interval}"


def agreements(boards: Sequence[Board]) -> Iterator[Agreement]:
    """Of each two boards with three systems in common at least, by name. The interval is over systems."""
    from afarm.statistics import correlation
    from afarm.statistics.correlation import Kind

    for first, second in combinations(boards, 2):
        one, two = ({entry.system: entry.win_rate for entry in board.entries} for board in (first, second))
        systems = tuple(name for name in one if name in two)
        if len(systems) < FEWEST:
            continue
        rates = [one[name] for name in systems], [two[name] for name in systems]
        yield Agreement(
            first.heading,
            second.heading,
            systems,
            tuple(correlation(*rates, kind) for kind in get_args(Kind)),
        )
