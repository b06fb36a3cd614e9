"""Chart data of a report, and plotly.js to draw it with.

A chart is what the page's script needs and no more: a title, axis titles and series. Colours are the style sheet's, so
charts follow the reader's light or dark scheme.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from statistics import fmean
from typing import Any, TypeVar

from afarm.evaluation.metrics import NORMAL_95, finite_number, pearson
from afarm.report.run import Points
from afarm.storage.runs import RunRecord

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

_TITLES = {
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
    "reward over n": ("Reward of the best of the first n samples", "mean score"),
}


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
    return base64.b64encode(gzip.compress(script.encode("utf-8"), 9, mtime=0)).decode("ascii")


def curve_chart(
    stage: str, name: str, points: Points, errors: Points | None = None, selected_step: float | None = None
) -> Chart:
    """A curve over steps, with 95% intervals if its errors are known, and the kept checkpoint's step."""
    title, unit = _TITLES.get(name, (name, name.rsplit("/", 1)[-1]))
    kept = thin(points)
    known = dict(errors or ())
    halves = [None if (error := known.get(step)) is None else NORMAL_95 * error for step, _ in kept]
    return {
        "kind": "curve",
        "stage": stage,
        "name": name,
        "title": title,
        "x_title": "step",
        "y_title": unit,
        "x": [step for step, _ in kept],
        "y": [value for _, value in kept],
        "half": halves if any(half is not None for half in halves) else None,
        "kept": selected_step if stage == TRAIN else None,
    }


def curve_charts(
    metrics: Mapping[str, Mapping[str, Points]], selected_step: float | None = None
) -> tuple[list[Chart], list[Chart]]:
    """Split the curves into (charts to show first, all others).

    First come reward, KL, length and reward over KL, or the margins and accuracy of DPO; else what the method logs
    instead, else the losses of the other stages. `selected_step` is that of the checkpoint that training kept.

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
    steps = [(step, kl, rewards[step]) for step, kl in curves.get("objective/kl", ()) if step in rewards]
    known = [(step, kl, reward) for step, kl, reward in steps if kl is not None and reward is not None]
    if len(known) < 2:
        return None
    shown = thin(known)
    return {
        "kind": "path",
        "stage": TRAIN,
        "name": "reward over KL",
        "title": "Reward over KL, step by step",
        "x_title": "nats a response",
        "y_title": "mean score",
        "x": [kl for _, kl, _ in shown],
        "y": [reward for *_, reward in shown],
        "steps": [step for step, *_ in shown],
        "kept": selected_step,
    }


def proxy_chart(record: RunRecord) -> Chart | None:
    """Each output's reward-model score and gold reward; None unless both were evaluated output by output."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    results = [result for result in record.rows("results") if isinstance(result, Mapping)]
    for result in results:
        rows = result.get("rows")
        if result.get("reference") == results[0].get("reference") and isinstance(rows, list):
            by_name.setdefault(str(result.get("evaluator")), [row for row in rows if isinstance(row, Mapping)])
    gold, reward = by_name.get("gold", []), by_name.get("reward", [])
    if len(gold) < 2 or len(gold) != len(reward):
        return None
    series = []
    for name, ending in ((str(results[0].get("system")), ""), (str(results[0].get("reference")), "_reference")):
        pairs = [
            (finite_number(ours.get(f"reward{ending}")), finite_number(theirs.get(f"gold{ending}")))
            for ours, theirs in zip(reward, gold, strict=True)
        ]
        known = [(x, y) for x, y in pairs if x is not None and y is not None]
        if len(known) < 2:
            return None
        r = pearson([x for x, _ in known], [y for _, y in known])
        shown = known[:: -(-len(known) // MOST_POINTS)]
        points = {"x": [x for x, _ in shown], "y": [y for _, y in shown]}
        series.append({"name": f"{name}: r {r.value:.2f}" if r else name, **points})
    return {
        "kind": "points",
        "stage": "",
        "name": "gold over reward",
        "title": "Gold over the reward model’s score, per output",
        "x_title": "reward model’s score",
        "y_title": "gold reward",
        "series": series,
    }


def best_of_n_chart(sample_rewards: Sequence[Sequence[float]]) -> Chart | None:
    """The mean reward of the best of the first n samples over n; None if no output is the best of several."""
    n = min(map(len, sample_rewards), default=0)
    if n < 2:
        return None
    best = [list(accumulate(rewards[:n], max)) for rewards in sample_rewards]
    points: Points = [(number, fmean(row[number - 1] for row in best)) for number in range(1, n + 1)]
    return {**curve_chart("", "reward over n", points), "x_title": "n"}


def selected_step(record: RunRecord) -> float | None:
    """Return the step of the checkpoint that training selected; None if it is the last."""
    return finite_number(record.section("checkpoint").get("best/step"))


def win_rate_chart(win_rates: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Win rates with their 95% intervals (percent), one line per system; None if there are none."""
    known = [w for w in win_rates if w["win_rate"] is not None]
    if not known:
        return None
    systems = {w["system"] for w in known}
    same = len(systems) == 1
    return {
        "kind": "interval",
        "stage": "",
        "title": (f"Win rate of {systems.pop()}" if same else "Win rates") + ", with 95% interval",
        "x_title": "win rate, %",
        "y": [("" if same else f"{w['system']} ") + f"against {w['reference'] or 'the reference'}" for w in known],
        "x": [w["win_rate"] for w in known],
        "low": [w["low"] for w in known],
        "high": [w["high"] for w in known],
    }


def thin(points: list[P]) -> list[P]:
    """At most `MOST_POINTS` of `points`, evenly spaced, the last among them."""
    stride = -(-len(points) // MOST_POINTS)
    if stride <= 1:
        return points
    kept = points[::stride]
    return kept if kept[-1] == points[-1] else [*kept[: MOST_POINTS - 1], points[-1]]
