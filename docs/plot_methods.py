"""Draw docs/methods/<method>.svg from what one seed's runs logged: `python docs/plot_methods.py OUTPUT_DIR SEED`.

Each method has the settings that it was trained with last. Best-of-n's curve is read from `OUTPUT_DIR/best_of_n.json`,
which `afarm best-of-n --json` prints. Equal metrics give equal bytes. Needs `pip install 'afarm[plots]'`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

METHODS = Path(__file__).with_name("methods")

COLOURS = ["#1f5fa8", "#c8541b", "#3d8a4e", "#8a4a9c"]


@dataclass(frozen=True)
class Panel:
    """One chart: a title with its unit, and the metrics drawn in it, each with a label.

    `error` names their standard error. `x` is drawn along the axis, in powers of 2 if `doubling`.
    """

    title: str
    lines: dict[str, str]
    error: str = ""
    x: str = "step"
    doubling: bool = False


PANELS: dict[str, list[Panel]] = {
    "reward_model": [
        Panel("loss (nats a pair)", {"loss": "training", "eval_loss": "held out"}),
        Panel("share of pairs in the labels' order", {"accuracy": "training", "eval_accuracy": "held out"}),
        Panel(
            "calibration on held-out pairs",
            {"reliability/observed": "labels that agree", "reliability/confidence": "were it calibrated"},
            x="reliability/confidence",
        ),
        Panel("held-out pairs by margin", {"margins/pairs": "pairs"}, x="margins/from"),
    ],
    "best_of_n": [
        Panel("reward of the winner", {"reward": "reward"}, x="n", doubling=True),
        Panel("win rate over SFT (%)", {"win_rate": "win rate"}, "standard_error", x="n", doubling=True),
        Panel("gold reward of the winner", {"gold": "gold"}, "gold_se", x="n", doubling=True),
        Panel("KL to the start policy at most (nats)", {"kl_bound": "KL"}, x="n", doubling=True),
    ],
    "sft": [Panel("loss (nats a token)", {"loss": "loss"})],
    "feedme": [Panel("loss (nats a token)", {"loss": "loss"})],
    "reward_conditioning": [Panel("loss (nats a token)", {"loss": "loss"})],
    "dpo": [
        Panel("loss (nats a pair)", {"loss": "loss"}),
        Panel("reward, β log π/π₀", {"rewards/chosen": "chosen", "rewards/rejected": "rejected"}),
        Panel("margin, chosen − rejected reward", {"rewards/margins": "margin"}),
        Panel("share of pairs in the right order", {"rewards/accuracies": "accuracy"}),
    ],
    "ppo": [
        Panel("reward model's score", {"objective/scores": "score", "objective/rlhf_reward": "less the KL penalty"}),
        Panel("KL to the start policy (nats a response)", {"objective/kl": "k1", "objective/kl_k3": "k3"}),
        Panel("variance of returns that values explain", {"val/explained_variance": "explained"}),
        Panel(
            "length and entropy of a response", {"objective/length": "tokens", "objective/entropy": "entropy (nats)"}
        ),
    ],
    "expert_iteration": [Panel("loss (nats a token)", {"loss": "loss"})],
    "quark": [
        Panel(
            "reward model's score",
            {
                "objective/scores": "all",
                "quark/quantile_2": "best quantile",
                "quark/quantile_0": "worst quantile",
            },
        ),
        Panel("KL to the start policy (nats a response)", {"objective/kl": "exact"}),
        Panel("loss (nats a token)", {"loss/lm": "−log π", "policy/entropy_avg": "entropy"}),
        Panel("length of a response (tokens)", {"objective/length": "tokens"}),
    ],
}
"""The charts of each method, in reading order."""


def logged(store: Path, seed: int) -> dict[str, list[dict[str, float]]]:
    """Read the metrics of each method's training under a seed; the reward model's with its calibration."""
    found: dict[str, list[dict[str, float]]] = {}
    described = [
        json.loads(path.read_text("utf-8")) | {"at": path.parent} for path in store.glob("*/*/*/artifact.json")
    ]
    for artifact in sorted(described, key=lambda artifact: artifact["created"]):
        if artifact["key_fields"].get("seed") != seed or "metrics.jsonl" not in artifact["files"]:
            continue
        name = artifact["label"].removeprefix("train ").replace("fit-reward", "reward_model")
        found[name] = [json.loads(line) for line in (artifact["at"] / "metrics.jsonl").open(encoding="utf-8")]
        calibration = artifact["at"] / "calibration.json"
        for part, bins in json.loads(calibration.read_text("utf-8")).items() if calibration.is_file() else ():
            found[name] += [
                {f"{part}/{k}": v for k, v in row.items()} for row in (bins if isinstance(bins, list) else ())
            ]
    curve = store / "best_of_n.json"
    return found | ({"best_of_n": json.loads(curve.read_text("utf-8"))} if curve.is_file() else {})


def draw(method: str, rows: list[dict[str, float]], path: Path) -> None:
    """Draw all panels of `method` in two columns."""
    panels = PANELS[method]
    with mpl.rc_context({"svg.hashsalt": method, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        high = -(-len(panels) // 2)
        figure, axes = plt.subplots(high, min(2, len(panels)), figsize=(8, 2.7 * high), squeeze=False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            for colour, (name, label) in zip(COLOURS, panel.lines.items(), strict=False):
                points = [row for row in rows if name in row]
                steps, values = [row[panel.x] for row in points], [row[name] for row in points]
                errors = [row.get(panel.error, 0.0) for row in points] if panel.error else None
                marker = "o" if len(points) < 16 else ""
                axis.errorbar(steps, values, errors, color=colour, label=label, marker=marker, ms=4, lw=1.6, capsize=3)
            axis.set_title(panel.title, loc="left", fontsize=10)
            axis.set_xlabel(panel.x.rpartition("/")[2])
            if panel.doubling:
                axis.set_xscale("log", base=2)
            axis.grid(color="#e4e4e4", lw=0.6)
            if len(panel.lines) > 1:
                axis.legend(frameon=False)
        for axis in axes.flat[len(panels) :]:
            axis.remove()
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None}, facecolor="white")
        plt.close(figure)


if __name__ == "__main__":
    for method, rows in logged(Path(sys.argv[1]), int(sys.argv[2])).items():
        if method in PANELS and any(line in row for row in rows for panel in PANELS[method] for line in panel.lines):
            draw(method, rows, METHODS / f"{method}.svg")
