"""Coverage of win rates in people's units: PandaLM's models against llama-7b, whom three people judged on every pair.

    python -m benchmarks.peoples_units PANDALM_DIRECTORY

PandaLM's test set is the population. A round draws its instructions with replacement, so that a system's pairs come by
instruction, labels N pairs at random and hides the other labels. An interval covers if the mean of people's labels over
the whole population lies in it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
from afarm_people.calibration import JudgedTask, calibrate_win_rates

from afarm import DataError
from afarm_plugins.evaluators.prediction_powered import prediction_powered

REFERENCE = "llama-7b"
LABELS = (100, 200, 300)
JUDGES = {
    "gpt-3.5-turbo": ("gpt-3.5-turbo-testset-v1", "gpt_result"),
    "pandalm-7b": ("pandalm-7b-testset-v1", "pandalm_result"),
}
METHODS = ("people alone", "calibrated", "plain PPI", "judge, raw")
Interval = tuple[float, float]


def read_rows(directory: Path, name: str) -> list[dict[str, Any]]:
    with gzip.open(directory / f"{name}.json.gz", "rt", encoding="utf-8") as handle:
        rows: list[dict[str, Any]] = json.load(handle)
    return rows


def read_population(directory: Path, judge: str) -> list[list[tuple[str, JudgedTask]]]:
    """Read (system, task) by instruction; pairs of which the judge said nothing readable are draws."""
    file, field = JUDGES[judge]
    verdicts = {row["idx"]: row[field] for row in read_rows(directory, file)}
    by_instruction: dict[str, list[tuple[str, JudgedTask]]] = defaultdict(list)
    for row in read_rows(directory, "testset-v1"):
        first, second = row["cmp_key"].split("_")
        if REFERENCE not in (first, second):
            continue
        system, win = (second, 2) if first == REFERENCE else (first, 1)

        def value(label: Any, win: int = win) -> float:
            return float(str(label) == str(win)) if str(label) in "12" else 0.5

        people = fmean(value(row[f"annotator{number}"]) for number in (1, 2, 3))
        task = row["instruction"] + "\n" + row["input"]
        by_instruction[task].append((system, JudgedTask(task, value(verdicts[row["idx"]]), people)))
    return list(by_instruction.values())


def draw(
    population: Sequence[Sequence[tuple[str, JudgedTask]]], instructions: int, labels: int, seed: int
) -> dict[str, list[JudgedTask]]:
    """Draw instructions with replacement, then the pairs that are labelled."""
    rng = np.random.default_rng((seed, labels))
    drawn = [population[number] for number in rng.integers(len(population), size=instructions)]
    rows = [(system, number, task) for number, pairs in enumerate(drawn) for system, task in pairs]
    labelled = set(rng.choice(len(rows), size=min(labels, len(rows)), replace=False).tolist())
    systems: dict[str, list[JudgedTask]] = defaultdict(list)
    for place, (system, number, task) in enumerate(rows):
        people = task.people if place in labelled else None
        systems[system].append(JudgedTask(str(number), task.judge, people))
    return systems


def normal_interval(wins: Sequence[float]) -> Interval:
    """Compute the 95% interval of a mean by the normal distribution, in percent; all there is of one value."""
    half = NormalDist().inv_cdf(0.975) * stdev(wins) / math.sqrt(len(wins)) if len(wins) > 1 else 0.5
    return 100 * (fmean(wins) - half), 100 * (fmean(wins) + half)


def intervals(rows: Sequence[JudgedTask], calibrated: Interval | None) -> dict[str, Interval | None]:
    """Compute each method's 95% interval of one system, in percent; None where it refuses."""
    own = [row.people for row in rows if row.people is not None]
    low, high = normal_interval([row.judge for row in rows])
    found: dict[str, Interval | None] = {"judge, raw": (max(0.0, low), min(100.0, high))}
    found["people alone"] = normal_interval(own) if len(own) > 1 else None
    try:
        humans = [math.nan if row.people is None else row.people for row in rows]
        ppi = prediction_powered(humans, [row.judge for row in rows]).combined
        found["plain PPI"] = (100 * ppi.low, 100 * ppi.high)
    except DataError:
        found["plain PPI"] = None
    return {**found, "calibrated": calibrated}


def measure(
    population: Sequence[Sequence[tuple[str, JudgedTask]]], instructions: int, labels: int, rounds: int
) -> Mapping[str, tuple[float, float, float]]:
    """Return by method the coverage, the share refused, both in percent, and the mean width in points."""
    whole: dict[str, list[float]] = defaultdict(list)
    for pairs in population:
        for system, task in pairs:
            whole[system].append(task.people or 0.0)
    truth = {system: 100 * fmean(wins) for system, wins in whole.items()}
    seen: dict[str, list[tuple[bool, float] | None]] = {method: [] for method in METHODS}
    for seed in range(rounds):
        systems = draw(population, instructions, labels, seed)
        for rate in calibrate_win_rates(systems):
            ends = None if rate.low is None or rate.high is None else (rate.low, rate.high)
            for method, each in intervals(systems[rate.system], ends).items():
                seen[method].append(each and (each[0] <= truth[rate.system] <= each[1], each[1] - each[0]))
    table = {}
    for method, results in seen.items():
        given = [result for result in results if result]
        table[method] = (
            100 * fmean(covered for covered, _ in given),
            100 * (1 - len(given) / len(results)),
            fmean(width for _, width in given),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--instructions", type=int, default=0, help="how many a round draws; as many as there are")
    options = parser.parse_args()
    print("| judge | labels | method | coverage, % | refused, % | width, points | labels saved, % |")
    print("|---|--:|---|--:|--:|--:|--:|")
    for judge in JUDGES:
        population = read_population(options.directory, judge)
        for labels in LABELS:
            table = measure(population, options.instructions or len(population), labels, options.rounds)
            alone = table["people alone"][2]
            for method in METHODS:
                covered, refused, width = table[method]
                saved = "" if method in ("people alone", "judge, raw") else f"{100 * (1 - (width / alone) ** 2):.0f}"
                print(
                    f"| {judge} | {labels} | {method} | {covered:.1f} | {refused:.1f} | {width:.1f} | {saved} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
