"""Losses and gradients of the loops beside those of TRL 1.12, which are stored, and of the installed.

`make_trl_1_12.py` has made the numbers. Each loop runs as it is; only what it samples and how that scores is given.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from afarm_online import METHODS, NashMDConfig
from afarm_online.nash_md import make_opponent
from beside_trl import PERTURBED, RESPONSES, SCORES, describe_gradient, move
from make_trl_1_12 import take_step

from afarm import Decoding, Instruction, RewardModel, Sample, Score
from afarm.backend import Training
from afarm.testing import MetricsRecorder, make_instructions, tiny_config, tiny_inputs, tiny_policy, train_context

warnings.filterwarnings("ignore", category=FutureWarning)

STORED = json.loads(Path(__file__).with_name("trl_1_12.json").read_text())
ROWS = len(STORED["prompts"])


class Table(RewardModel):
    """Gives the responses, which are called "own 0", "other 0" …, their scores."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        sides = dict(zip(("own", "other"), SCORES, strict=True))
        return [Score(sides[output.split()[0]][int(output.split()[1])]) for output in outputs]


def samples_of(side: str) -> list[Sample]:
    tokens = RESPONSES[side == "other"]
    return [
        Sample(f"{side} {row}", tuple(STORED["prompts"][row]), tuple(ids), None, "stop" if ids[-1] == 1 else "length")
        for row, ids in enumerate(tokens)
    ]


def given_rollout(name: str) -> Any:
    """A rollout of the stored tokens."""

    def rollout(training: Training, step: int, policy: Any = None, draws: str = "") -> tuple[list[int], list[Sample]]:
        own, other = samples_of("own"), samples_of("other")
        if name in ("online_dpo", "iterative_dpo"):
            both = [sample for pair in zip(own, other, strict=True) for sample in pair]
            return [row for row in range(ROWS) for _ in range(2)], both
        return list(range(ROWS)), other if policy is not None else own

    return rollout


def learn(name: str, monkeypatch: pytest.MonkeyPatch, directory: Path, **settings: Any) -> tuple[Any, dict[str, float]]:
    """The model with the gradient of one step, and what is logged, by the method's own loop."""
    method, kind, *_ = METHODS[name]
    loop, models = import_module(f"afarm_online.{name}"), list[Any]()
    sizes = {"rollout_batch_size": 2 * ROWS, "mini_batch_size": ROWS, "per_device_train_batch_size": 4}  # two pairs
    once = {"total_steps": 1, "warmup_steps": 0, "labels": "reward_model", "kl_coef": STORED["beta"]}
    if "num_iterations" in kind.model_fields:
        once["num_iterations"] = 1
    config = tiny_config(kind, **sizes, **once, **settings)

    def start_moved(*arguments: Any) -> Training:
        training = start_training(*arguments)
        move(training.policy.model, PERTURBED)
        models.append(training.policy.model)
        return training

    def keep_gradient(training: Training, step: int) -> float:
        return 1.0

    start_training = loop.start_training
    monkeypatch.setattr(loop, "start_training", start_moved)
    monkeypatch.setattr(loop, "rollout", given_rollout(name))
    monkeypatch.setattr(loop, "optimizer_step", keep_gradient)
    log = MetricsRecorder()
    inputs = replace(tiny_inputs({"unlabeled"}), reward_model=Table(), unlabeled=make_instructions(ROWS))
    method(config).train(inputs, train_context(directory, log_metrics=log))
    return models[0], log.lines[0][1]


def assert_as_stored(model: Any, logged: dict[str, float], case: dict[str, Any]) -> None:
    for path, (norm, product) in describe_gradient(model).items():
        theirs = case["gradient"][path]
        scale = max(1e-3, theirs[0])
        assert norm / scale == pytest.approx(theirs[0] / scale, abs=1e-5), path
        assert product / scale == pytest.approx(theirs[1] / scale, abs=1e-4), path
    for metric, value in case["stats"].items():
        if metric in logged and metric != "objective/scores":
            assert logged[metric] == pytest.approx(value, rel=1e-5, abs=1e-5), metric


@pytest.mark.parametrize("name", STORED["cases"])
def test_each_loop_has_the_loss_and_the_gradient_of_trl_1_12(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case, kind = STORED["cases"][name], name.split()[0]
    assert STORED["responses"] == [list(side) for side in RESPONSES], "run make_trl_1_12.py again"
    model, logged = learn(kind, monkeypatch, tmp_path, **case["settings"])
    assert_as_stored(model, logged, case)
    bonus = case["settings"].get("alpha", 0.0) * sum(case["logprobs"].get("policy of the other", [])) / ROWS
    loss = logged["loss/policy"] if kind == "nash_md" else logged["loss/dpo"] + bonus
    assert loss == pytest.approx(case["loss"], rel=1e-5, abs=1e-5)


def test_iterative_dpo_has_the_loss_and_the_gradient_of_online_dpo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, logged = learn("iterative_dpo", monkeypatch, tmp_path)
    assert_as_stored(model, logged, STORED["cases"]["online_dpo sigmoid"])


@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo"])
def test_online_dpo_is_that_of_the_installed_trl(
    loss_type: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    theirs = take_step("online_dpo", {"loss_type": loss_type}, (None,))
    model, logged = learn("online_dpo", monkeypatch, tmp_path, loss_type=loss_type)
    assert_as_stored(model, logged, theirs)
    assert logged["loss/dpo"] == pytest.approx(theirs["loss"], rel=1e-5)


@pytest.mark.parametrize("share", STORED["greedy"])
def test_the_opponent_continues_as_trls_mixture_does(share: str) -> None:
    start, policy = tiny_policy(), tiny_policy()
    move(policy.model, PERTURBED)
    opponent = make_opponent(policy, start, NashMDConfig(mixture_coef=float(share)))
    prompts, decoding = STORED["prompts"], Decoding(temperature=0.0, max_new_tokens=6)
    found = opponent.sampler().generate(prompts, [str(row) for row in range(ROWS)], decoding, seed=0)
    assert [generation.token_ids for generation in found] == STORED["greedy"][share]
