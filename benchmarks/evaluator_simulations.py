"""Do the errors and intervals of evaluators hold: `python -m benchmarks.evaluator_simulations`.

Draws judgements whose truth is known, counts how often what the evaluators say of it is right, and writes the tables
into docs/notes/statistics.md, between markers. Minutes on one core; `--runs 10` for a rough look, `--only strengths`
for one part.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.special import expit, logit

from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import Instruction, JudgedPair, Pair, Preference
from afarm_plugins.evaluators.bradley_terry import BradleyTerry
from afarm_plugins.evaluators.elo import Elo
from afarm_plugins.evaluators.length_checks import error_and_warnings
from afarm_plugins.evaluators.length_glm import Floats, Rows, fit, length_feature, sampling_error
from afarm_plugins.evaluators.pair_counts import POINTS, REFERENCE_AT
from benchmarks.evaluation_simulations import Generator, Table, generators, percent, put, rows

PAGE = Path("docs/notes/statistics.md")
NORMAL_95 = 1.959964

# ---------------------------------------------------------------------------------------------------- length control

SIZES, RATES, LONGER = (30, 60, 120, 250, 500, 805), (0.02, 0.05, 0.15, 0.5), (0, 1, 2)
"""Instructions; win rates at equal length; by how many standard deviations the reference's outputs are longer."""
SAYS = {
    "nothing": "nothing",
    "extrapolated": "the figure is extrapolated",
    "moves": "the penalty moves the figure",
    "far out": "no error holds so far out (here: the one that is withheld)",
    "decides": "the penalty decides the figure, no error holds (here: the one that is withheld)",
}


def lengthy(random: Generator, n: int, rate: float, longer: float) -> tuple[Rows, Floats, Floats]:
    """Judgements of a system that would win `rate` at equal length, by a judge that likes the longer output; by how
    much the reference's output is longer; and the features for equal length."""
    gap = random.normal(longer, 1, n)
    won = (random.random(n) < expit(logit(rate) - np.tanh(gap))).astype(float)
    features = np.stack([np.ones(n), length_feature(gap)], axis=1)
    return Rows(features, won, np.ones(n), np.arange(n)), gap, features * [1, 0]


def fits(runs: int) -> Iterator[tuple[int, float, str, float, float]]:
    """Instructions, win rate, what is said of the figure, its distance from the truth and its error, in points."""
    for number, (n, rate, longer) in enumerate(itertools.product(SIZES, RATES, LONGER)):
        for random in generators(runs, 90, number):
            judged, gap, equal = lengthy(random, n, rate, longer)
            coefficients, _ = fit(judged)
            error = sampling_error(coefficients, judged, None, equal)
            said = "; ".join(error_and_warnings(coefficients, error, judged, judged, gap, equal)[1])
            kind = next((kind for kind in reversed(SAYS) if kind in said), "nothing")
            yield n, rate, kind, 100 * abs(float(expit(coefficients[0])) - rate), 100 * (error or 0.0)


def length_controlled(runs: int) -> Table:
    """Whether the truth lies within 1.96 errors, by what is said of the figure."""
    found = list(fits(runs))
    lines = []
    for kind, says in SAYS.items():
        mine = [(off, error) for _, _, told, off, error in found if told == kind]
        share, holds = percent([told == kind for _, _, told, _, _ in found]), [o < NORMAL_95 * e for o, e in mine]
        middle = [f"{np.median(column):.1f}" for column in zip(*mine, strict=True)] or ["", ""]
        lines.append([says, share, percent(holds) if mine else "", *middle])
    given = []
    for rate in RATES:
        cells = [[kind for size, r, kind, _, _ in found if (size, r) == (n, rate)] for n in SIZES]
        given.append([f"{100 * rate:.0f}%", *(percent([k in list(SAYS)[:3] for k in cell], 0) for cell in cells)])
    heading = ["it says", "of the fits, %", "truth within 1.96 errors, %", "median distance from it", "median error"]
    return [*rows(heading, lines), "", *rows(["fits with an error, %", *(f"n = {n}" for n in SIZES)], given)]


# --------------------------------------------------------------------------------------------------------- strengths

CHANCES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Win rates of systems against the reference, draws apart."""


def games(random: Generator, n: int, draws: float, everyone: bool) -> list[JudgedPair]:
    """Each system against the reference on `n` instructions; or, with `everyone`, each two on an eighth of them."""
    strength = {"reference": 0.0} | {f"{chance:.0%}": float(logit(chance)) for chance in CHANCES}
    found = []
    for one, two in itertools.combinations(strength, 2):
        if one != "reference" and not everyone:
            continue
        for task in random.permutation(n)[: max(2, n // 8)] if everyone else range(n):
            won = float(random.random() < expit(strength[two] - strength[one]))
            pair = Pair(Instruction(f"Instruction {task}"), one, two, 0, one, two)
            found.append(JudgedPair(pair, Preference(str(task), 0.5 if random.random() < draws else won)))
    return found


def strengths(runs: int) -> Table:
    """Whether the interval of a rating holds the truth, by whether the system is flagged."""
    lines = []
    worlds = [("with the reference", 0.0, False), ("with the reference, 50% draws", 0.5, False), ("all", 0.0, True)]
    evaluators = [("`bradley_terry`", BradleyTerry()), ("`elo`", Elo())]
    for (name, evaluator), (world, draws, everyone) in itertools.product(evaluators, worlds):
        cells = []
        for n in (20, 100, 500):
            holds: dict[bool, list[bool]] = {False: [], True: []}
            for random in generators(runs, 91, n):
                given = games(random, n, draws, everyone)
                found = evaluator.evaluate(EvaluationInputs("", (), judgements=given))
                for row in found.rows:
                    if row["system"] != "reference":
                        chance = float(row["system"].rstrip("%")) / 100
                        truth = REFERENCE_AT + POINTS * logit(0.5 * draws + (1 - draws) * chance)
                        holds[bool(row["flag"])].append(bool(row["elo_low"] <= truth <= row["elo_high"]))
            flagged = f"; flagged {percent(holds[True], 0)}" if holds[True] else ""
            share = len(holds[True]) / sum(map(len, holds.values()))
            plain = percent(holds[False]) if holds[False] else "–"
            cells.append(f"{plain} ({100 * share:.0f}% flagged{flagged.replace('; flagged', ', of these')})")
        lines.append([name, world, *cells])
    return rows(["evaluator", "who meets", "n = 20", "n = 100", "n = 500"], lines)


PARTS: dict[str, Callable[[int], Table]] = {"length-controlled": length_controlled, "strengths": strengths}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="simulations a figure")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    given = parser.parse_args(arguments)
    for name in given.only:
        table = PARTS[name](given.runs)
        sys.stdout.write("\n".join(table) + "\n\n")
        put(table, name, PAGE)


if __name__ == "__main__":
    main()
