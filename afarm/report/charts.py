"""Chart data of a report, and plotly.js to draw it with.

A chart is what the page's script needs and no more: a title, axis titles and series. Colours are the style sheet's, so
charts follow the reader's light or dark scheme.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from typing import Any

from afarm.report.run import Points

Chart = dict[str, Any]

MOST_POINTS = 1000
"""Points drawn of one curve; longer ones are thinned evenly, their last point kept."""

MAIN_CURVES = ("objective/scores", "validation/win_rate", "objective/kl", "objective/length")

_TITLES = {
    "objective/scores": ("Reward-model score", "mean score"),
    "objective/kl": ("KL from the starting policy", "nats a response"),
    "objective/length": ("Response length", "tokens"),
    "validation/win_rate": ("Win rate of checkpoints on the validation split", "percent"),
    "objective/entropy": ("Entropy of the policy", "nats"),
    "objective/rlhf_reward": ("Score less the KL penalty", "reward"),
    "loss": ("Loss", "loss"),
    "accuracy": ("Accuracy", "share of pairs"),
    "lr": ("Learning rate", "learning rate"),
    "learning_rate": ("Learning rate", "learning rate"),
    "grad_norm": ("Norm of the gradient", "norm"),
}


def plotly_script() -> str | None:
    """The source of plotly.js from Python's plotly package, None if that is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return str(get_plotlyjs())


def pack(script: str) -> str:
    """Pack `script` by gzip and base64: half the size, and nothing in it can close its element."""
    return base64.b64encode(gzip.compress(script.encode("utf-8"), 9, mtime=0)).decode("ascii")


def curve_chart(stage: str, name: str, points: Points) -> Chart:
    """A curve over steps."""
    title, unit = _TITLES.get(name, (name, name.rsplit("/", 1)[-1]))
    kept = thin(points)
    return {
        "kind": "curve",
        "stage": stage,
        "name": name,
        "title": title,
        "x_title": "step",
        "y_title": unit,
        "x": [step for step, _ in kept],
        "y": [value for _, value in kept],
    }


def curve_charts(metrics: Mapping[str, Mapping[str, Points]]) -> tuple[list[Chart], list[Chart]]:
    """Split the curves into (charts to show first, all others).

    First come reward, KL and length, else what the method logs instead, else the losses of the other stages.

    A metric that was logged at one step only is a number for the table, not a curve.
    """
    charts = [
        curve_chart(stage, name, points)
        for stage, names in metrics.items()
        for name, points in names.items()
        if sum(value is not None for _, value in points) > 1
    ]
    train = {chart["name"]: chart for chart in charts if chart["stage"] == "train"}
    losses = [chart for chart in charts if chart["name"] in ("loss", "accuracy")]
    first = [train[name] for name in MAIN_CURVES if name in train] or list(train.values())[:3] or losses
    return first, [chart for chart in charts if chart not in first]


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


def thin(points: Points) -> Points:
    """At most `MOST_POINTS` of `points`, evenly spaced, the last among them."""
    stride = -(-len(points) // MOST_POINTS)
    if stride <= 1:
        return points
    kept = points[::stride]
    return kept if kept[-1] == points[-1] else [*kept[: MOST_POINTS - 1], points[-1]]
