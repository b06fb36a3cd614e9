"""Parts of docs/notes/toy-results.md that are read off studies, as `afarm study … --json` gives them.

A study makes the runs that are missing and reuses the others, so each part is made from stored runs by one command.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from afarm import Bounded
from afarm.report.study_tables import cell_text
from benchmarks.toy_plots import over_seeds

BEST_OF_N = (
    *("overoptimization", "--recipe", "toy", "--methods", "best_of_n", "--n", "1,4,16,64,256"),
    *("--labelled-by", "pool+0.25,pool,greedy_gpt4"),
)
LONG_PPO = (
    *("overoptimization", "--recipe", "toy", "--methods", "ppo", "--set", "ppo.kl_coef=0.02", "--steps", "20,80,200"),
    *("--labelled-by", "crowd,pool+0.25,pool,greedy_gpt4"),
)
VALUE_INIT = ("sweep", "--recipe", "toy", "--method", "ppo", "--values", "ppo.value_init=reward_model,sft")

LAST_STEPS = 10
"""Steps of PPO over which the explained variance is averaged."""

Found = Mapping[str, Any]
"""What a study says of itself as JSON: its tables, runs and page."""


LOPSIDED = 0.1
"""How far from the middle of its interval a value may be to be shown with "±", in halves of the interval."""


def short_text(cell: Bounded, form: str) -> str:
    """Write a figure as "51.2 ± 3.2" if the value stands in the middle of its interval, or near."""
    if cell.low is None or cell.high is None:
        return cell_text(cell, form)
    half = (cell.high - cell.low) / 2
    if abs((cell.low + cell.high) / 2 - cell.value) > LOPSIDED * half:
        return cell_text(cell, form)
    return f"{cell_text(cell.value, form)} ± {half:{form.lstrip('+')}}"


def run_study(arguments: Sequence[str], seeds: Sequence[int], output_dir: Path) -> Found:
    """Have `afarm study` make what is missing of a study, and return its figures."""
    shared = ("--seeds", ",".join(map(str, seeds)), "--output-dir", str(output_dir), "--yes", "--json")
    command = [sys.executable, "-m", "afarm", "study", *arguments, *shared]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"afarm study {' '.join(arguments)} has failed runs: what it says above tells why")
    found: Found = json.loads(done.stdout)
    return found


def best_of_n(seeds: Sequence[int], output_dir: Path, plots: Path) -> list[str]:
    """Tables and plots of best-of-n, further and further, by the labels learned from."""
    found = run_study(BEST_OF_N, seeds, output_dir)
    return [*reach_lines(found), "", *peak_lines(found), *keep_plots(found, "best_of_n", plots, "toy-best-of-n")]


def long_ppo(seeds: Sequence[int], output_dir: Path, plots: Path) -> list[str]:
    """Table, falls and plots of PPO, further and further, with and without flipped labels."""
    found = run_study(LONG_PPO, seeds, output_dir)
    return [*step_lines(found), "", *fall_lines(found), *keep_plots(found, "ppo", plots, "toy-long-ppo")]


def value_init(seeds: Sequence[int], output_dir: Path, plots: Path) -> list[str]:
    """Table what it changes that PPO's value model begins as SFT and not as the reward model."""
    return value_lines(run_study(VALUE_INIT, seeds, output_dir), output_dir)


# ------------------------------------------------------------------------------------------------ tables


def reach_lines(found: Found) -> list[str]:
    """Table the figures at each n, ± half a 95% interval over seeds."""
    rows = found["tables"]["curves"]
    forms = {"win rate": ".1f", "gold": "+.2f", "reward": "+.2f", "characters": ".0f"}
    forms = {name: form for name, form in forms.items() if name in rows[0]}
    lines = [f"| n | labels | {' | '.join(forms)} |", "|---" * (2 + len(forms)) + "|"]
    for row in rows:
        cells = [short_text(Bounded(*row[name]), form) for name, form in forms.items()]
        cells[-1] = cells[-1].partition(" ")[0]
        lines.append(f"| {row['reach']} | {row['labels']} | {' | '.join(cells)} |")
    return lines


def peak_lines(found: Found) -> list[str]:
    """Table the best n, the fall from there to the last, and where the fitted curve peaks."""
    rows = found["tables"]["peaks"]
    head = f"| labels | best n | fall of the win rate from there to {rows[0]['last reach']} | fitted peak, √KL |"
    lines = [head, "|---|---|---|---|"]
    for row in rows:
        fall, peak = (
            cell_text(Bounded(*row[name]) if row[name] else None, form)
            for name, form in (("fall to it", "+.1f"), ("fitted peak, √KL", ".2f"))
        )
        lines.append(f"| {row['labels']} | {row['best reach']} | {fall} | {peak} |")
    return lines


def step_lines(found: Found) -> list[str]:
    """Table the figures at each number of steps, ± the standard error over seeds."""
    places: dict[tuple[str, int], list[Mapping[str, float]]] = {}
    for run in found["runs"]:
        places.setdefault((run["place"]["labels"], run["place"]["reach"]), []).append(run["figures"])
    forms = {"win_rate": ".1f", "gold": ".2f", "reward": ".2f"}
    lines = ["| PPO steps | labels | win rate | gold | reward |", "|---|---|---|---|---|"]
    for (labels, reach), figures in places.items():
        cells = [over_seeds([run[name] for run in figures], form) for name, form in forms.items()]
        lines.append(f"| {reach} | {labels} | {' | '.join(cells)} |".replace("-", "−"))
    return lines


def fall_lines(found: Found) -> Iterator[str]:
    """Say how far the win rate falls from its peak to the last step."""
    for row in found["tables"]["peaks"]:
        fall = cell_text(Bounded(*row["fall to it"]), "+.1f") if row["fall to it"] else "no fall"
        yield f"- {row['labels']}: from the peak at {row['best reach']} to {row['last reach']}, {fall} points."


def value_lines(found: Found, output_dir: Path) -> list[str]:
    """Table the differences between both value models, paired by seed, and what either explains."""
    runs: dict[str, dict[int, Mapping[str, float]]] = {}
    for run in found["runs"]:
        explained = explained_variance(output_dir / "runs" / run["record"])
        figures = {**run["figures"], "explained": explained}
        runs.setdefault(run["place"]["ppo.value_init"], {})[run["seed"]] = figures
    sft, reward = runs["sft"], runs["reward_model"]

    def gap(name: str, form: str) -> str:
        return over_seeds([sft[seed][name] - reward[seed][name] for seed in sft], form).replace("-", "−")

    explained = [statistics.fmean(run["explained"] for run in each.values()) for each in (sft, reward)]
    return [
        "| value model from SFT, less from the reward model | |",
        "|---|---|",
        f"| win rate, points | {gap('win_rate', '+.1f')} |",
        f"| gold | {gap('gold', '+.2f')} |",
        "| share of variance explained, from SFT and from the reward model, last ten steps "
        f"| {explained[0]:.2f} and {explained[1]:.2f} |",
    ]


def explained_variance(record: Path) -> float:
    """Average over PPO's last steps what its value model explained of the variance of returns."""
    rows = map(json.loads, (record / "metrics.jsonl").read_text("utf-8").splitlines())
    values = [row["val/explained_variance"] for row in rows if "val/explained_variance" in row]
    return statistics.fmean(values[-LAST_STEPS:])


# ------------------------------------------------------------------------------------------------ plots


NAMES = {"best_of_n": "best-of-n", "ppo": "PPO"}


def keep_plots(found: Found, method: str, plots: Path, name: str) -> Iterator[str]:
    """Copy the study's plots of win rate and gold beside the page, and show each after an empty line."""
    for figure, ending in (("win-rate", ""), ("gold", "-gold")):
        drawn = Path(found["page"]).parent / f"{method}-{figure}.svg"
        if drawn.is_file():
            shutil.copyfile(drawn, plots / f"{name}{ending}.svg")
            title = figure.capitalize().replace("-", " ")
            picture = f"![{title} of {NAMES[method]} over √KL, by the labels learned from]({name}{ending}.svg)"
            yield from ("", picture)
