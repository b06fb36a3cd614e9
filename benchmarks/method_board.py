"""Methods of packages beside PPO and DPO in the toy world: `python -m benchmarks.method_board`.

Compares methods over five seeds, as `afarm compare --methods grpo,ppo,dpo,kto --seeds 1,2,3,4,5` does, and writes the
board between the marks of each of `--pages`. Stored runs under `--output-dir` are reused. The packages that bring the
methods must be installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.toy_plots import half_interval
from benchmarks.toy_results import SEEDS, compare, standings, table_differences, write_part

METHODS = ("grpo", "ppo", "dpo", "kto")
PAGES = (Path("docs/methods/grpo.md"), Path("docs/methods/kto.md"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--output-dir", type=Path, default=Path("afarm-runs/method-board"))
    parser.add_argument("--pages", type=Path, nargs="+", default=PAGES)
    a = parser.parse_args()
    lines = board(a.methods, a.seeds, a.output_dir)
    for page in a.pages:
        write_part(page, "board", lines)


def board(methods: Sequence[str], seeds: Sequence[int], output_dir: Path) -> list[str]:
    """Tables: each method with its interval and the median of its training, and differences from the best by seed."""
    figures = compare("toy", methods, seeds, output_dir)
    rates = {method: found["win rate"] for method, found in figures.items()}
    heading, rule, *rows = standings(figures)
    lines = [f"{heading} win rate, 95 % | training, s |", f"{rule}---|---|"]
    for row, (method, values) in zip(rows, rates.items(), strict=True):
        middle, half = statistics.fmean(values), half_interval(values)
        seconds = statistics.median(training_seconds(method, seeds, output_dir))
        lines.append(f"{row} {middle - half:.1f} to {middle + half:.1f} | {seconds:.0f} |")
    return [*lines, "", *table_differences(rates)]


def training_seconds(method: str, seeds: Sequence[int], output_dir: Path) -> list[float]:
    """Seconds of the wall that a method's training took with each seed."""
    stored = [json.loads(file.read_text()) for file in output_dir.glob("artifacts/train/*/artifact.json")]
    return [a["seconds"] for a in stored if a["label"] == f"train {method}" and a["key_fields"]["seed"] in seeds]


if __name__ == "__main__":
    main()
