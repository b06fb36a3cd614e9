"""Chart data of a report, and plotly.js to draw it with.

A chart is what the page's script needs and no more: a title, axis titles and series. Colours are the style sheet's, so
charts follow the reader's light or dark scheme.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from afarm.core.errors import AfarmError
from afarm.evaluation.metrics import NORMAL_95, finite_number, pearson
from afarm.report.run import Points
from afarm.storage.rows import read_rows
from afarm.storage.runs import OUTPUTS, RunRecord

P = TypeVar("P")

Chart = dict[str, Any]
"""A chart as plotly takes it, as JSON, with the words around it."""

TRAIN = "train"
"""The stage whose curves are the method's own."""

MOST_POINTS = 1000
"""Points drawn of one curve; longer ones are thinned evenly, their last point kept."""

MAIN_CURVES = (
    *("objective/scores", "validation/win_rate", "objective/kl", "objective/length"),
    *("rewards/margins", "rewards/accuracies"),
)
"""The curves of training that are shown first: those of on-policy methods, then those of methods like DPO."""

ERRORS = {"validation/win_rate": "validation/standard_error"}
"""The standard errors of curves, by their names."""

_WORDS: Mapping[str, tuple[str, ...]] = {
    "objective/scores": ("Reward-model score", "mean score"),
    "objective/kl": ("KL from the starting policy", "nats a response"),
    "objective/length": ("Response length", "tokens"),
    "validation/win_rate": ("Win rate of checkpoints on the validation split", "percent"),
    "rewards/margins": ("Implicit reward: chosen less rejected", "margin"),
    "rewards/accuracies": ("Pairs whose chosen output has the higher implicit reward", "share of pairs"),
    "objective/entropy": ("Entropy of the policy", "nats"),
    "objective/rlhf_reward": ("Score less the KL penalty", "reward"),
    "loss": ("Loss", "loss"),
    "accuracy": ("Accuracy", "share of pairs"),
    "lr": ("Learning rate", "learning rate"),
    "learning_rate": ("Learning rate", "learning rate"),
    "grad_norm": ("Norm of the gradient", "norm"),
    "reward over KL": ("Reward over KL, step by step", "mean score", "nats a response"),
    "reward over n": ("Reward of the best of the first n samples", "mean score", "n"),
    "gold over reward": ("Gold over the reward model’s score, per output", "gold reward", "reward model’s score"),
    "reliability": (
        "Calibration: share of labels it agrees with, by its confidence",
        "share of labels that agree",
        "its probability for the output it prefers",
    ),
    "margins": (
        "Margin of the preferred output",
        "pairs",
        "reward ahead; below 0 it disagrees",
    ),
}
"""The words of a chart: its title and y axis, and the x axis if that is not of steps."""

HELD_OUT = {
    "accuracy": "accuracy",
    "pairs": "pairs",
    "loss": "cross-entropy",
    "brier": "Brier score",
    "ece": "expected calibration error",
}
"""Figures of a reward model on held-out pairs."""


def plotly_script() -> str | None:
    """The source of plotly.js from Python's plotly package, None if that is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return str(get_plotlyjs())


@cache
def pack(script: str) -> str:
    """Pack `script` by gzip and base64: half the size, and nothing in it can close its element."""
    return base64.b64encode(gzip.compress(script.encode("utf-8"), 5, mtime=0)).decode("ascii")


def chart(kind: str, name: str, stage: str = "", /, **data: Any) -> Chart:
    """A chart of a kind that `charts.js` draws, with its words."""
    title, y_title, *x_title = _WORDS.get(name, (name, name.rsplit("/", 1)[-1]))
    words = {"title": title, "x_title": (x_title or ["step"])[0], "y_title": y_title}
    return {"kind": kind, "stage": stage, "name": name, **words, **data}


def curve_chart(
    stage: str, name: str, points: Points, errors: Points | None = None, selected_step: float | None = None
) -> Chart:
    """A curve over steps, with 95% intervals if its errors are known, and the kept checkpoint's step."""
    shown = thin(points)
    known = dict(errors or ())
    halves = [None if (error := known.get(step)) is None else NORMAL_95 * error for step, _ in shown]
    return chart(
        "curve",
        name,
        stage,
        x=[step for step, _ in shown],
        y=[value for _, value in shown],
        half=halves if any(half is not None for half in halves) else None,
        kept=selected_step if stage == TRAIN else None,
    )


def curve_charts(
    metrics: Mapping[str, Mapping[str, Points]], selected_step: float | None = None
) -> tuple[list[Chart], list[Chart]]:
    """Split the curves into (charts to show first, all others).

    First come reward, KL, length and reward over KL, or the margins and accuracy of DPO; else what the method logs
    instead, else the losses of the other stages. `selected_step` is the step of the checkpoint that training kept.

    A metric that was logged at one step only is a number for the table, not a curve.
    """
    charts = [
        curve_chart(stage, name, points, names.get(ERRORS.get(name, "")), selected_step)
        for stage, names in metrics.items()
        for name, points in names.items()
        if sum(value is not None for _, value in points) > 1
    ]
    train = {chart["name"]: chart for chart in charts if chart["stage"] == TRAIN}
    losses = [chart for chart in charts if chart["name"] in ("loss", "accuracy")]
    first = [train[name] for name in MAIN_CURVES if name in train] or list(train.values())[:3] or losses
    others = [chart for chart in charts if chart not in first]
    path = reward_over_kl(metrics.get(TRAIN, {}), selected_step)
    return (first if path is None else [*first, path]), others


def reward_over_kl(curves: Mapping[str, Points], selected_step: float | None = None) -> Chart | None:
    """The way of training over the KL: the reward that each step has reached; None if it logged no two."""
    rewards = dict(curves.get("objective/scores", ()))
    steps = [(step, kl, rewards.get(step)) for step, kl in curves.get("objective/kl", ())]
    known = [(step, kl, reward) for step, kl, reward in steps if kl is not None and reward is not None]
    if len(known) < 2:
        return None
    shown = thin(known)
    return chart(
        "path",
        "reward over KL",
        TRAIN,
        x=[kl for _, kl, _ in shown],
        y=[reward for *_, reward in shown],
        steps=[step for step, *_ in shown],
        kept=selected_step,
    )


def proxy_chart(record: RunRecord) -> Chart | None:
    """Each output's reward-model score and gold reward; None unless both were evaluated output by output."""
    results = [result for result in record.rows("results") if isinstance(result, Mapping)]
    first = [result for result in results if result.get("reference") == results[0].get("reference")]
    rows = {result.get("evaluator"): result.get("rows") for result in first}
    reward, gold = rows.get("reward"), rows.get("gold")
    if not isinstance(reward, list) or not isinstance(gold, list) or len(gold) != len(reward):
        return None
    series = []
    for player, ending in (("system", ""), ("reference", "_reference")):
        pairs = [
            (finite_number(ours.get(f"reward{ending}")), finite_number(theirs.get(f"gold{ending}")))
            for ours, theirs in zip(reward, gold, strict=True)
        ]
        known = [(x, y) for x, y in pairs if x is not None and y is not None]
        if len(known) < 2:
            return None
        r = pearson([x for x, _ in known], [y for _, y in known])
        shown = known[:: -(-len(known) // MOST_POINTS)]
        name = str(results[0].get(player))
        points = {"x": [x for x, _ in shown], "y": [y for _, y in shown]}
        series.append({"name": f"{name}: r {r.value:.2f}" if r else name, **points})
    return chart("points", "gold over reward", series=series)


def best_of_n_chart(sample_rewards: Sequence[Sequence[float]]) -> Chart | None:
    """The mean reward of the best of the first n samples over n; None if no output is the best of several."""
    n = min(map(len, sample_rewards), default=0)
    if n < 2:
        return None
    best = [list(accumulate(rewards[:n], max)) for rewards in sample_rewards]
    points: Points = [(number, fmean(row[number - 1] for row in best)) for number in range(1, n + 1)]
    return curve_chart("", "reward over n", points)


def stored_over_n(directory: Path, record: RunRecord) -> Chart | None:
    """Chart the reward over n of a run in `directory`; None if its samples' rewards were not kept.

    A file that is as it was is not read again.
    """
    stage = record.stage(f"outputs {record.get('method')}") or {}
    path = directory.parent.parent / str(stage.get("artifact", "")) / OUTPUTS
    try:
        status = path.stat()
        return _chart(path, (status.st_mtime_ns, status.st_size))
    except (AfarmError, OSError):  # deleted, or half deleted: the rest of the run can be shown
        return None


@lru_cache(maxsize=64)
def _chart(path: Path, signature: tuple[int, int]) -> Chart | None:
    kept = (row.get("scores") for row in read_rows(path))
    return best_of_n_chart(
        [scores for scores in kept if isinstance(scores, list) and all(isinstance(s, int | float) for s in scores)]
    )


def selected_step(record: RunRecord) -> float | None:
    """Return the step of the checkpoint that training selected; None if it is the last."""
    return finite_number(record.section("checkpoint").get("best/step"))


def describe_held_out(record: RunRecord) -> dict[str, Any] | None:
    """Collect `figures` as (name, value) and `reliability` bins as (confidence, observed share, pairs).

    They are of a reward model on held-out pairs, as its fit measured it. None if the run has no such measurement.
    """
    measured = record.section("reward_model")
    if not finite_number(measured.get("pairs")):
        return None
    figures = [(title, finite_number(measured.get(name))) for name, title in HELD_OUT.items()]
    return {
        "figures": [(title, value) for title, value in figures if value is not None],
        "reliability": _bins(measured, "reliability", "confidence", "observed", "pairs"),
    }


def chart_held_out(record: RunRecord) -> list[Chart]:
    """Chart the reliability diagram and the histogram of margins, if the run has them."""
    measured = record.section("reward_model")
    charts = []
    if reliability := _bins(measured, "reliability", "confidence", "observed", "pairs"):
        x, y, pairs = map(list, zip(*reliability, strict=True))
        charts.append(chart("reliability", "reliability", x=x, y=y, pairs=pairs))
    margins = _bins(measured, "margins", "from", "to", "pairs")
    if any(pairs for _, _, pairs in margins):
        middles = [(low + high) / 2 for low, high, _ in margins]
        width = margins[0][1] - margins[0][0]
        charts.append(chart("bars", "margins", x=middles, y=[pairs for _, _, pairs in margins], width=width))
    return charts


def _bins(measured: Mapping[str, Any], name: str, *fields: str) -> list[list[float]]:
    """The numbers of each bin that has all of these fields."""
    bins = measured.get(name)
    rows = [bin for bin in bins if isinstance(bin, dict)] if isinstance(bins, list) else []
    return [
        [bin[field] for field in fields] for bin in rows if all(finite_number(bin.get(f)) is not None for f in fields)
    ]


def thin(points: list[P]) -> list[P]:
    """At most `MOST_POINTS` of `points`, evenly spaced, the last among them."""
    stride = len(points) // MOST_POINTS + 1
    return points[:-1:stride] + points[-1:]
