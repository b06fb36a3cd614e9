"""Bradley–Terry strengths of all systems of a board, from all their judgements at once.

    P(j is preferred to i) = 1 / (1 + exp(s_i - s_j)),    s = 0 for the reference

fitted by maximum likelihood; a draw is half a win of either, and a judge's probability the share that it says. Standard
errors are robust to clusters: all judgements of an instruction count as one observation (Liang and Zeger 1986), with
G / (G - 1) for G instructions. From few games they are too small, and those of the curvature stand in if larger.

Where a group of systems won every comparison with another, the likelihood has no maximum: strengths are as far apart as
one likes (Ford 1957). There, and only there, `prior` draws are added between the groups, shared by the pairs of systems
that met across them, and the systems whose strength hangs on that are flagged; their errors are those of the curvature,
which the draws are part of.

Source: Bradley and Terry 1952; the scale of Elo 1978.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from scipy.sparse import csgraph
from scipy.special import expit

from afarm import NORMAL_95, Evaluation, EvaluationInputs, Evaluator, Row
from afarm_plugins.evaluators import BradleyTerryConfig
from afarm_plugins.evaluators.pair_counts import POINTS, REFERENCE_AT, Floats, Games, Indices, edges, games

FEW = 5.0
"""The sum of p (1 − p) over a system's games, a quarter for an even one, below which they are few."""
PRECISION = 1e-9
"""The slope, in judgements, at which the likelihood is at its maximum."""


@dataclass(frozen=True, slots=True)
class Strengths:
    """Fitted strengths of the systems in log odds against the reference.

    `strength` and `error` are [S]; the reference has 0 and no error. `held`, [S], marks strengths that only the prior
    keeps finite. `log_likelihood` is that of the judgements, without the prior.
    """

    strength: Floats
    error: Floats
    held: NDArray[np.bool_]
    log_likelihood: float


class BradleyTerry(Evaluator):
    """See the module.

    Rows, best system first: `system`, `strength`, `standard_error`, `low` and `high` (95%), the same as `elo`,
    `elo_low`, `elo_high`, with the reference at 1000, `n_wins`, `n_losses`, `n_draws`, `n_total` and `flag`.
    """

    needs = frozenset({"judgements"})
    many = True

    def __init__(self, config: BradleyTerryConfig | None = None):
        self.config = config or BradleyTerryConfig()

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raises `DataError` as `games` does."""
        played = games(inputs.judgements, self.config.reference)
        found = strengths(played, self.config.prior)
        rows = [
            {**row, **_scaled(found, number), "flag": self._flag(row) if found.held[number] else ""}
            for number, row in enumerate(played.scores())
        ]
        return Evaluation(
            "bradley_terry",
            inputs.system,
            {**played.figures, "n_flagged": int(found.held.sum()), "log_likelihood": found.log_likelihood},
            tuple(sorted(rows, key=lambda row: (-row["strength"], row["system"]))),
        )

    def _flag(self, row: Row) -> str:
        all_of_them = {row["n_wins"]: "won every comparison", row["n_losses"]: "lost every comparison"}
        why = all_of_them.get(row["n_total"], "stands in a group that won, or lost, every comparison with another")
        return f"{why}: its strength hangs on the prior of {self.config.prior:g} draws"


def strengths(played: Games, prior: float) -> Strengths:
    """The strengths of all systems and their errors."""
    won = edges(played, played.first, played.second, played.share)  # [loser, winner]
    won = won + edges(played, played.second, played.first, 1 - played.share)
    won.eliminate_zeros()
    group = csgraph.connected_components(won, directed=True, connection="strong")[1]
    draws = prior * _draws(played, group)
    wins = won.toarray() + (draws + draws.T) / 2
    free = np.arange(len(wins)) != played.reference
    fitted = minimize(_loss, np.zeros(free.sum()), (wins, free), "trust-exact", _gradient, _curvature, tol=PRECISION)
    strength = np.zeros(len(wins))
    strength[free] = fitted.x
    held = group != group[played.reference]
    loss = _loss(fitted.x, won.toarray(), free)
    return Strengths(strength, _errors(played, strength, _curvature(fitted.x, wins, free), free, held), held, -loss)


def _draws(played: Games, group: Indices) -> Floats:
    """[S, S]: the share of a draw added to every two systems that met across groups.

    Between two groups there is one draw in all, and less if both have others, so that none has many more than the one
    that it needs to be finite.
    """
    met = np.zeros((len(group), len(group)))
    met[played.first, played.second] = 1.0  # an index that repeats counts once
    met *= group[:, None] != group[None, :]
    of = np.eye(group.max() + 1)[group]
    between = of.T @ (met + met.T) @ of  # pairs of systems that met, between two groups
    others = (between > 0).sum(axis=1)
    shared = np.minimum(others[:, None], others[None, :]) * between
    return np.asarray(met / np.maximum(shared, 1.0)[group][:, group])


def _gaps(x: Floats, free: NDArray[np.bool_]) -> Floats:
    """[S, S]: how much stronger the column's system is than the row's."""
    strength = np.zeros(len(free))
    strength[free] = x
    return strength[None, :] - strength[:, None]


def _loss(x: Floats, wins: Floats, free: NDArray[np.bool_]) -> float:
    """Negative log likelihood of `wins` [S, S], from loser to winner; `x` are the `free` strengths."""
    return float((wins * np.logaddexp(0, -_gaps(x, free))).sum())


def _gradient(x: Floats, wins: Floats, free: NDArray[np.bool_]) -> Floats:
    surprise = wins * expit(-_gaps(x, free))
    return np.asarray((surprise.sum(1) - surprise.sum(0))[free])


def _curvature(x: Floats, wins: Floats, free: NDArray[np.bool_]) -> Floats:
    """The second derivatives of `_loss`, a Laplacian without the reference's row and column."""
    p = expit(_gaps(x, free))
    weight = (wins + wins.T) * p * (1 - p)
    return np.asarray((np.diag(weight.sum(1)) - weight)[np.ix_(free, free)])


def _errors(
    played: Games, strength: Floats, curvature: Floats, free: NDArray[np.bool_], held: NDArray[np.bool_]
) -> Floats:
    """Standard errors, [S]: cluster-robust by instruction, or those of the curvature.

    The curvature's are used if only the prior holds a strength, if there is one instruction only, and also if they are
    larger and a system or the reference has few games: robust errors are then too small.
    """
    inverse = np.linalg.inv(curvature)
    variance = np.zeros(len(strength))
    variance[free] = np.diag(inverse)
    count = played.instructions
    if count > 1:
        expected = expit(strength[played.second] - strength[played.first])
        residual, even = played.share - expected, expected * (1 - expected)
        shape = (count, len(strength))
        scores = sparse.coo_matrix((residual, (played.instruction, played.second)), shape)
        scores = (scores - sparse.coo_matrix((residual, (played.instruction, played.first)), shape)).tocsr()[:, free]
        robust = inverse @ (scores.T @ scores).toarray() @ inverse * count / (count - 1)
        found = variance.copy()
        found[free] = np.diag(robust)
        told = np.bincount(played.first, even, len(strength)) + np.bincount(played.second, even, len(strength))
        few = np.minimum(told, told[played.reference]) < FEW
        variance = np.where(held | (few & (found < variance)), variance, found)
    return np.sqrt(variance)


def _scaled(found: Strengths, number: int) -> Row:
    """Strength, error and interval of a system, and the same on Elo's scale."""
    strength, error = float(found.strength[number]), float(found.error[number])
    low, high = strength - NORMAL_95 * error, strength + NORMAL_95 * error
    row: Row = {"strength": strength, "standard_error": error, "low": low, "high": high}
    scaled = {"elo": strength, "elo_low": low, "elo_high": high}
    return row | {name: REFERENCE_AT + POINTS * value for name, value in scaled.items()}
