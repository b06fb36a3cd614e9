"""A small, realistic run directory, as the pipeline writes it, that tests change to their needs."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from afarm.experiment.studies.progress import GridProgress
from afarm.experiment.studies.study import Bounded, Findings, FinishedRun, Series, StudyPlot, StudyRun, StudyTable

Row = dict[str, Any]

MEMBERS = [
    *(f"gpt4_{i}" for i in range(1, 6)),
    *(f"chatgpt_{i}" for i in range(1, 5)),
    *(f"davinci003_{i}" for i in range(1, 5)),
]

RECORD: Row = {
    "afarm_version": "0.1.0",
    "name": "toy-ppo-pool-42",
    "command": "afarm run --method ppo --annotator pool --recipe toy --seed 42",
    "recipe": "toy",
    "method": "ppo",
    "annotator": "pool",
    "seed": 42,
    "created": 1795255331.2,
    "finished": 1795255380.6,
    "status": "finished",
    "config": {
        "seed": 42,
        "ppo": {"learning_rate": 2e-4, "kl_coef": 0.2, "total_steps": 40, "whiten_advantages": "rollout"},
        "sft": {"learning_rate": 3e-4, "num_train_epochs": 2},
        "evaluate": {"evaluators": ["win_rate", "gold", "reward"]},
        "backend": {"device": "cpu", "dtype": "float32", "threads": 1, "trackers": []},
    },
    "versions": {"python": "3.11.9", "torch": "2.13.0", "transformers": "5.23.0", "trl": "1.16.0"},
    "machine": {"platform": "Linux-6.1-x86_64", "cpus": 2, "device": "cpu", "threads": 1},
    "judges": [
        {"role": "strong", "identity": "offline(utility=gold, tau=0.5, length_bias=0.0)", "simulated": True},
        {"role": "light", "identity": "offline(utility=gold, tau=0.9, length_bias=0.03)", "simulated": True},
        {"role": "completion", "identity": "offline(utility=gold, tau=1.5, length_bias=0.06)", "simulated": True},
    ],
    "checkpoint": {
        "best/step": 30, "best/win_rate": 68.25, "best/standard_error": 3.29, "last/step": 40, "last/win_rate": 66.5,
        "data/prompts_left_out": 3,
    },
    "reward_model": {
        "pairs": 50, "accuracy": 0.62, "loss": 0.6312, "brier": 0.2201, "ece": 0.0417,
        "reliability": [
            {"from": 0.5, "to": 0.55, "pairs": 20, "confidence": 0.52, "observed": 0.55},
            {"from": 0.7, "to": 0.75, "pairs": 30, "confidence": 0.72, "observed": 0.6333},
        ],
        "margins": [
            {"from": -0.5, "to": 0.0, "pairs": 19}, {"from": 0.0, "to": 0.5, "pairs": 24},
            {"from": 0.5, "to": 1.0, "pairs": 7},
        ],
    },
    "stages": [
        {"stage": "sft", "inputs": [], "key": "ab12cd34ef560718293a4b5c", "reused": True, "seconds": 7.1,
         "artifact": "artifacts/sft/ab12cd34ef560718293a4b5c", "summary": {"rows": 4000, "loss": 0.8123}},
        {"stage": "sample", "inputs": ["sft"], "key": "0b12cd34ef560718293a4b5c", "reused": True, "seconds": 1.4,
         "artifact": "artifacts/sample/0b12cd34ef560718293a4b5c", "summary": {"rows": 4000}},
        {"stage": "annotate", "inputs": ["sample"], "key": "1b12cd34ef560718293a4b5c", "reused": False, "seconds": 3.2,
         "artifact": "artifacts/annotate/1b12cd34ef560718293a4b5c",
         "why": "no annotate stage is stored yet",
         "summary": {"rows": 2000, "outcomes": {"decided": 1997, "draw": 3}, "members": {"gpt4_1": 77}}},
        {"stage": "fit-reward", "inputs": ["annotate", "sft"],
         "key": "2b12cd34ef560718293a4b5c", "reused": False, "seconds": 4.9,
         "artifact": "artifacts/fit-reward/2b12cd34ef560718293a4b5c",
         "summary": {"step": 62, "accuracy": 0.4762, "loss": 0.7, "eval_loss": 0.6312, "eval_accuracy": 0.62}},
        {"stage": "train ppo", "inputs": ["fit-reward", "sft"],
         "kind": "train", "key": "3b12cd34ef560718293a4b5c", "reused": False, "seconds": 35.5,
         "artifact": "artifacts/train/3b12cd34ef560718293a4b5c", "summary": {"steps": 40, "kl": 1.21}},
        {"stage": "outputs sft", "inputs": ["sft"], "key": "4b12cd34ef560718293a4b5c", "reused": False, "seconds": 0.7,
         "artifact": "artifacts/outputs/4b12cd34ef560718293a4b5c", "summary": {"rows": 805}},
        {"stage": "outputs ppo", "inputs": ["train ppo"],
         "key": "5b12cd34ef560718293a4b5c", "reused": False, "seconds": 0.8,
         "artifact": "artifacts/outputs/5b12cd34ef560718293a4b5c", "summary": {"rows": 805}},
        {"stage": "evaluate ppo against sft", "inputs": ["outputs ppo", "outputs sft"],
         "key": "6b12cd34ef560718293a4b5c", "reused": False, "seconds": 1.9,
         "artifact": "artifacts/evaluate/6b12cd34ef560718293a4b5c", "summary": {"rows": 805}},
    ],
    "spend": {"dollars": 0.0, "calls": 1523, "input_tokens": 812345, "output_tokens": 40211, "unpriced_calls": 0,
              "this_time": {"dollars": 0.0, "calls": 1523, "input_tokens": 812345, "output_tokens": 40211,
                            "unpriced_calls": 0, "answers_reused": 210}},
    "annotators": {
        "training": {**{m: 70 + 3 * i for i, m in enumerate(MEMBERS)}, "(noise)": 1003, "(identical)": 3},
        "evaluation": {**{m: 66 - 2 * i for i, m in enumerate(MEMBERS)}, "(identical)": 12},
    },
    "results": [
        {"system": "ppo", "reference": "sft", "evaluator": "win_rate",
         "metrics": {"win_rate": 60.1, "standard_error": 1.6, "n_wins": 472, "n_wins_base": 313, "n_draws": 12,
                     "n_unparsed": 6, "n_refused": 2, "n_total": 797, "avg_length": 61.2,
                     "avg_length_reference": 48.7}},
        {"system": "ppo", "reference": "sft", "evaluator": "gold",
         "metrics": {"n": 805, "gold": 1.413, "gold_se": 0.031, "gold_reference": 0.902, "gold_difference": 0.511,
                     "gold_difference_se": 0.048, "gold_win_rate": 62.3, "gold_win_rate_se": 1.4}},
        {"system": "ppo", "reference": "sft", "evaluator": "reward",
         "metrics": {"reward": 0.93, "reward_reference": -0.02}},
    ],
    "headline": {"win_rate": 60.1, "standard_error": 1.6, "reward": 0.93, "reward_reference": -0.02, "kl": 1.21,
                 "length": 61.2, "length_reference": 48.7},
}  # fmt: skip


def realistic_metrics() -> list[Row]:
    draw = random.Random(5)
    rows: list[Row] = [{"stage": "sft", "step": s, "loss": 0.8 + 2 * math.exp(-s / 20)} for s in range(1, 126, 4)]
    for step in range(1, 63, 2):
        accuracy = 0.64 - 0.14 * math.exp(-step / 15) + draw.gauss(0, 0.01)
        rows.append({"stage": "fit-reward", "step": step, "loss": 0.69 - 0.001 * step, "accuracy": accuracy})
    for step in range(1, 41):
        rise = 1 - math.exp(-step / 14)
        rows.append(
            {
                "stage": "train",
                "step": step,
                "objective/kl": 1.3 * rise + draw.gauss(0, 0.03),
                "objective/scores": -0.1 + 1.1 * rise + draw.gauss(0, 0.05),
                "objective/length": 9.8 + 3 * rise + draw.gauss(0, 0.15),
                "objective/entropy": 14 - 3 * rise,
                "policy/clipfrac_avg": 0.08 + draw.gauss(0, 0.01),
                "loss/policy_avg": -0.01 + draw.gauss(0, 0.002),
                "lr": 2e-4 * (1 - step / 40),
            }
        )
    return rows


def realistic_outputs(count: int = 200) -> list[Row]:
    """Wins, losses, draws and a few unparsed answers, in the proportions 60 : 35 : 2 : 3."""
    draw = random.Random(7)
    rows = []
    for i in range(count):
        noun, adjective = draw.choice(["heron", "kettle", "poplar", "lantern"]), draw.choice(["quiet", "tall", "warm"])
        place = i % 100
        preference = 2 if place < 60 else 1 if place < 95 else 1.5 if place < 97 else None
        rows.append(
            {
                "instruction": f"describe the {adjective} {noun} number {i}",
                "input": "it stands by the river\nin the morning" if i % 3 == 0 else "",
                "output_1": f"the {noun} is {adjective} . it is old . it is old",
                "output_2": f"the {noun} is {adjective} . it is tall . it has a long shadow in the evening .",
                "preference": preference,
                "member": MEMBERS[i % len(MEMBERS)],
                "outcome": "unparsed" if preference is None else "draw" if preference == 1.5 else "decided",
                "generator_1": "sft",
                "generator_2": "ppo",
            }
        )
    return rows


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def output_row() -> Row:
    """One row as in a run's outputs, to be changed."""
    return realistic_outputs(1)[0]


MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run(**changes)` writes a run directory; a change of None leaves the key out of `run.json`.

    `metrics` and `outputs` are the rows of the two other files, realistic ones where not given.
    """

    def make(metrics: list[Row] | None = None, outputs: list[Row] | None = None, **changes: Any) -> Path:
        record = {k: v for k, v in {**copy.deepcopy(RECORD), **changes}.items() if v is not None}
        (tmp_path / "run.json").write_text(json.dumps(record), encoding="utf-8")
        write_lines(tmp_path / "metrics.jsonl", realistic_metrics() if metrics is None else metrics)
        write_lines(tmp_path / "outputs.jsonl", realistic_outputs() if outputs is None else outputs)
        return tmp_path

    return make


HOSTILE = "</script><img src=x onerror=\"alert('pwned')\"><script>alert('pwned')</script>"


@pytest.fixture
def findings() -> tuple[GridProgress, Findings]:
    """A study of three runs, one of which failed, whose names are hostile."""
    runs = [StudyRun("ppo", seed, {"beta": "0.1", HOSTILE: HOSTILE}) for seed in (1, 2, 3)]
    done = [FinishedRun(run, f"run {HOSTILE}", {"win_rate": 50.0 + run.seed, "kl": 1.5}) for run in runs[:2]]
    rows = [
        [HOSTILE, "0.1", Bounded(60, 55, 65)],
        ["b", None, None],
        ["c", "1.0", Bounded(-2, -3, 1)],
        ["d", "0.03", Bounded(50)],
    ]
    lines = [
        Series("pool", [0.01, 0.1, 1.0], [Bounded(50, 45, 55), Bounded(60, 55, 65), Bounded(40)]),
        Series(HOSTILE, [0.1, 1.0], [Bounded(55, 50, 60), Bounded(50, 40, 60)]),
    ]
    texts = Series(
        "one", [HOSTILE, "cosine", "linear"], [Bounded(1, 0, 2), Bounded(2), Bounded(3)], [HOSTILE, "b", "c"]
    )
    more = Series("two", ["cosine"], [Bounded(2)])
    found = Findings(
        [StudyTable("sweep", HOSTILE, {"name": "", "beta": "", "win rate": "+.1f"}, rows)],
        [
            StudyPlot("win_rate", HOSTILE, "β", "win rate, %", lines, log_x=True),
            StudyPlot("texts", "By schedule", HOSTILE, HOSTILE, [texts, more]),
            StudyPlot(
                "other",
                "Another",
                "β",
                "KL",
                [Series("", [Bounded(1, 0, 2), 2.0], [Bounded(1), Bounded(2)], fit=[(1, 1), (2, 2)])],
            ),
        ],
        [HOSTILE],
    )
    return GridProgress(runs, done, {runs[2].label: HOSTILE}, {"offline"}), found
