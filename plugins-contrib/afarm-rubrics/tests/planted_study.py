"""The principles that an induction finds of planted ones: the table of docs/guides/rubrics.md.

python plugins-contrib/afarm-rubrics/tests/planted_study.py --seeds 10
python plugins-contrib/afarm-rubrics/tests/planted_study.py --coins 400    # coins that pass the randomisation test
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
from pathlib import Path
from statistics import fmean

import planted
from afarm_rubrics.checklist import ChecklistConfig
from afarm_rubrics.induce import Asking, induce
from afarm_rubrics.labels import read_labels, split
from afarm_rubrics.weights import fit_weights

from afarm import mean_percent
from afarm.results import accuracy_interval
from afarm.testing import FakeJudgeClient, annotate_context

WEIGHTS = {"number": 2.0, "list": -1.0, "source": 1.0}
CONDITIONS = [
    ("no noise", 300, WEIGHTS, 0.0),
    ("1 label of 10 flipped", 300, WEIGHTS, 0.1),
    ("1 label of 4 flipped", 300, WEIGHTS, 0.25),
    ("1 label of 4 flipped", 1000, WEIGHTS, 0.25),
    ("no noise", 60, WEIGHTS, 0.0),
    ("a coin's labels", 300, {}, 0.0),
    ("a coin's labels", 1000, {}, 0.0),
]


def measure(pairs: int, weights: dict[str, float], noise: float, seed: int) -> dict[str, float | None]:
    """Induce once; `share` is None if no rubric was found."""
    judge = planted.Planted("", None, None)
    context = annotate_context(seed, FakeJudgeClient(judge.answer))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "labels.jsonl"
        rows = planted.make_rows(pairs, seed, weights, noise)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        train, test = split(read_labels(str(file)), 0.5, seed)
    made = induce(train, test, Asking(100, 20, ChecklistConfig()), context)
    signs = {planted.PRINCIPLE_OF[one.text]: one.weight > 0 for one in made.kept}
    wanted = {name: weight > 0 for name, weight in weights.items()}
    shares = {one.name: one.share.value for one in made.explained}
    rubric = made.explained[0].share
    return {
        "share": shares["the rubric"] if made.kept else None,
        "covers 50": float((rubric.low or 0) <= 50 <= (rubric.high or 100)) if made.kept else None,
        "longer": shares["the longer output"],
        "all found": float(wanted.items() <= signs.items()),
        "others": float(len(signs.keys() - wanted.keys())),
    }


def count_coins(sets: int, further: int) -> None:
    """Print how many coins' labels of 150 pairs get a rubric, with `further` random candidates."""
    passed = 0
    for seed in range(1000, 1000 + sets):
        draw, rows = random.Random(seed), planted.make_rows(150, seed, {})
        both = [(str(row["output_1"]), str(row["output_2"])) for row in rows]
        gaps = [[float(meets(two)) - float(meets(one)) for meets in planted.MEETS.values()] for one, two in both]
        gaps = [row + [float(draw.choice((-1, 0, 0, 1))) for _ in range(further)] for row in gaps]
        tasks = [str(row["instruction"]) for row in rows]
        passed += any(fit_weights(gaps, [row["preference"] == 2 for row in rows], tasks)[0])
    low, high = accuracy_interval(passed / sets, sets)
    print(f"{8 + further} candidates: {passed} of {sets} coins, {100 * passed / sets:.1f} % ({low:.1f} to {high:.1f})")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--coins", type=int, default=0)
    given = options.parse_args()
    if given.coins:
        for further in (0, 12):
            count_coins(given.coins, further)
        return
    seeds = range(101, given.seeds + 101)
    print("| labels | pairs | explained, % | the longer output, % | all found | others found | no rubric |")
    print("|---|---|---|---|---|---|---|")
    for name, pairs, weights, noise in CONDITIONS:
        found = [measure(pairs, weights, noise, seed) for seed in seeds]
        shares = [one["share"] for one in found if one["share"] is not None]
        cell = ""
        if shares:
            value, low, high = mean_percent(shares)
            cell = f"{value:.1f}" + ("" if low is None else f" ({low:.1f} to {high:.1f})")
        longer = fmean(one["longer"] or 0.0 for one in found)
        all_found = f"{sum(one['all found'] or 0 for one in found):.0f} of {len(found)}" if weights else ""
        others = f"{fmean(one['others'] or 0.0 for one in found):.2f}"
        beyond = [one["covers 50"] for one in found if one["covers 50"] is not None]
        covered = f" ({sum(beyond):.0f} of {len(beyond)} intervals hold 50)" if not weights and beyond else ""
        none = sum(one["share"] is None for one in found)
        print(f"| {name} | {pairs} | {cell}{covered} | {longer:.1f} | {all_found} | {others} | {none} |", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
