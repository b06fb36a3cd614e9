"""The judgements of a leaderboard as games between systems, for Bradley–Terry and Elo."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from afarm import DataError, JudgedPair, Row, did_you_mean

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

REFERENCE_AT = 1000.0
"""The reference's rating on Elo's scale."""
TENFOLD = 400.0
"""The points on Elo's scale that make the odds ten to one."""
POINTS = TENFOLD / math.log(10)
"""Points on Elo's scale to one of log odds."""
LISTED = 5
"""Systems of a group that a message names."""


@dataclass(frozen=True, slots=True)
class Games:
    """N games between S systems, in an order that does not depend on how the judgements were ordered.

    `first` and `second` are the players, [N] indices into `systems` (sorted by name), `first` < `second`; `share` is
    [N], in [0, 1], the win of `second`, one half for a draw; `instruction` is [N], the number of the
    instruction. `reference` is the index of the system that strengths are relative to, `unused` the number of
    judgements without an answer.
    """

    systems: tuple[str, ...]
    reference: int
    first: Indices
    second: Indices
    share: Floats
    instruction: Indices
    unused: int

    @property
    def instructions(self) -> int:
        return int(self.instruction[-1]) + 1

    @property
    def figures(self) -> dict[str, float | int | str | None]:
        """The metrics that an evaluation of the games begins with."""
        return {
            "reference": self.systems[self.reference],
            "n_systems": len(self.systems),
            "n_instructions": self.instructions,
            "n_total": len(self.share),
            "n_unparsed": self.unused,
        }

    def scores(self) -> list[Row]:
        """One row per system: `system`, its games (`n_total`), wins, losses and draws."""
        rows = []
        for number, name in enumerate(self.systems):
            shares = np.concatenate([self.share[self.second == number], 1 - self.share[self.first == number]])
            won, lost = int((shares > 0.5).sum()), int((shares < 0.5).sum())
            counts = {"n_wins": won, "n_losses": lost, "n_draws": len(shares) - won - lost}
            rows.append({"system": name, **counts, "n_total": len(shares)})
        return rows


def games(judgements: Sequence[JudgedPair], reference: str = "") -> Games:
    """Collect the games from `judgements`, without those that have no answer.

    `reference` names the system that strengths are relative to; unless it is given, it is the one that most judgements
    have as their first. Raises `DataError` if there is no answer, if a judgement does not name two systems, if
    `reference` is none of them, or if systems fall into groups that no judgement connects.
    """
    found: list[tuple[str, str, str, float]] = []
    firsts: Counter[str] = Counter()
    for number, row in enumerate(judgements):
        one, two = row.pair.generator_1, row.pair.generator_2
        if not one or not two or one == two:
            said = f"both are {one!r}" if one and two else f"generator_1 is {one!r}, generator_2 {two!r}"
            raise DataError(f"the board: judgement {number} does not name two systems: {said}")
        firsts[one] += 1
        if (share := row.win) is not None:
            task = row.pair.instruction.id
            found.append((task, one, two, share) if one < two else (task, two, one, 1 - share))
    if not found:
        raise DataError(f"the board: none of {firsts.total()} judgements has an answer; nothing can be ranked")
    found.sort()
    systems = tuple(sorted({name for _, one, two, _ in found for name in (one, two)}))
    # Of systems that are first equally often, the first by name.
    reference = reference or min(systems, key=lambda name: (-firsts[name], name))
    if reference not in systems:
        near = did_you_mean(reference, systems)
        raise DataError(f"the board: the reference {reference!r} is none of its {len(systems)} systems.{near}")
    index = {name: number for number, name in enumerate(systems)}
    tasks = {task: number for number, task in enumerate(dict.fromkeys(task for task, *_ in found))}
    made = Games(
        systems,
        index[reference],
        np.array([index[one] for _, one, _, _ in found]),
        np.array([index[two] for _, _, two, _ in found]),
        np.array([share for *_, share in found]),
        np.array([tasks[task] for task, *_ in found]),
        firsts.total() - len(found),
    )
    count, group = csgraph.connected_components(edges(made, made.first, made.second), directed=False)
    if count > 1:
        members = [[name for name, g in zip(systems, group, strict=True) if g == n] for n in range(count)]
        shown = "; ".join(", ".join(m[:LISTED]) + (", …" if len(m) > LISTED else "") for m in members[:LISTED])
        raise DataError(
            f"the board: its {len(systems)} systems fall into {count} groups that no judgement connects ({shown}); "
            "rank each group alone, or compare a system of each with the same reference"
        )
    return made


def edges(found: Games, source: Indices, target: Indices, weight: Floats | None = None) -> Any:
    """A sparse [S, S] matrix of the summed `weight` (default 1) of edges `source` → `target`, both [E]."""
    size = len(found.systems)
    weights = np.ones(len(source)) if weight is None else weight
    return sparse.coo_matrix((weights, (source, target)), shape=(size, size)).tocsr()
