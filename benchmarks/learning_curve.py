"""Learning curve of the toy world's reward model: accuracy against gold by the number of pairs.

    python -m benchmarks.learning_curve --seeds 1

prints the table of docs/notes/toy-results.md, from which the recipe's number of pairs is chosen. No method runs. Every
other setting is the recipe's; finished parts are reused, so it can be stopped and started again.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from afarm import Farm
from benchmarks.label_quality import HELD_OUT, label_accuracy, reward_accuracy

PAIRS = (1000, 2000, 4000, 8000, 16000)


def measure_at(pairs: int, seed: int, output_dir: Path, settings: Sequence[str]) -> tuple[float, float, float]:
    """Measure labels and reward model against gold in percent, and the processor's seconds that making both took."""
    sizes = [f"toy.preference={max(PAIRS) + HELD_OUT}", f"rows.preference={pairs}"]
    with Farm("toy", seed=seed, output_dir=output_dir, settings=[*settings, *sizes]) as farm:
        farm.sft()
        began = _seconds()
        labels = label_accuracy(farm, farm.annotate())
        farm.fit_reward()
        passed = _seconds() - began
        return labels, reward_accuracy(farm), passed


def _seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--pairs", type=int, nargs="+", default=list(PAIRS))
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--output-dir", type=Path, default=Path("afarm-runs/learning-curve"))
    arguments = parser.parse_args()
    print("| pairs | labels | reward model | CPU seconds |\n|---|---|---|---|")
    for pairs in arguments.pairs:
        rows = [measure_at(pairs, seed, arguments.output_dir, arguments.settings) for seed in arguments.seeds]
        labels, model, seconds = (statistics.fmean(column) for column in zip(*rows, strict=True))
        sys.stderr.write(f"{pairs} pairs, by seed: {', '.join(f'{row[1]:.1f}' for row in rows)}\n")
        print(f"| {pairs:,} | {labels:.1f} | {model:.1f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
