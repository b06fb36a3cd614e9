"""Online Elo ratings of all systems of a board, from their judgements one after another.

Each judgement moves both systems by as much as it surprises:

    expected = 1 / (1 + 10 ** ((R_i - R_j) / 400)),    R_j += k * (share_j - expected),    R_i -= the same

All begin at 1000, and in the end the reference is put back there. The rating depends on the order of the judgements,
which means nothing here: so it is the mean over `orders` random ones. Its interval covers what it would be with other
instructions in another order: the middle 95% over as many draws of the instructions, with replacement, in one random
order each. Draws come from `seed` alone, whatever the order of the rows.

Source: Elo 1978. Where strengths do not change over time Bradley–Terry uses the same judgements better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from afarm import NORMAL_95, Evaluation, EvaluationInputs, Evaluator, seeding
from afarm_plugins.evaluators import BradleyTerryConfig, EloConfig
from afarm_plugins.evaluators.bradley_terry import strengths
from afarm_plugins.evaluators.pair_counts import POINTS, REFERENCE_AT, TENFOLD, Floats, Games, games

Numbers = NDArray[np.int32]


class Elo(Evaluator):
    """See the module.

    Rows, best system first: `system`, `elo`, `elo_low` and `elo_high` (95%), `order_deviation` (the standard deviation
    over orders alone), `n_wins`, `n_losses`, `n_draws`, `n_total`, and `flag`, where a pass ends too early:
    Bradley–Terry's rating of the same judgements is less sure.
    """

    needs = frozenset({"judgements"})
    many = True

    def __init__(self, config: EloConfig | None = None):
        self.config = config or EloConfig()

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raises `DataError` as `games` does."""
        config = self.config
        played = games(inputs.judgements, config.reference)
        generator = np.random.default_rng(seeding.integer(config.seed, "elo"))
        found = rate(played, _orders(generator, played, config.orders), config.k)
        ratings, drawn = found[: config.orders], found[config.orders :]
        low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
        deviation = ratings.std(axis=0, ddof=1) if config.orders > 1 else np.zeros(len(low))
        mean = ratings.mean(axis=0)
        exact = strengths(played, BradleyTerryConfig().prior)
        at, around = REFERENCE_AT + POINTS * exact.strength, NORMAL_95 * POINTS * exact.error
        short = high - low < 2 * around  # ratings that have not arrived do not spread as those that have
        rows = [
            {
                "system": row["system"],
                "elo": float(mean[number]),
                "elo_low": float(low[number]),
                "elo_high": float(high[number]),
                "order_deviation": float(deviation[number]),
                **row,
                "flag": self._flag(float(at[number]), float(around[number])) if short[number] else "",
            }
            for number, row in enumerate(played.scores())
        ]
        return Evaluation(
            "elo",
            inputs.system,
            {**played.figures, "n_flagged": int(short.sum())},
            tuple(sorted(rows, key=lambda row: (-row["elo"], row["system"]))),
        )

    def _flag(self, at: float, around: float) -> str:
        return (
            f"too few judgements for steps of elo.k={self.config.k:g} to get where they put it: bradley_terry says "
            f"{at:.0f} ({at - around:.0f} to {at + around:.0f})"
        )


def rate(played: Games, steps: Numbers, k: float) -> Floats:
    """[R, S]: ratings after R orders, the reference at 1000; `steps` [T, R] numbers the games, N for none."""
    # One more game than there are, which moves nobody.
    first, second = (np.append(side, 0) for side in (played.first, played.second))
    share, pace = np.append(played.share, 0.0), np.append(np.full(len(played.share), k), 0.0)
    ratings = np.full((steps.shape[1], len(played.systems)), REFERENCE_AT)
    row = np.arange(len(ratings))
    for step in steps:
        one, two = first[step], second[step]
        gap = ratings[row, two] - ratings[row, one]
        move = pace[step] * (share[step] - 1 / (1 + 10 ** (-gap / TENFOLD)))
        ratings[row, two] += move
        ratings[row, one] -= move
    return np.asarray(ratings - ratings[:, [played.reference]] + REFERENCE_AT)


def _orders(generator: np.random.Generator, played: Games, orders: int) -> Numbers:
    """Random orders [T, 2 * orders] of all games, then of games of instructions drawn with replacement."""
    none, count = len(played.share), played.instructions
    numbers, sizes = np.arange(none, dtype=np.int32), np.bincount(played.instruction)
    games_of = np.split(numbers, np.cumsum(sizes)[:-1])  # games are sorted by instruction
    drawn = generator.integers(count, size=(orders, count))
    steps = np.full((max(none, sizes[drawn].sum(axis=1).max()), 2 * orders), none, dtype=np.int32)
    for column in range(orders):
        steps[:none, column] = generator.permutation(numbers)
    for column, tasks in enumerate(drawn, start=orders):
        order = generator.permutation(np.concatenate([games_of[task] for task in tasks]))
        steps[: len(order), column] = order
    return steps
