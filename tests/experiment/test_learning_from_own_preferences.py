"""A real model learns from transcripts of one's own: the reward model, DPO, FeedME, and PPO on top."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import SHARED_DATA
from tiny_models import make_policy, pair_rewards

from afarm import Farm
from afarm.backend.reward_model import pairwise_accuracy

SHORT = {"total_steps": 1, "warmup_steps": 0, "rollout_batch_size": 4, "mini_batch_size": 4, "num_ppo_epochs": 1}
PPO = SHORT | {"lora": None, "layout": "separate", "value_init": "reward_model", "response_length": 4}
TINY: dict[str, Any] = {
    "rows": {"unlabeled": 4, "evaluation": 4},
    "evaluate": {"max_new_tokens": 4},
    "bradley_terry": {"num_train_epochs": 3, "learning_rate": 3e-3, "lora": None, "max_length": 96},
    "dpo": {"num_train_epochs": 2, "learning_rate": 3e-3, "lora": None, "max_length": 96},
    "feedme": {"lora": None, "max_length": 96},
    "ppo": PPO,
}


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A farm over transcripts of two turns, whose chosen answers end with `w7`."""
    directory = tmp_path_factory.mktemp("own")
    make_policy().save(directory / "model")
    rows = []
    for n in range(60):
        task = f"\n\nHuman: w{n % 10}\n\nAssistant: w{n % 7}\n\nHuman: w{n % 40} w{n // 40}\n\nAssistant:"
        rows.append({"chosen": f"{task} w{n % 11} w7", "rejected": f"{task} w{n % 13} w8"})
    (directory / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    choices = {"model": str(directory / "model"), "preferences": directory / "own.jsonl"}
    choices["reward_model"] = "bradley_terry"  # the words decide, and the recipe's own reads no words
    with Farm("smol", settings=[TINY], output_dir=directory / "out", **choices) as made:
        yield made


def test_the_reward_model_tells_chosen_from_rejected_in_prompts_it_never_saw(farm: Farm) -> None:
    rewards = farm.fit_reward()
    evaluated = {row.instruction.id for row in farm.workspace.data.load("evaluation")}
    trained = list(farm.annotate())
    assert not evaluated & {row.pair.instruction.id for row in trained}
    assert all(len(row.pair.instruction.messages) == 2 for row in trained)
    assert pairwise_accuracy(trained, *pair_rewards(rewards, trained)) > 0.9


@pytest.mark.parametrize("method", ["dpo", "feedme", "ppo"])
def test_a_method_learns_and_is_evaluated_on_the_prompts_held_out(farm: Farm, method: str) -> None:
    result = farm.evaluate(method)
    assert 0 <= result.win_rate <= 100
    history = farm.workspace.history
    assert not {"sample", "annotate"} & history.keys()
    assert history[f"train {method}"].inputs[1] == ("fit-reward" if method == "ppo" else "preferences")
    assert len(farm.outputs(method)) == 4
    if method == "dpo":
        assert history["train dpo"].artifact.meta["summary"]["rewards/accuracies"] > 0.9


@pytest.mark.skipif(not (SHARED_DATA / "hh_rlhf").is_dir(), reason=f"no HH-RLHF at {SHARED_DATA}")
def test_the_prompts_of_real_transcripts_split_into_what_is_trained_and_evaluated_on(tmp_path: Path) -> None:
    make_policy().save(tmp_path / "model")
    file = SHARED_DATA / "hh_rlhf" / "harmless_base_test.jsonl.gz"
    choices = {"model": str(tmp_path / "model"), "preferences": file, "on_unusable": "drop"}
    with Farm("smol", output_dir=tmp_path / "out", **choices) as real:
        trained, data = real.annotate(), real.workspace.data
        summary = real.workspace.history["preferences"].artifact.meta["summary"]
        assert summary["rows_unusable"] == 13
        assert summary["rows"] + summary["rows_evaluated_on"] == 2299
        assert not {task.id for task in data.evaluated_tasks()} & {row.pair.instruction.id for row in trained}
        assert 1700 < len(trained) < 1950
        assert len(data.rows("unlabeled")) == 512
