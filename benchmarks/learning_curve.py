"""Learning curve of the toy world's reward model: accuracy against gold by the number of pairs.

    python -m benchmarks.learning_curve --seeds 1

prints the table of docs/notes/toy-results.md, from which the recipe's number of pairs is chosen; the part `curve` of
`benchmarks.toy_results` writes it there. No method runs. Every other setting is the recipe's; finished parts are
reused, so it can be stopped and started again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from afarm import Farm
from benchmarks.label_quality import HELD_OUT, label_accuracy, reward_accuracy

PAIRS = (1000, 2000, 4000, 8000, 16000)


def measure_at(pairs: int, seed: int, output_dir: Path, settings: Sequence[str]) -> tuple[float, float]:
    """Measure labels and reward model against gold, in percent."""
    sizes = [f"toy.preference={max(PAIRS) + HELD_OUT}", f"rows.preference={pairs}"]
    with Farm("toy", seed=seed, output_dir=output_dir, settings=[*settings, *sizes]) as farm:
        return label_accuracy(farm, farm.annotate()), reward_accuracy(farm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--pairs", type=int, nargs="+", default=list(PAIRS))
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--output-dir", type=Path, default=Path("afarm-runs/learning-curve"))
    arguments = parser.parse_args()
    print("| pairs | labels | reward model |\n|---|---|---|")
    for pairs in arguments.pairs:
        rows = [measure_at(pairs, seed, arguments.output_dir, arguments.settings) for seed in arguments.seeds]
        labels, model = (statistics.fmean(column) for column in zip(*rows, strict=True))
        sys.stderr.write(f"{pairs} pairs, by seed: {', '.join(f'{row[1]:.1f}' for row in rows)}\n")
        print(f"| {pairs:,} | {labels:.1f} | {model:.1f} |", flush=True)


if __name__ == "__main__":
    main()
