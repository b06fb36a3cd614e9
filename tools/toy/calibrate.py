"""Annotator statistics in the toy world, next to AlpacaFarm's: `python -m tools.toy.calibrate`.

The noise of the offline judge and of the crowd was set so that this table meets the paper's section 3 and appendix C,
and is set by nothing else. Expectations are exact over members, orders, votes and noise; only the pairs are drawn, as
two answers by random authors to one instruction (what an SFT model of the demonstrations samples at temperature 1).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from random import Random
from statistics import fmean
from typing import Any

from afarm.core.interfaces import BuildContext
from afarm.core.judge import ShownPair
from afarm.core.records import Pair
from afarm_plugins.toy import crowd
from afarm_plugins.toy.authors import draw_author, write_answer
from afarm_plugins.toy.gold import GoldReward
from afarm_plugins.toy.world import draw_instruction, gold, read_task

POOL = {"strong": 5, "light": 4, "completion": 4}
"""Members of the pool of 13 by family role."""
MUCH_LONGER = 10
"""Characters of difference above which a pair counts as one of unequal length: about a detail.

The paper counts from 30, a tenth of its mean length; answers here have about 30 characters in all."""


@dataclass(frozen=True, slots=True)
class Chance:
    """P(output_2 is preferred) for one pair, as p when output_1 is shown first and as q when output_2 is."""

    p: float
    q: float

    @property
    def second(self) -> float:
        return (self.p + self.q) / 2

    @property
    def shown_first(self) -> float:
        return (1 - self.p + self.q) / 2

    def flipped(self, rate: float) -> Chance:
        return Chance(*(rate + (1 - 2 * rate) * x for x in (self.p, self.q)))


def draw_pairs(count: int, seed: int = 0) -> list[Pair]:
    """Pairs of different answers to random instructions."""
    random = Random(f"calibrate:{seed}")
    pairs: list[Pair] = []
    while len(pairs) < count:
        instruction = draw_instruction(random)
        task = read_task(instruction.instruction, instruction.input)
        first, second = (write_answer(task, draw_author(random), random) for _ in range(2))
        pair = Pair(instruction, first, second)
        if not pair.identical:
            pairs.append(pair)
    return pairs


def crowd_chances(pairs: Sequence[Pair]) -> list[Chance]:
    chances = []
    for pair in pairs:
        p = fmean(member.prefers_second(pair.instruction, pair.output_1, pair.output_2) for member in crowd.members())
        chances.append(Chance(p, p))
    return chances


def judge_chances(judge: Any, role: str, pairs: Sequence[Pair]) -> list[Chance]:
    """`judge` is an offline judge: anything with `first_is_better(comparison, role)`."""
    return [
        Chance(
            1 - judge.first_is_better(ShownPair(pair.id, pair.instruction, pair.output_1, pair.output_2), role),
            judge.first_is_better(ShownPair(pair.id, pair.instruction, pair.output_2, pair.output_1), role),
        )
        for pair in pairs
    ]


def mixture(weighted: Iterable[tuple[int, Sequence[Chance]]]) -> list[Chance]:
    """One annotator drawn anew for each label, with chances in proportion to the weights."""
    weights, columns = zip(*weighted, strict=True)
    return [
        Chance(*(sum(w * getattr(c, side) for w, c in zip(weights, row, strict=True)) / sum(weights) for side in "pq"))
        for row in zip(*columns, strict=True)
    ]


def majority(p: float, votes: int) -> float:
    """P(most of `votes` independent labels prefer output_2), each with chance p; a tie counts half."""
    return sum(
        math.comb(votes, k) * p**k * (1 - p) ** (votes - k) * (1 if 2 * k > votes else 0.5 if 2 * k == votes else 0)
        for k in range(votes + 1)
    )


def disagree(p: float, q: float) -> float:
    return p * (1 - q) + q * (1 - p)


def statistics(pairs: Sequence[Pair], chances: Sequence[Chance], people: Sequence[Chance]) -> dict[str, float]:
    """Measure variance and bias as the paper defines them, and agreement, as shares in [0, 1].

    Four labels per pair are compared; `people` are the crowd. `agreement` is of one label with the majority of three of
    the crowd (for the crowd itself: three others); `gold` of one label with the gold reward, pairs of equal reward left
    out.
    """
    second = [chance.second for chance in chances]
    crowd3 = [majority(chance.second, 3) for chance in people]
    crowd4 = [majority(chance.second, 4) for chance in people]
    gaps = [gold(pair.instruction, pair.output_2) - gold(pair.instruction, pair.output_1) for pair in pairs]
    lengths = [len(pair.output_2) - len(pair.output_1) for pair in pairs]
    longer = [p if d > 0 else 1 - p for p, d in zip(second, lengths, strict=True) if abs(d) > MUCH_LONGER]
    return {
        "variance": fmean(disagree(p, majority(p, 3)) for p in second),
        "agreement": 1 - fmean(disagree(p, q) for p, q in zip(second, crowd3, strict=True)),
        "bias": fmean(disagree(majority(p, 4), q) for p, q in zip(second, crowd4, strict=True)),
        "gold": fmean(p if gap > 0 else 1 - p for p, gap in zip(second, gaps, strict=True) if abs(gap) > 1e-9),
        "longer": fmean(longer),
        "first": fmean(chance.shown_first for chance in chances),
    }


def table(pairs: Sequence[Pair], judge: Any) -> dict[str, dict[str, float]]:
    """The statistics of each annotator, by name."""
    people = crowd_chances(pairs)
    roles = {role: judge_chances(judge, role, pairs) for role in POOL}
    pool = mixture((POOL[role], roles[role]) for role in POOL)
    annotators = {
        **{f"one {role} judge": chances for role, chances in roles.items()},
        "evaluation pool": pool,
        "training pool (25% flips)": [chance.flipped(0.25) for chance in pool],
        "crowd": people,
    }
    return {name: statistics(pairs, chances, people) for name, chances in annotators.items()}


PAPER = {
    "one strong judge": {"variance": 0.1, "bias": 0.33},
    "evaluation pool": {"variance": 0.26, "agreement": 0.65, "bias": 0.38, "longer": 0.64},
    "training pool (25% flips)": {"variance": 0.43, "bias": 0.35},
    "crowd": {"variance": 0.35, "agreement": 0.66, "longer": 0.62},
}


def offline_judge() -> Any:
    """The offline judge as registered, with the gold reward as its utility."""
    # By name, as the registry does: one plugin does not import another.
    judge = import_module("afarm_plugins.judges.offline").OfflineJudge
    return judge("gold", None, BuildContext(reward_model=lambda name: GoldReward()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = table(draw_pairs(arguments.pairs, arguments.seed), offline_judge())
    columns = list(next(iter(rows.values())))
    print("| annotator | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, values in rows.items():
        cells = [_cell(values[column], PAPER.get(name, {}).get(column)) for column in columns]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\nMeasured (paper).")


def _cell(measured: float, paper: float | None) -> str:
    return f"{measured:.2f}" + (f" ({paper:.2f})" if paper is not None else "")


if __name__ == "__main__":
    main()
