"""Reward conditioning: which control stands before what, that it is learned, and its optimum on a bandit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bandit
import pytest
import torch
from tiny_models import Recorder, judged, make_context, make_instructions, make_policy, same_weights

from afarm import LoraConfig
from afarm.backend import CheckpointPolicy
from afarm.backend import sft as supervised
from afarm.core.errors import ConfigError, DataError
from afarm.core.interfaces import MethodInputs
from afarm.core.records import JudgedPair
from afarm_plugins.reward_conditioning import RewardConditioning, RewardConditioningConfig, reward_conditioning
from afarm_plugins.reward_conditioning.reward_conditioning import NEGATIVE, POSITIVE

WORDS: dict[str, Any] = {"control": "text", "positive_text": "w38", "negative_text": "w39"}
"""Controls that the tiny tokenizer can read."""


def config(**settings: Any) -> RewardConditioningConfig:
    small = {"learning_rate": 3e-3, "num_train_epochs": 2, "per_device_train_batch_size": 8, "save_steps": 0}
    return RewardConditioningConfig(**(small | settings))


def train(
    directory: Path, rows: list[JudgedPair], start: CheckpointPolicy | None = None, **settings: Any
) -> tuple[CheckpointPolicy, Recorder]:
    context, log = make_context(directory)
    inputs = MethodInputs(start or make_policy(), preferences=rows)
    return RewardConditioning(config(**settings)).train(inputs, context), log


def preferences(count: int = 24) -> list[JudgedPair]:
    return [judged(i, f"w{n % 9} w20", f"w{10 + n % 7}", float(n % 2)) for n, i in enumerate(make_instructions(count))]


def examples(monkeypatch: pytest.MonkeyPatch, directory: Path, rows: list[JudgedPair], **settings: Any) -> list[Any]:
    """What is handed to training."""
    seen: list[Any] = []

    def look(policy: Any, given: Any, *more: Any) -> CheckpointPolicy:
        seen.extend(given)
        return supervised.fit_supervised(policy, given, *more)

    monkeypatch.setattr(reward_conditioning, "fit_supervised", look)
    train(directory, rows, **settings)
    return seen


def test_the_preferred_output_follows_the_positive_control_and_the_other_the_negative_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first, second] = make_instructions(2)
    rows = [judged(first, "w1", "w2 w3", 1.0), judged(second, "w4", "w5", 0.2)]
    prompts = make_policy().prompt_ids([first, second])
    positive, negative = 45, 46  # behind the 45 words there were
    assert examples(monkeypatch, tmp_path, rows) == [
        ([positive, *prompts[0]], [5 + 2, 5 + 3, 1]),
        ([positive, *prompts[1]], [5 + 4, 1]),
        ([negative, *prompts[0]], [5 + 1, 1]),
        ([negative, *prompts[1]], [5 + 5, 1]),
    ]


def test_a_control_stays_where_a_long_prompt_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = preferences(40)
    seen = examples(monkeypatch, tmp_path, rows, max_length=7)
    assert {prompt[0] for prompt, _ in seen[:40]} == {45}
    assert {prompt[0] for prompt, _ in seen[40:]} == {46}
    assert max(len(prompt) + len(response) for prompt, response in seen) == 7


@pytest.mark.parametrize("settings", [{}, WORDS, WORDS | {"lora": LoraConfig(r=8)}])
def test_samples_with_the_positive_control_and_knows_the_negative_one(tmp_path: Path, settings: Any) -> None:
    # of the six pairs, w12 wins 3, w11 2 and w10 1; w13 loses 3, w10 2 and w11 1
    trained, log = train(
        tmp_path,
        bandit.bandit_preferences(),
        bandit.bandit_policy(),
        num_train_epochs=40,
        learning_rate=1e-2,
        per_device_train_batch_size=36,
        **settings,
    )
    wins = torch.tensor([1 / 6, 2 / 6, 3 / 6, 0.0]).expand(3, 4)
    losses = torch.tensor([2 / 6, 1 / 6, 0.0, 3 / 6]).expand(3, 4)
    bad = trained.controlled(NEGATIVE if not settings else "w39")
    torch.testing.assert_close(bandit.answer_probabilities(trained), wins, rtol=0, atol=0.04)
    torch.testing.assert_close(bandit.answer_probabilities(bad), losses, rtol=0, atol=0.04)
    assert log.values("loss")[-1] < log.values("loss")[0]


def test_new_tokens_are_trained_and_never_sampled(tmp_path: Path) -> None:
    start = make_policy()
    trained, _ = train(tmp_path, preferences(), start)
    fresh = start.copy_with_tokens([POSITIVE, NEGATIVE]).model.get_input_embeddings().weight
    change = (trained.model.get_input_embeddings().weight - fresh).abs().amax(-1)
    assert change[45] > 1e-3
    assert change[46] > 1e-3
    assert trained.control_tokens == (POSITIVE, NEGATIVE)
    assert len(start.model.get_input_embeddings().weight) == 45


def test_draws_are_left_out_and_counted(tmp_path: Path) -> None:
    more = [judged(i, "w1", "w2", None) for i in make_instructions(60)[50:53]]
    mixed, log = train(tmp_path / "1", [*preferences(), *more])
    clean, _ = train(tmp_path / "2", preferences())
    assert same_weights(mixed.model, clean.model)
    assert log.values("pairs_left_out") == [3]
    assert log.values("examples") == [48]
    with pytest.raises(DataError, match="reward_conditioning has nothing to learn from: 3 draw"):
        train(tmp_path / "3", more)


def test_texts_that_the_tokenizer_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="as the same tokens"):
        train(tmp_path, preferences(), control="text", positive_text="good", negative_text="bad")


def test_tokens_with_lora_are_refused_when_planning() -> None:
    [problem] = RewardConditioning(config(lora=LoraConfig())).check()
    assert "reward_conditioning.control=text" in problem
    assert RewardConditioning(config(lora=LoraConfig(), control="text")).check() == ()
