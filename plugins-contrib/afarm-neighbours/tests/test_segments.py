"""Segment rewards: ends, rewards and advantages worked by hand, the loss, the kit's verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from afarm_neighbours import SegmentConfig, SegmentReinforce
from afarm_neighbours.segments import segment_advantages, segment_ends, segment_rewards, spread, token_losses

from afarm import Instruction, RewardModel, Sample, Score
from afarm.testing import check_method, make_instructions, tiny_config, tiny_inputs, tiny_policy


class CountsW1(RewardModel):
    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(count_w1(output)) for output in outputs]


def count_w1(text: str) -> float:
    return float(text.split().count("w1"))


def config_of(**settings: Any) -> SegmentConfig:
    return SegmentConfig.model_validate({"segment_tokens": 2, **settings})


def test_it_keeps_the_promises_of_a_method(tmp_path: Path) -> None:
    settings = {"rollout_batch_size": 16, "mini_batch_size": 8, "learning_rate": 1e-2, "total_steps": 4}
    config = tiny_config(SegmentConfig, **settings, segment_at="0123", segment_tokens=1, num_iterations=2)
    method = SegmentReinforce(config)
    inputs = replace(tiny_inputs(method.needs), reward_model=CountsW1())
    check_method(method, tmp_path, inputs=inputs, learns=count_w1)


def test_segments_end_behind_marks_and_have_enough_tokens() -> None:
    pieces = ["The", " end", ".", " A", "!", " B", " C", ".\n ", "D", "E"]
    tokens = range(len(pieces))
    for fewest, ends in ((1, [3, 5, 8, 10]), (2, [3, 5, 8, 10]), (3, [3, 10]), (6, [10])):
        assert segment_ends(config_of(segment_tokens=fewest), pieces.__getitem__, tokens) == ends, fewest
    assert segment_ends(config_of(segment_at="d", segment_tokens=1), pieces.__getitem__, tokens) == [2, 10]
    assert segment_ends(config_of(), pieces.__getitem__, [2]) == [1]


def test_rewards_are_what_segments_add_and_advantages_what_comes_after_against_their_place() -> None:
    policy = tiny_policy()
    words = ["w1 w1 w2", "w2 w1 w1 w1", "w3"]
    samples = [
        Sample(text, (5,), tuple(policy.tokenizer(text, add_special_tokens=False).input_ids), None, "stop")
        for text in words
    ]
    ends = [[1, 3], [2, 3, 4], [1]]
    asked: list[Sequence[Sample]] = []

    def scorer(tasks: Sequence[Instruction], shown: Sequence[Sample]) -> list[float]:
        asked.append(shown)
        return [count_w1(sample.text) for sample in shown]

    training: Any = SimpleNamespace(start=policy, prompts=make_instructions(2), scorer=scorer)
    rewards = segment_rewards(training, [0, 1, 0], samples, ends)
    assert rewards == [[1, 1], [1, 1, 1], [0]]
    [shown] = asked
    assert [(one.text, one.finish_reason) for one in shown[2:5]] == [
        ("w2 w1", "length"), ("w2 w1 w1", "length"), ("w2 w1 w1 w1", "stop")
    ]  # fmt: skip
    # Returns with γ = ½: [1.5, 1], [1.75, 1.5, 1], [0]; means by place: 13/12, 1.25, 1
    centred = [[5 / 12, -0.25], [2 / 3, 0.25, 0.0], [-13 / 12]]
    deviation = (sum(value**2 for row in centred for value in row) / 6) ** 0.5 + 1e-4
    found = segment_advantages(config_of(gamma=0.5), rewards)
    assert [value for row in found for value in row] == pytest.approx(
        [value / deviation for row in centred for value in row]
    )
    mask = torch.arange(4) < torch.tensor([[3], [4], [1]])
    table = spread([[1, 2], [3, 4, 5], [6]], ends, mask)
    assert table.tolist() == [[1, 2, 2, 0], [3, 3, 4, 5], [6, 0, 0, 0]]


def test_the_loss_is_the_clipped_one_and_the_kl_weighed() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5]).double().requires_grad_()
    old, reference = torch.tensor([-1.5, -2.0, -0.1]).double(), torch.tensor([-1.0, -1.0, -1.0]).double()
    advantages, sums = torch.tensor([1.0, -2.0, -1.0]).double(), defaultdict[str, Any](float)
    loss = token_losses(config_of(kl_coef=0.1), sums, torch.tensor(4), logprobs, old, reference, advantages)
    ratios = (logprobs - old).exp().tolist()
    # ratio e^½ of a gain is cut at 1.2; e^−0.4 of a loss at 0.8
    policy = (-1.2 * 1 + 2 * ratios[1] + 0.8) / 4
    k3 = [(r - x).exp() - 1 - (r - x) for r, x in zip(reference, logprobs.detach(), strict=True)]
    kl = sum(ratio * float(each) for ratio, each in zip(ratios, k3, strict=True)) / 4
    assert loss.item() == pytest.approx(policy + 0.1 * kl)
    assert float(sums["policy/clipfrac_avg"]) == 2 / 4
    loss.backward()
    assert logprobs.grad is not None
    assert float(logprobs.grad[0]) == pytest.approx(0, abs=1e-9)  # clipped, and at the reference
