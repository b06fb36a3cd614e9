"""Advantages, loss and gradient beside TRL 1.16's trainers, on the same tokens and weights."""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from afarm_grpo import VARIANTS, GRPOConfig, grpo
from torch import Tensor

from afarm import MethodInputs, Sample
from afarm.backend import CheckpointPolicy, kl_estimates, read_logprobs, response_mask, start_training
from afarm.testing import make_instructions, tiny_config, tiny_policy, tiny_reward_model, train_context

trl = pytest.importorskip("trl")

ROWS, GROUP, LONGEST = 8, 4, 6
LENGTHS = [6, 2, 4, 1, 5, 3, 6, 2]
REWARDS = [0.3, -1.0, 2.0, 0.5, 1.0, 1.5, -0.25, 0.0]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    # Ours, and TRL's settings where they are not called alike
    "grpo": ("grpo", {"loss_type": "grpo", "beta": 0.04}),
    "grpo as in the paper": ("grpo", {"loss_type": "grpo", "beta": 0.04}),
    "grpo with the rollout's deviation": ("grpo", {"loss_type": "grpo", "beta": 0.04, "scale_rewards": "batch"}),
    "grpo without cut-off responses": ("grpo", {"loss_type": "grpo", "beta": 0.04, "mask_truncated_completions": True}),
    "dr_grpo": ("dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "dapo": ("dapo", {"loss_type": "dapo", "epsilon_high": 0.28}),
    "gspo": (
        "gspo",
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    ),
    "gspo, wide": (
        "gspo",
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.2, "epsilon_high": 0.3},
    ),
    "cispo": ("cispo", {"loss_type": "cispo", "epsilon_high": 1.1}),  # TRL's is the bound, ours how far it is above 1
    "rloo": ("rloo", {"beta": 0.05}),
}
OURS: dict[str, dict[str, Any]] = {
    "grpo as in the paper": {"use_bias_correction_kl": False},
    "grpo with the rollout's deviation": {"scale_rewards": "batch"},
    "grpo without cut-off responses": {"mask_truncated_completions": True},
    "gspo, wide": {"epsilon": 0.2, "epsilon_high": 0.3},
    "cispo": {"epsilon_high": 0.1},
}


def draw_samples(prompts: list[list[int]]) -> list[Sample]:
    generator = torch.Generator().manual_seed(1)
    samples = []
    for row, length in enumerate(LENGTHS):
        ids = torch.randint(4, 40, (length,), generator=generator).tolist()
        ended = row % 3 != 0
        ids = (*ids[:-1], 1) if ended else tuple(ids)
        samples.append(Sample("", tuple(prompts[row // GROUP]), ids, None, "stop" if ended else "length"))
    return samples


def perturb(model: Any, scale: float) -> None:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            weight += scale * torch.randn(weight.shape, generator=generator)


@dataclass
class Learned:
    """The loop's work on a minibatch: `sampler` copies the policy that sampled, `model` has gradients."""

    sampler: Any
    model: Any
    old: Tensor
    advantages: Tensor
    loss: float


def learn(config: GRPOConfig, directory: Path, samples: list[Sample]) -> Learned:
    start = tiny_policy()
    inputs = MethodInputs(start, reward_model=tiny_reward_model(start), unlabeled=make_instructions(4))
    training = start_training(config, inputs, train_context(directory))
    mask = response_mask(samples)
    perturb(training.policy.model, 0.01)  # away from the reference …
    sampler = copy.deepcopy(training.policy.model)
    old, reference = read_logprobs(training, training.policy, samples), read_logprobs(training, start, samples)
    perturb(training.policy.model, 0.02)  # … and from the policy that sampled
    rewards = torch.tensor(REWARDS)
    if config.kl_in == "reward":
        rewards = rewards - config.kl_coef * kl_estimates(old, reference, mask).k1.sum(1)
    advantages = grpo.group_advantages(config, rewards)
    learned, owners = grpo.learned_tokens(config, samples, mask)
    weights, sums = grpo.token_weights(config, learned, range(ROWS)), defaultdict[str, Any](float)
    tensors = old, reference, advantages.unsqueeze(1) * mask, weights, owners
    grpo.add_gradients(training, samples, range(ROWS), partial(grpo.token_losses, config, sums), *tensors)
    loss = sums["loss/policy_avg"] + (config.kl_coef if config.kl_in == "loss" else 0.0) * sums["loss/kl_avg"]
    return Learned(sampler, training.policy.model, old, advantages, float(loss))


def trl_trainer(kind: str, model: Any, start: CheckpointPolicy, beta: float, directory: Path) -> Any:
    from datasets import Dataset

    start.model.save_pretrained(directory / "start")
    model.config._name_or_path = str(directory / "start")  # where TRL takes the reference from
    trainer, settings = (trl.RLOOTrainer, trl.RLOOConfig) if kind == "rloo" else (trl.GRPOTrainer, trl.GRPOConfig)
    return trainer(
        model=model,
        reward_funcs=lambda prompts, **_: REWARDS,
        args=settings(
            output_dir=str(directory), per_device_train_batch_size=ROWS, num_generations=GROUP, use_cpu=True, beta=beta,
            max_completion_length=LONGEST, report_to="none", bf16=False,
        ),
        train_dataset=Dataset.from_list([{"prompt": "w1"}] * ROWS),
        processing_class=start.tokenizer,
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_trls(name: str, tmp_path: Path) -> None:
    variant, theirs = CASES[name]
    settings = {**VARIANTS[variant][1], **OURS.get(name, {}), "num_generations": GROUP, "response_length": LONGEST}
    settings["kl_coef"] = theirs.get("beta", 0.0)
    sizes = {"rollout_batch_size": ROWS, "mini_batch_size": ROWS, "per_device_train_batch_size": 3}
    config = tiny_config(GRPOConfig, **settings, **sizes)
    assert isinstance(config, GRPOConfig)
    start = tiny_policy()
    samples = draw_samples(start.prompt_ids(make_instructions(2)))
    ours = learn(config, tmp_path, samples)

    trainer = trl_trainer(variant, ours.sampler, start, config.kl_coef, tmp_path)
    for setting, value in theirs.items():
        assert hasattr(trainer, setting), "TRL has renamed it"
        setattr(trainer, setting, value)
    trainer.args.use_bias_correction_kl = config.use_bias_correction_kl
    generated = [list(s.prompt_ids) for s in samples], [list(s.token_ids) for s in samples]
    texts = ["" for _ in samples]
    answer = (*generated, texts) if variant == "rloo" else (*generated, None, texts, None, {}, None, None)
    trainer._generate = lambda prompts: answer
    inputs = trainer._generate_and_score_completions([{"prompt": "w1"} for _ in samples])
    torch.testing.assert_close(ours.advantages, inputs["advantages"], rtol=1e-5, atol=1e-5)
    if variant != "rloo":
        inputs["old_per_token_logps"] = ours.old  # it takes the current ones where a rollout is learned from once
    perturb(trainer.model, 0.02)
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    assert ours.loss == pytest.approx(loss.item(), rel=1e-5, abs=1e-5)
    expected = {path: weight.grad for path, weight in trainer.model.named_parameters()}
    for path, weight in ours.model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[path], rtol=1e-4, atol=1e-5)
