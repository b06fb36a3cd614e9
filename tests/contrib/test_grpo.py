"""afarm-grpo: what it learns on a bandit, and the command in two processes, killed and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from afarm_grpo import GRPO, VARIANTS, GRPOConfig
from bandit import ANSWERS, INSTRUCTIONS, BanditReward, answer_probabilities, bandit_policy, kl_to
from launches import LIMIT, kill
from places import ROOT
from tiny_models import Recorder, make_context

from afarm.backend import CheckpointPolicy
from afarm.core.errors import TrainingError
from afarm.core.interfaces import MethodInputs
from afarm.testing import tiny_config

PACKAGE = ROOT / "plugins-contrib" / "afarm-grpo"


# ------------------------------------------------------------------------------------------------------------ a bandit

BANDIT: dict[str, Any] = {
    "total_steps": 20,
    "rollout_batch_size": 96,
    "num_generations": 32,  # one batch is sampled
    "mini_batch_size": 96,
    "per_device_train_batch_size": 96,
    "per_device_rollout_batch_size": 96,
    "num_iterations": 1,
    "learning_rate": 3e-3,
    "response_length": 2,
}


def solve(directory: Path, variant: str = "grpo", **changes: Any) -> tuple[CheckpointPolicy, Recorder]:
    context, log = make_context(directory)
    inputs = MethodInputs(bandit_policy(), reward_model=BanditReward(), unlabeled=INSTRUCTIONS)
    config = tiny_config(GRPOConfig, **{**VARIANTS[variant][1], **BANDIT, **changes})
    assert isinstance(config, GRPOConfig)
    trained = GRPO(config).train(inputs, context)
    assert isinstance(trained, CheckpointPolicy)
    return trained, log


@pytest.mark.parametrize("variant", ["grpo", "cispo", "rloo"])
def test_without_a_penalty_the_best_answer_gets_nearly_all_probability(variant: str, tmp_path: Path) -> None:
    trained, log = solve(tmp_path, variant, kl_coef=0.0)
    scores = log.values("objective/scores")
    assert scores[-1] > 0.7 > 0.2 > scores[0]
    assert float(answer_probabilities(trained)[:, ANSWERS.index("w12")].min()) > 0.7
    assert log.values("last/kl")[0] > 1


@pytest.mark.parametrize("variant", ["grpo", "rloo"])
def test_a_large_penalty_holds_the_policy_to_its_start(variant: str, tmp_path: Path) -> None:
    trained, _ = solve(tmp_path, variant, kl_coef=20.0)
    assert kl_to(answer_probabilities(bandit_policy()), answer_probabilities(trained)) < 0.05


def test_a_kl_beyond_the_limit_keeps_the_checkpoint_before_or_names_the_step(tmp_path: Path) -> None:
    _, log = solve(tmp_path / "kept", kl_coef=0.0, max_kl=0.5, save_steps=1)
    step, last = log.lines[-1]
    assert last.keys() == {"stopped/max_kl", "last/kl"}
    assert last["stopped/max_kl"] == step
    assert max(log.values("objective/kl")) <= 0.5
    with pytest.raises(TrainingError, match=r"GRPO diverged at step \d+: the KL .* grpo\.max_kl \(0\.5\)"):
        solve(tmp_path / "lost", kl_coef=0.0, max_kl=0.5, save_steps=100)


# --------------------------------------------------------------------------------------------------------- the command

SMALL = {
    "toy.sft": 100, "toy.preference": 10, "toy.unlabeled": 32, "toy.validation": 16, "toy.evaluation": 16,
    "rows.sft": 64, "rows.unlabeled": 16, "rows.validation": 8, "rows.evaluation": 8, "sft.num_train_epochs": 1,
    "grpo.total_steps": 6, "grpo.rollout_batch_size": 16, "grpo.mini_batch_size": 8, "grpo.save_steps": 2,
}  # fmt: skip


def begin(output_dir: Path, site: Path) -> subprocess.Popen[str]:
    """The command in two processes, with the package installed."""
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    command = ["run", "--method", "grpo", "--reward-model", "gold", "--output-dir", str(output_dir), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(site), str(PACKAGE / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-m", "afarm", *command, *settings, "--accelerate-config", "two_processes"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    record: dict[str, Any] = json.loads(out)
    return record


def trained(output_dir: Path) -> tuple[bytes, bytes]:
    """What GRPO logged, and its weights."""
    [metrics] = [p for p in output_dir.glob("artifacts/train/*/metrics.jsonl") if "frac_reward" in p.read_text()]
    return metrics.read_bytes(), (metrics.parent / "model" / "model.safetensors").read_bytes()


@pytest.mark.cluster  # a minute: three launches; the kit kills and resumes the same loop in two processes in seconds
def test_the_command_in_two_processes_is_killed_and_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "afarm_grpo-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: afarm-grpo\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[afarm]\ngrpo = afarm_grpo\n")
    assert finish(begin(tmp_path / "whole", tmp_path / "site"))["method"] == "grpo"
    begun = begin(tmp_path / "killed", tmp_path / "site")
    deadline = time.monotonic() + LIMIT
    while not list((tmp_path / "killed").glob("artifacts/train/*.partial/checkpoints/step-00000002/*")):
        assert begun.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    kill(begun)
    assert begun.returncode == -signal.SIGKILL
    assert list((tmp_path / "killed").glob("artifacts/train/*.partial"))
    finish(begin(tmp_path / "killed", tmp_path / "site"))
    assert trained(tmp_path / "killed") == trained(tmp_path / "whole")
