"""What comes out of the toy world, in tables and plots: `python -m benchmarks.toy_results`.

Writes the marked parts of docs/notes/toy-results.md and the plots beside it, from the runs under `--output-dir`. Those
that are not there yet are made, by the toy recipe as it stands; so it can be stopped and started again, and a change of
code or settings makes anew what it concerns. `--parts` makes some of them, `--seeds` takes others than a part's own.
Plots need Matplotlib (the extra `plots`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path

from afarm import Farm, Result
from afarm.evaluation.metrics import main_metric
from afarm.evaluation.statistics.correlation import correlation
from afarm.evaluation.statistics.paired import paired_differences
from benchmarks import toy_studies
from benchmarks.label_quality import label_accuracy, mean_gold, reward_accuracy
from benchmarks.learning_curve import PAIRS, measure_at
from benchmarks.toy_plots import half_interval, over_seeds, plot_points

PAGE = Path("docs/notes/toy-results.md")
SEEDS = (1, 2, 3, 4, 5)
FEWER_SEEDS = SEEDS[:3]
PAPER = {
    "ppo": "PPO",
    "dpo": "DPO",
    "best_of_n": "best-of-1024",
    "expert_iteration": "expert iteration",
    "sft_all": "SFT 52k",
    "sft": "SFT 10k",
    "feedme": "binary FeedME",
    "quark": "Quark",
    "reward_conditioning": "reward conditioning",
    "base": "LLaMA 7B",
}
"""The systems of the paper's Table 2 that stand for ours."""

METHODS = tuple(name for name in PAPER if name != "sft")
"""All that are compared with SFT."""

Figures = Mapping[str, Sequence[float]]
"""Values over seeds, by name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--output-dir", type=Path, default=Path("afarm-runs/toy-results"))
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    for name in arguments.parts:
        make, seeds = PARTS[name]
        lines = make(arguments.seeds or seeds, arguments.output_dir, arguments.page.parent)
        write_part(arguments.page, name, lines)


def write_part(page: Path, name: str, lines: Sequence[str]) -> None:
    """Put `lines` between the marks of a part of the page."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = page.read_text("utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"{page} has no part between {begin.strip()} and {end}")
    page.write_text(f"{before}{begin}" + "\n".join(lines) + f"\n{end}{after}", "utf-8")


# ------------------------------------------------------------------------------------------------ the board


def board(seeds: Sequence[int], output_dir: Path, plots: Path) -> list[str]:
    """Tables of all methods on shared artifacts: figures, paired differences, and the paper's order beside."""
    figures = compare("toy", METHODS, seeds, output_dir)
    rates = {method: found["win rate"] for method, found in figures.items()}
    return [
        *standings(figures),
        "",
        *table_differences(rates),
        "",
        *_paper_order({**rates, "sft": [50.0] * len(seeds)}, plots / "toy-paper-order.svg"),
    ]


def full(seeds: Sequence[int], output_dir: Path, plots: Path) -> list[str]:
    """Tables of all methods with the paper's numbers of instructions: figures, and the paper's order."""
    figures = compare("toy-full", METHODS, seeds, output_dir)
    rates = {method: found["win rate"] for method, found in figures.items()}
    return [*standings(figures), "", _order_line({**rates, "sft": [50.0] * len(seeds)})]


def compare(recipe: str, methods: Sequence[str], seeds: Sequence[int], output_dir: Path) -> dict[str, Figures]:
    """Return the figures of each method over the seeds, the highest win rate first."""
    with Farm(recipe, output_dir=output_dir, progress=False) as farm:
        compared = farm.compare_methods(methods, seeds=seeds)
    if compared.failed:
        raise SystemExit("\n".join(f"{name}: {why}" for name, why in compared.failed.items()))
    figures = {method: _figures(compared[method]) for method in methods}
    return dict(sorted(figures.items(), key=lambda item: -statistics.fmean(item[1]["win rate"])))


def standings(figures: Mapping[str, Figures]) -> list[str]:
    columns = {"win rate": ".1f", "reward": "+.2f", "gold": "+.2f", "characters": ".0f"}
    lines = ["| system | win rate | reward gained | gold gained | characters |", "|---|---|---|---|---|"]
    for method, found in figures.items():
        cells = [over_seeds(found[name], spec) for name, spec in columns.items()]
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return lines


def _figures(results: Sequence[Result]) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {"win rate": [], "reward": [], "gold": [], "characters": []}
    for result in results:
        figures["win rate"].append(result.win_rate)
        figures["characters"].append(result.metric("avg_length"))
        for name in ("reward", "gold"):
            figures[name].append(_gain(result, name))
    return figures


def _gain(result: Result, evaluator: str) -> float:
    """Return how far a system's figure is above its first reference's."""
    metrics = next(found.metrics for _, found in result.evaluations if found.evaluator == evaluator)
    figure = main_metric(evaluator, metrics)
    assert figure is not None
    assert figure.difference is not None
    return figure.difference


def table_differences(rates: Figures) -> list[str]:
    """Table the differences from the best, paired by seed."""
    names = list(rates)
    lines = ["| against " + f"`{names[0]}`" + " | win rate | 95 % | p, Holm |", "|---|---|---|---|"]
    found = paired_differences([rates[name] for name in names], 0, best=True)
    for name, gap in zip(names, found, strict=True):
        if gap is not None:
            between = f"{gap.low:+.1f} to {gap.high:+.1f}" if gap.low is not None else ""
            lines.append(f"| `{name}` | {gap.value:+.1f} | {between} | {gap.adjusted:.2g} |")
    return lines


def _paper_order(rates: Figures, plot: Path) -> list[str]:
    """Table win rates beside Table 2's and correlate their order; plot one over the other."""
    ours, theirs = _ours_and_theirs(rates)
    plot_points(
        {name: (theirs[name], ours[name], half_interval(rates[name])) for name in ours},
        ("win rate against Davinci003, the paper's Table 2, %", "win rate against SFT here, %"),
        plot,
    )
    lines = ["| system | here, against SFT | the paper, against Davinci003 |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {ours[name]:.1f} | {theirs[name]:.1f} ({PAPER[name]}) |"
        for name in sorted(theirs, key=lambda name: -theirs[name])
    ]
    picture = f"![Win rates here over those of the paper's Table 2]({plot.name})"
    return [*lines, "", _order_line(rates), "", picture]


def _order_line(rates: Figures) -> str:
    """Say how the order of systems agrees with the paper's, over all seeds and in each."""
    ours, theirs = _ours_and_theirs(rates)
    published = list(theirs.values())
    whole = correlation(list(ours.values()), published)
    by_seed = [correlation(list(of_seed), published).value or 0.0 for of_seed in zip(*rates.values(), strict=True)]
    between = f" (95 % {whole.low:.2f} to {whole.high:.2f} over systems)" if whole.low is not None else ""
    return (
        f"Spearman's ρ with the paper's Table 2: {whole.value:.2f}{between}; of single seeds "
        f"{min(by_seed):.2f} to {max(by_seed):.2f}."
    )


def _ours_and_theirs(rates: Figures) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean win rates over seeds, and Table 2's of the systems that stand for them."""
    boards = json.loads((resources.files("afarm.evaluation.boards") / "paper.json").read_text("utf-8"))["boards"]
    published = {entry["system"]: float(entry["win_rate"]) for entry in boards[0]["entries"]}
    ours = {name: statistics.fmean(values) for name, values in rates.items()}
    return ours, {name: published[PAPER[name]] for name in ours}


# ------------------------------------------------------------------------------------------------ labels


def labels(seeds: Sequence[int], output_dir: Path, plots: Path) -> list[str]:
    """Table how often labels and reward model order pairs as gold does."""
    figures: dict[str, list[float]] = {"training labels": [], "reward model": [], "gold of SFT": []}
    for seed in seeds:
        with Farm("toy", seed=seed, output_dir=output_dir, progress=False) as farm:
            figures["training labels"].append(label_accuracy(farm, farm.annotate()))
            figures["reward model"].append(reward_accuracy(farm))
            figures["gold of SFT"].append(mean_gold(farm, farm.outputs("sft")))
    return [
        "| | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean |",
        "|---" * (len(seeds) + 2) + "|",
        *(
            f"| {name} | " + " | ".join(format(value, spec) for value in values) + f" | {over_seeds(values, spec)} |"
            for name, values in figures.items()
            for spec in (".2f" if name == "gold of SFT" else ".1f",)
        ),
    ]


# ------------------------------------------------------------------------------------------------ the curve


def curve(seeds: Sequence[int], output_dir: Path, plots: Path) -> list[str]:
    """Table how often labels and reward model are right, by the number of pairs; of the most with two seeds."""
    lines = ["| pairs | seeds | labels | reward model |", "|---|---|---|---|"]
    for pairs in PAIRS:
        used = seeds[:2] if pairs == PAIRS[-1] else seeds
        columns = zip(*(measure_at(pairs, seed, output_dir, ()) for seed in used), strict=True)
        lines.append(f"| {pairs:,} | {len(used)} | {' | '.join(over_seeds(values, '.1f') for values in columns)} |")
    return lines


Make = Callable[[Sequence[int], Path, Path], list[str]]
"""Makes a marked part, from seeds, the directory of runs and that of plots."""

PARTS: Mapping[str, tuple[Make, Sequence[int]]] = {
    "board": (board, SEEDS),
    "full": (full, FEWER_SEEDS),
    "labels": (labels, SEEDS),
    "value-init": (toy_studies.value_init, SEEDS),
    "curve": (curve, FEWER_SEEDS),
    "best-of-n": (toy_studies.best_of_n, SEEDS),
    "long-ppo": (toy_studies.long_ppo, FEWER_SEEDS),
}
"""Each marked part of the page with its own seeds."""


if __name__ == "__main__":
    main()
