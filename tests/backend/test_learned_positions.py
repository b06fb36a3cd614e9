"""Methods on a GPT-2: learned positions, which forgive nothing beyond them, and dropout of its own in training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import judged, make_context, make_gpt2, make_instructions, make_policy

from afarm import LoraConfig
from afarm.backend import CheckpointPolicy, TorchRewardModel
from afarm.core.errors import ModelError
from afarm.core.interfaces import Decoding, MethodInputs
from afarm.core.records import Instruction, JudgedPair, Output, Sample
from afarm_plugins.dpo import DPO, DPOConfig
from afarm_plugins.feedme import FeedME, FeedMEConfig
from afarm_plugins.reward_conditioning import RewardConditioning, RewardConditioningConfig
from afarm_plugins.reward_model import RewardModelConfig
from afarm_plugins.reward_model.bradley_terry import BradleyTerryRewardModel
from afarm_plugins.sft import SFT, SFTConfig

POSITIONS = 64
SETTINGS: dict[str, Any] = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "save_steps": 0}
LONG = " ".join(f"w{n % 40}" for n in range(70))
"""More words than there are positions."""


def gpt2() -> CheckpointPolicy:
    policy = make_policy()
    return CheckpointPolicy(make_gpt2(), policy.tokenizer, policy.template, policy.backend)


def preferences(first: str = "w1 w2", second: str = LONG) -> list[JudgedPair]:
    return [judged(i, first, second, float(n % 2)) for n, i in enumerate(make_instructions(8))]


def reward_model(policy: CheckpointPolicy) -> TorchRewardModel:
    model = TorchRewardModel.make_classifier(policy, head_std=1.0).eval()
    return TorchRewardModel(model, policy.tokenizer, policy.template, policy.backend)


# -------------------------------------------------------------------------------------------------------- positions


def test_training_cuts_to_the_positions_if_max_length_is_more(tmp_path: Path) -> None:
    inputs = MethodInputs(
        gpt2(),
        preferences=preferences(),
        demonstrations=[Output(i, LONG) for i in make_instructions(4)],
    )
    methods = [
        SFT(SFTConfig(**SETTINGS)),
        FeedME(FeedMEConfig(**SETTINGS)),
        RewardConditioning(RewardConditioningConfig(**SETTINGS)),
        DPO(DPOConfig(**SETTINGS)),
    ]
    for method in methods:
        context, log = make_context(tmp_path / type(method).__name__)
        assert method.config.max_length > POSITIONS
        method.train(inputs, context)
        [cut] = [*log.values("examples_cut"), *log.values("outputs_cut")]
        assert cut > 0
    context, log = make_context(tmp_path / "reward")
    BradleyTerryRewardModel.fit(preferences(), inputs.start, RewardModelConfig(**SETTINGS), context)
    assert log.values("outputs_cut")[0] > 0


def test_a_sample_that_fills_the_positions_leaves_room_for_the_token_that_closes_it() -> None:
    policy = gpt2()
    model = reward_model(policy)
    prompt = [3, *[5 + n % 40 for n in range(52)], 4]
    response = [5 + n for n in range(10)]
    full = Sample("", tuple(prompt), tuple(response), finish_reason="length")
    assert len(prompt) + len(response) == POSITIONS
    # as a text of this length is read: the prompt loses its first token
    assert model.score_samples([full]) == model.score_ids([[*prompt[1:], *response, 1]])


def test_decoding_beyond_the_positions_is_an_error_that_says_how_much_fits() -> None:
    policy, [instruction] = gpt2(), make_instructions(1)
    with pytest.raises(ModelError, match=r"do not fit the model's 64 positions: lower max_new_tokens .* to 61 at most"):
        list(policy.sample([instruction], Decoding(max_new_tokens=POSITIONS), seed=0))
    with pytest.raises(ModelError, match="a response of 300 tokens"):
        list(policy.sample([instruction], Decoding(), seed=0))
    [sample] = policy.sample([Instruction("w1")], Decoding(max_new_tokens=61), seed=0)
    assert len(sample.prompt_ids) == 3


# ---------------------------------------------------------------------------------------------------------- DPO's cut


@pytest.mark.parametrize("max_length", [8, 12, 24])
def test_dpo_cuts_one_pairs_prompt_alike_on_both_sides(max_length: int) -> None:
    from afarm_plugins.dpo.dpo import pair_examples

    instruction = Instruction(" ".join(f"w{n}" for n in range(18)))
    long_answer = " ".join(f"w{n}" for n in range(9))
    rows = [judged(instruction, "w1 w2 w3", long_answer, 1.0), judged(instruction, long_answer, "w1 w2 w3", 1.0)]
    examples, cut = pair_examples(make_policy(), rows, max_length)
    for example in examples:
        (prompt, chosen), (other_prompt, rejected) = example["chosen"], example["rejected"]
        assert prompt == other_prompt
        assert max(len(prompt) + len(chosen), len(prompt) + len(rejected)) == max_length
    assert cut == 4


# ------------------------------------------------------------------------------------------------------------ dropout


@pytest.mark.parametrize("lora", [None, LoraConfig(r=4), LoraConfig(r=4, dropout=0.3)])
def test_dpo_begins_at_log_2_whatever_dropout_the_model_has(tmp_path: Path, lora: LoraConfig | None) -> None:
    context, log = make_context(tmp_path)
    config = DPOConfig(**SETTINGS, learning_rate=1e-3, lora=lora)
    assert gpt2().model.config.attn_pdrop == 0.1
    DPO(config).train(MethodInputs(gpt2(), preferences=preferences(second="w3 w4 w5")), context)
    assert log.values("loss")[0] == pytest.approx(math.log(2), abs=1e-4)
    assert log.values("rewards/margins")[0] == pytest.approx(0, abs=1e-4)


def test_the_reward_model_learns_without_the_models_dropout_but_with_that_of_adapters(tmp_path: Path) -> None:
    def fitted(name: str, **lora: Any) -> torch.Tensor:
        context, _ = make_context(tmp_path / name)
        start = gpt2()
        if name == "quiet":
            start.model.config.update({"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0})
        config = RewardModelConfig(**SETTINGS, learning_rate=1e-3, lora=LoraConfig(r=4, **lora), eval_fraction=0.0)
        model = BradleyTerryRewardModel.fit(preferences(second="w3"), start, config, context)
        return torch.tensor(model.score_ids([[3, 5, 4, 6, 1]]))

    torch.testing.assert_close(fitted("dropout"), fitted("quiet"))
    assert not torch.equal(fitted("dropout of adapters", dropout=0.5), fitted("again"))


def test_switching_off_dropout_spares_adapters_and_reaches_what_attention_reads() -> None:
    from afarm.backend import add_adapter, switch_off_dropout

    llama = make_policy(attention_dropout=0.2).model
    model = add_adapter(llama, LoraConfig(r=2, dropout=0.3))
    switch_off_dropout(model)
    off = {module.attention_dropout for module in model.modules() if hasattr(module, "attention_dropout")}
    assert off == {0.0}
    dropouts = {name: m.p for name, m in model.named_modules() if isinstance(m, torch.nn.Dropout)}
    assert dropouts
    assert all(p == (0.3 if "lora_dropout" in name else 0.0) for name, p in dropouts.items())
