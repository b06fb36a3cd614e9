"""Evaluators over 200 systems of 805 judgements each: the length-controlled fit, Bradley–Terry and Elo.

The judgements are made up: probabilities from a logistic model of length and difficulty with keyed draws, so that no
data set is needed. Run as `python -m benchmarks.evaluators` it takes the figures in its own process and prints them.
"""

from __future__ import annotations

import csv
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import Instruction, JudgedPair, Output, Pair, Preference

SYSTEMS, INSTRUCTIONS = 200, 805
TITLES = {
    "length_controlled": "`length_controlled`, fitted to each system, with difficulties and regularising rows",
    "bradley_terry": "`bradley_terry`, all systems at once",
    "elo": "`elo`, all systems at once, 100 orders and 100 draws",
}


def evaluators() -> list[str]:
    """A table of CPU seconds and peak memory, each evaluator in a process of its own."""
    lines = [
        "| evaluator, 200 systems of 805 judgements | CPU seconds | seconds | peak memory, MB |",
        "|---|---|---|---|",
    ]
    for name, title in TITLES.items():
        command = [sys.executable, "-m", "benchmarks.evaluators", name]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        lines.append(f"| {title} | {found['cpu']:.1f} | {found['wall']:.1f} | {found['memory_mb']:,.0f} |")
    return lines


def judgements(generator: np.random.Generator, system: int, difficulty: np.ndarray[Any, Any]) -> list[JudgedPair]:
    theirs = generator.integers(20, 400, INSTRUCTIONS)
    mine = generator.integers(20, 400, INSTRUCTIONS)
    logit = generator.normal(-1) + np.tanh((mine - theirs) / 150) + difficulty + generator.normal(0, 2, INSTRUCTIONS)
    rows = []
    for number, share in enumerate(1 / (1 + np.exp(-logit))):
        instruction = Instruction(f"Instruction {number}")
        pair = Pair(instruction, "y" * theirs[number], "x" * mine[number], 0, "reference", f"system {system}")
        rows.append(JudgedPair(pair, Preference(str(number), float(share))))
    return rows


def measure(name: str, directory: Path) -> dict[str, float]:
    """CPU and wall seconds of the evaluations alone, the libraries' import included, and the process's peak memory."""
    generator = np.random.default_rng(0)
    difficulty = generator.normal(0, 1, INSTRUCTIONS)
    boards = [judgements(generator, system, difficulty) for system in range(SYSTEMS)]
    work = length_controlled(directory, difficulty, boards) if name == "length_controlled" else many(name, boards)
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def length_controlled(
    directory: Path, difficulty: np.ndarray[Any, Any], boards: list[list[JudgedPair]]
) -> Callable[[], None]:
    from afarm_plugins.evaluators import LengthControlledConfig

    rows = [{"instruction": f"Instruction {n}", "difficulty": d} for n, d in enumerate(difficulty)]
    gamed = [
        {"index": n, "preference": p, "std_delta_len": z, "difficulty": d}
        for n, d in enumerate(difficulty)
        for p, z in ((0.2, 1.4), (0.6, -0.7))
    ]
    for file, table in (("difficulty.csv", rows), ("gamed.csv", gamed)):
        with (directory / file).open("w", newline="") as handle:
            writer = csv.DictWriter(handle, list(table[0]))
            writer.writeheader()
            writer.writerows(table)
    config = LengthControlledConfig(difficulty=str(directory / "difficulty.csv"), gamed=str(directory / "gamed.csv"))

    def work() -> None:
        from afarm_plugins.evaluators.length_controlled import LengthControlled

        for judged in boards:
            system = judged[0].pair.generator_2
            outputs = [Output(row.pair.instruction, row.pair.output_2) for row in judged]
            # A new one each, which reads its files again: as a farm does it.
            found = LengthControlled(config).evaluate(EvaluationInputs(system, outputs, judgements=judged))
            assert math.isfinite(float(found.metrics["length_controlled_winrate"] or 0))

    return work


def many(name: str, boards: list[list[JudgedPair]]) -> Callable[[], None]:
    given = EvaluationInputs("", (), judgements=[row for judged in boards for row in judged])

    def work() -> None:
        from afarm.core.plugins import discover

        assert len(discover().get("evaluators", name).load()().evaluate(given).rows) == SYSTEMS + 1

    return work


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.stdout.write(json.dumps(measure(sys.argv[1], Path(temporary))) + "\n")
