"""Correlation of leaderboards over common systems: simulated with human, one judge with another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, get_args

from afarm.core.records import Row
from afarm.evaluation.boards.board import Leaderboard
from afarm.evaluation.metrics import WIN_RATE

if TYPE_CHECKING:
    from afarm.evaluation.statistics.correlation import Correlation
    from afarm.evaluation.statistics.intervals import Floats

FEWEST_SYSTEMS = 3


@dataclass(frozen=True, slots=True)
class Agreement:
    """Correlations of two boards' `figures` over common `systems`, with intervals over systems.

    Figures are win rates, or what orders the board. If both are win rates and judgements of both
    are at hand, also on the `instructions` that both have, with intervals over instructions.
    """

    first: str
    second: str
    systems: tuple[str, ...]
    correlations: tuple[Correlation, ...]
    instructions: int = 0
    over_instructions: tuple[Correlation, ...] = ()
    figures: tuple[str, str] = (WIN_RATE, WIN_RATE)

    @property
    def sentence(self) -> str:
        text = f"{_listed(self.correlations)} over {len(self.systems)} systems (95 % over systems)"
        if self.figures != (WIN_RATE, WIN_RATE):
            text = f"{self.figures[0]} with {self.figures[1]}: {text}"
        if not self.over_instructions:
            return text
        return (
            f"{text}; on the {self.instructions:,} instructions that both have: {_listed(self.over_instructions)} "
            "(95 % over instructions)"
        )

    def to_row(self) -> Row:
        return asdict(self)


def _listed(correlations: Sequence[Correlation]) -> str:
    parts = []
    for c in correlations:
        figure = "none (one board does not vary)" if c.value is None else f"{c.value:.2f}"
        between = "" if c.low is None or c.high is None else f" ({c.low:.2f} to {c.high:.2f})"
        parts.append(f"{c.kind.capitalize()} {figure}{between}")
    return ", ".join(parts)


def agreements(boards: Sequence[Leaderboard]) -> Iterator[Agreement]:
    """Correlate every two boards with three systems in common, by the figures that order them."""
    from afarm.evaluation.statistics.correlation import Kind, correlation

    for first, second in combinations(boards, 2):
        one, two = (
            {entry.system: figure for entry in board.entries if (figure := entry.figure(board.order)) is not None}
            for board in (first, second)
        )
        systems = tuple(name for name in one if name in two)
        if len(systems) < FEWEST_SYSTEMS:
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
            (first.order or WIN_RATE, second.order or WIN_RATE),
        )


def _tables(first: Leaderboard, second: Leaderboard) -> tuple[Floats, Floats] | None:
    """The win tables over what both boards have; None if that is too little, or not in order of wins."""
    if first.wins is None or second.wins is None or first.order or second.order:
        return None
    one, two = first.wins.shared(second.wins)
    judged = (one >= 0).any(axis=1) & (two >= 0).any(axis=1)
    return (one, two) if int(judged.sum()) >= FEWEST_SYSTEMS and one.shape[1] > 1 else None
