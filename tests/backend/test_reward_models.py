from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import judged, make_context, make_gpt2, make_instructions, make_policy, pair_rewards

from afarm import LoraConfig
from afarm.backend import (
    Backend,
    CheckpointPolicy,
    PromptTemplate,
    TorchRewardModel,
    add_adapter,
    hidden_states,
    pad,
    pairwise_accuracy,
)
from afarm.core.config import BackendConfig
from afarm.core.interfaces import RewardModel
from afarm.core.records import Instruction, Sample, Score

SEQUENCES = [[3, 5, 6, 4, 7, 8, 1], [3, 9, 4, 1], [3, 10, 11, 4, 12]]


def make_reward_model(policy: CheckpointPolicy) -> TorchRewardModel:
    torch.manual_seed(1)
    model = TorchRewardModel.make_classifier(policy, head_std=1.0).eval()
    return TorchRewardModel(model, policy.tokenizer, policy.template, policy.backend)


def score_tokens(model: TorchRewardModel, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return model.aggregated(model.member_scores(ids, mask))


def expected(reward_model: TorchRewardModel, sequence: list[int]) -> float:
    """The head on the backbone's output at the last token of the sequence alone."""
    with torch.no_grad():
        hidden = reward_model.model.model(torch.tensor([sequence])).last_hidden_state[0, -1]
        return reward_model.model.score(hidden).item()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad_token", ["<pad>", "<eos>"])
def test_the_reward_is_read_at_the_last_real_token(side: str, pad_token: str) -> None:
    # with pads that are end-of-sequence tokens, looking for the last id that is no pad reads one token too early
    reward_model = make_reward_model(make_policy(pad_token=pad_token))
    ids, mask = pad(SEQUENCES, reward_model.pad_id, side)
    for found, sequence in zip(score_tokens(reward_model, ids, mask).tolist(), SEQUENCES, strict=True):
        assert found == pytest.approx(expected(reward_model, sequence), abs=1e-5)
    assert reward_model.score_ids(SEQUENCES) == pytest.approx([expected(reward_model, s) for s in SEQUENCES], abs=1e-5)


def test_text_is_scored_as_prompt_response_and_eos(policy: CheckpointPolicy) -> None:
    reward_model = make_reward_model(policy)
    score = reward_model.score([Instruction("w0 w1")], ["w2 w3"])[0]
    assert score.value == pytest.approx(expected(reward_model, SEQUENCES[0]), abs=1e-5)
    assert reward_model.score([], []) == []


def test_companions_do_not_change_a_score(policy: CheckpointPolicy) -> None:
    reward_model = make_reward_model(policy)
    instructions = make_instructions(12)
    outputs = [" ".join(["w3"] * (i % 5)) for i in range(12)]
    together = [s.value for s in reward_model.score(instructions, outputs)]
    alone = [reward_model.score([i], [o])[0].value for i, o in zip(instructions, outputs, strict=True)]
    assert together == pytest.approx(alone, abs=1e-5)


def test_left_and_right_padding_agree_with_learned_positions(policy: CheckpointPolicy) -> None:
    policy.model = make_gpt2()
    reward_model = make_reward_model(policy)
    left, right = (score_tokens(reward_model, *pad(SEQUENCES, 0, side)).tolist() for side in ("left", "right"))
    assert left == pytest.approx(right, abs=1e-5)
    assert left == pytest.approx([reward_model.score_ids([s])[0] for s in SEQUENCES], abs=1e-5)


def test_rewards_are_standardised(policy: CheckpointPolicy) -> None:
    reward_model = make_reward_model(policy)
    raw = reward_model.score_ids(SEQUENCES)
    reward_model.mean, reward_model.std = 2.0, 0.5
    assert reward_model.score_ids(SEQUENCES) == pytest.approx([(r - 2) / 0.5 for r in raw], abs=1e-5)


def test_a_fresh_head_is_zero_unless_asked_otherwise_and_the_trunk_is_the_policys(policy: CheckpointPolicy) -> None:
    model = TorchRewardModel.make_classifier(policy)
    assert model.score.weight.eq(0).all()
    for name, weight in policy.model.model.state_dict().items():
        assert torch.equal(model.model.state_dict()[name], weight)
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()
    assert policy.model.model.embed_tokens.weight.abs().max() > 0


def test_a_policy_with_adapters_gives_its_merged_trunk(policy: CheckpointPolicy) -> None:
    policy.model = add_adapter(policy.model, LoraConfig(r=2))
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_()
        ids = torch.tensor(SEQUENCES[:1])
        adapted = policy.model.get_base_model().model(ids).last_hidden_state
        model = TorchRewardModel.make_classifier(policy)
        torch.testing.assert_close(model.eval().model(ids).last_hidden_state, adapted, atol=1e-4, rtol=1e-4)


def test_a_saved_reward_model_gives_the_same_rewards(policy: CheckpointPolicy, tmp_path: Path) -> None:
    reward_model = make_reward_model(policy)
    reward_model.mean, reward_model.std = 0.3, 2.0
    reward_model.save(tmp_path / "rm")
    again = TorchRewardModel.load(tmp_path / "rm", make_context(tmp_path)[0])
    assert again.score_ids(SEQUENCES) == reward_model.score_ids(SEQUENCES)
    assert again.reads_tokens_of(policy)


def test_heads_compute_in_float32_whatever_the_trunk_does(policy: CheckpointPolicy) -> None:
    reward_model = make_reward_model(policy)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        rewards = score_tokens(reward_model, *pad(SEQUENCES[:1], 0))
        hidden = hidden_states(reward_model.model, *pad(SEQUENCES[:1], 0))[:, -1]
    assert rewards.tolist() == torch.mv(hidden.float(), reward_model.model.score.weight[0]).tolist()
    assert rewards.item() != rewards.bfloat16().item()


def test_heads_of_a_bfloat16_model_are_kept_in_float32(tmp_path: Path) -> None:
    backend = Backend(BackendConfig(device="cpu", dtype="bfloat16"))
    policy = make_policy()
    policy.model, policy.backend = policy.model.to(torch.bfloat16), backend
    reward_model = make_reward_model(policy)
    assert reward_model.model.score.weight.dtype == torch.float32
    reward_model.save(tmp_path)
    again = TorchRewardModel.read(tmp_path, backend)
    assert again.model.model.embed_tokens.weight.dtype == torch.bfloat16
    assert torch.equal(again.model.score.weight, reward_model.model.score.weight)
    assert again.score_ids(SEQUENCES) == pytest.approx(reward_model.score_ids(SEQUENCES), rel=1e-5)


def test_which_token_ended_a_response_does_not_change_its_reward(policy: CheckpointPolicy) -> None:
    reward_model = make_reward_model(policy)
    ended = [Sample("w2 w3", (3, 5, 6, 4), (7, 8, end), None, "stop") for end in (1, 20)]
    assert reward_model.score_samples(ended) == pytest.approx([expected(reward_model, SEQUENCES[0])] * 2, abs=1e-5)


def test_token_ids_of_another_tokenizer_are_not_read(policy: CheckpointPolicy) -> None:
    reward_model = make_reward_model(policy)
    assert reward_model.reads_tokens_of(make_policy())
    other = make_policy()
    other.tokenizer.add_tokens(["more"])
    assert not reward_model.reads_tokens_of(other)
    alpaca = make_policy()
    alpaca.template = PromptTemplate("alpaca", alpaca.tokenizer)
    assert not reward_model.reads_tokens_of(alpaca)


class Longer(RewardModel):
    def score(self, instructions: object, outputs: object) -> list[Score]:
        return [Score(float(len(o))) for o in outputs]  # type: ignore[attr-defined]


def test_agreement_by_hand() -> None:
    a, b, c, d = make_instructions(4)
    preferences = [
        judged(a, "w1", "w1 w2", 1.0),  # longer is better: right
        judged(b, "w1", "w1 w2", 0.2),  # shorter is better: wrong
        judged(c, "w1", "w2", 0.9),  # equal rewards: a half
        judged(d, "w1", "w1 w2", None),  # a draw: not counted
    ]
    first, second = pair_rewards(Longer(), preferences)
    assert pairwise_accuracy(preferences, first, second) == 0.5
    assert pairwise_accuracy(preferences[:1], first[:1], second[:1]) == 1.0
    assert math.isnan(pairwise_accuracy(preferences[3:], first[3:], second[3:])), "nothing to agree with"


def test_a_response_that_was_cut_off_is_closed_before_it_is_scored() -> None:
    model = make_reward_model(make_policy())
    whole = Sample("", (3, 5), (6, 4, 1), None, "stop")
    cut = Sample("", (3, 5), (6, 4), None, "length")
    closed, open_ended = model.score_ids([[3, 5, 6, 4, 1], [3, 5, 6, 4]])
    assert closed != pytest.approx(open_ended, abs=1e-3)
    assert model.score_samples([whole, cut]) == pytest.approx([closed, closed], abs=1e-6)


def make_ensemble(policy: CheckpointPolicy, **how: Any) -> TorchRewardModel:
    torch.manual_seed(1)
    model = TorchRewardModel.make_classifier(policy, head_std=1.0, labels=3).eval()
    return TorchRewardModel(
        model, policy.tokenizer, policy.template, policy.backend, [0.5, 0.0, -1.0], [1, 2, 4], **how
    )


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, 2.0),
        ({"aggregate": "min"}, 1.0),
        ({"aggregate": "penalised", "spread_penalty": 0.5}, 2 - 0.5 * (2 / 3) ** 0.5),
    ],
)
def test_members_become_one_reward_by_hand(policy: CheckpointPolicy, how: dict[str, Any], expected: float) -> None:
    members = torch.tensor([[1.0, 3.0, 2.0]])
    assert make_ensemble(policy, **how).aggregated(members).item() == pytest.approx(expected, abs=1e-6)


def test_an_ensemble_serves_tokens_samples_and_texts_alike(policy: CheckpointPolicy) -> None:
    reward_model = make_ensemble(policy, aggregate="min")
    members = reward_model.member_score_ids(SEQUENCES)
    single = make_reward_model(policy)
    for k, (mean, std) in enumerate([(0.5, 1), (0.0, 2), (-1.0, 4)]):
        single.model.score.weight.data = reward_model.model.score.weight.data[k : k + 1]
        single.mean, single.std = mean, std
        assert single.score_ids(SEQUENCES) == pytest.approx(members[:, k].tolist(), abs=1e-5)
    least = members.min(-1).values.tolist()
    assert reward_model.score_ids(SEQUENCES) == pytest.approx(least, abs=1e-6)
    assert score_tokens(reward_model, *pad(SEQUENCES, 0)).tolist() == pytest.approx(least, abs=1e-5)
    assert reward_model.score_samples([Sample("", (3, 5, 6, 4), (7, 8, 1), None, "stop")])[0] == pytest.approx(
        least[0], abs=1e-5
    )
    score = reward_model.score([Instruction("w0 w1")], ["w2 w3"])[0]
    assert score.value == pytest.approx(least[0], abs=1e-5)
    assert score.spread == pytest.approx(members[0].std(correction=0).item(), abs=1e-5)
    assert single.score([Instruction("w0 w1")], ["w2 w3"])[0].spread is None


def test_the_scalar_head_is_the_mean_of_the_members(policy: CheckpointPolicy) -> None:
    reward_model = make_ensemble(policy)
    weight, bias = reward_model.scalar_head()
    with torch.no_grad():
        hidden = reward_model.model.model(torch.tensor([SEQUENCES[0]])).last_hidden_state[0, -1]
    found = (weight @ hidden + bias).item()
    assert found == pytest.approx(reward_model.score_ids(SEQUENCES)[0], abs=1e-5)
    assert (weight.shape, bias.shape) == ((1, 32), (1,))
