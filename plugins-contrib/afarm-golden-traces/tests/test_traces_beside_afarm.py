"""The methods of afarm and its packages, held against the traces on their tokens and weights."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from afarm_golden_traces import Trace, check, load_trace
from afarm_grpo import VARIANTS, GRPOConfig, grpo
from afarm_preferences import KTOConfig
from afarm_preferences.kto import kto_losses
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from afarm import Sample
from afarm.backend import (
    clipped_policy_loss,
    join_and_pad,
    kl_estimates,
    last_token_scores,
    response_logprobs,
    response_mask,
    states_before,
)
from afarm.testing import tiny_config
from afarm_plugins.dpo.dpo import preference_losses
from afarm_plugins.ppo.objectives import clipped_value_loss, generalised_advantages, kl_penalised_rewards, whiten
from afarm_plugins.reward_model.pair_trainer import bradley_terry_loss

Dump = dict[str, Any]


def build(trace: Trace, network: str, kind: Any = LlamaForCausalLM, part: str = "") -> Any:
    model = kind(LlamaConfig(**{**trace.model, "num_labels": 1})).eval()
    weights = {n.removeprefix(part): w for n, w in trace.weights[network].items() if n.startswith(part)}
    model.load_state_dict({name: torch.tensor(w).float() for name, w in weights.items()})
    return model


def read(trace: Trace, model: Any, responses: str = "responses") -> Tensor:
    """The log-probabilities [B, R] of responses."""
    batch = join_and_pad(trace.inputs["prompts"], trace.inputs[responses], 0)
    tensors = batch.input_ids, batch.attention_mask, batch.response_mask
    return response_logprobs(model, *tensors, temperature=trace.hyperparameters.get("temperature", 1.0))


def read_values(trace: Trace, model: Any, mask: Tensor) -> Tensor:
    batch = join_and_pad(trace.inputs["prompts"], trace.inputs["responses"], 0)
    values = model.score(states_before(model, batch)[0]).squeeze(-1)
    return torch.zeros(mask.shape).masked_scatter(mask, values)


def samples_of(trace: Trace) -> list[Sample]:
    rows = zip(trace.inputs["prompts"], trace.inputs["responses"], strict=True)
    return [Sample("", tuple(p), tuple(r), None, "stop" if r[-1] == 1 else "length") for p, r in rows]


def gradients_of(loss: Tensor, **models: Any) -> Dump:
    """Gradients by weight, under a part's name if there are several."""
    loss.backward()
    named = {
        f"{part}.{n}" if len(models) > 1 else n: w.grad for part, m in models.items() for n, w in m.named_parameters()
    }
    return {"loss": loss, "gradients": named}


def require_that_it_follows(method: str, dump: Dump, variant: str = "") -> None:
    report = check(method, dump, variant)
    assert report.follows, str(report)
    assert {"loss", "gradients"} <= set(report.checked)


def test_ppo() -> None:
    trace = load_trace("ppo")
    given, mask = trace.hyperparameters, response_mask(samples_of(trace))
    policy, value = build(trace, "learned", part="policy."), build(
        trace, "learned", LlamaForSequenceClassification, "value."
    )  # fmt: skip
    with torch.no_grad():
        old, reference = read(trace, build(trace, "old")), read(trace, build(trace, "reference"))
        old_values = read_values(trace, build(trace, "old_value", LlamaForSequenceClassification), mask)
    ended = torch.tensor([sample.finish_reason == "stop" for sample in samples_of(trace)])
    scores = torch.tensor(trace.inputs["reward_model_scores"]) - given["missing_eos_penalty"] * ~ended
    kl = kl_estimates(old, reference, mask).k1
    rewards = kl_penalised_rewards(scores, kl, mask, given["kl_coef"])
    advantages, returns = generalised_advantages(rewards, old_values, mask, given["gamma"], given["lam"])
    whitened, tokens, new = whiten(advantages, mask), mask.sum(), read(trace, policy)
    clipped = clipped_policy_loss(new, old, whitened, mask, given["cliprange"], tokens)
    new_values = read_values(trace, value, mask)
    of_values = clipped_value_loss(new_values, old_values, returns, mask, given["cliprange_value"], tokens)
    loss = clipped.loss + given["vf_coef"] * of_values.loss
    require_that_it_follows("ppo", {
        "response_mask": mask, "old_logprobs": old, "ref_logprobs": reference, "old_values": old_values, "kl": kl,
        "scores": scores, "rewards": rewards, "advantages": advantages, "returns": returns, "logprobs": new,
        "whitened_advantages": whitened, "policy_loss": clipped.loss, "clip_fraction": clipped.clipped / tokens,
        "new_values": new_values, "value_loss": of_values.loss, **gradients_of(loss, policy=policy, value=value),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("method", "variant", "ours", "changes"),
    [
        ("grpo", "", "grpo", {"use_bias_correction_kl": False}),
        ("grpo", "bias_corrected_kl", "grpo", {}),
        ("grpo", "batch_scaled", "grpo", {"use_bias_correction_kl": False, "scale_rewards": "batch"}),
        ("grpo", "dapo", "dapo", {}),
        ("grpo", "dr_grpo", "dr_grpo", {}),
        ("grpo", "gspo", "gspo", {"epsilon": 0.1, "epsilon_high": 0.15}),
        ("grpo", "cispo", "cispo", {"epsilon_high": 0.1}),
        ("rloo", "", "rloo", {}),
    ],
)
def test_grpo_and_its_relatives(method: str, variant: str, ours: str, changes: Dump) -> None:
    trace = load_trace(method, variant)
    given, samples, policy = trace.hyperparameters, samples_of(trace), build(trace, "learned")
    sizes = {"num_generations": 3, "rollout_batch_size": 9, "mini_batch_size": 9, "response_length": 8}
    sizes |= {"per_device_train_batch_size": 9, "temperature": given["temperature"], "kl_coef": given["beta"]}
    config = tiny_config(GRPOConfig, **{**VARIANTS[ours][1], **sizes, **changes})
    assert isinstance(config, GRPOConfig)
    mask = response_mask(samples)
    with torch.no_grad():
        old, reference = read(trace, build(trace, "old")), read(trace, build(trace, "reference"))
    dump: Dump = {"response_mask": mask, "old_logprobs": old, "ref_logprobs": reference}
    rewards = torch.tensor(trace.inputs["scores" if method == "rloo" else "rewards"])
    if method == "rloo":
        dump["kl"] = kl_estimates(old, reference, mask).k1
        dump["sequence_kl"] = dump["kl"].sum(1)
        dump["rewards"] = rewards = rewards - config.kl_coef * dump["sequence_kl"]
    dump["advantages"] = advantages = grpo.group_advantages(config, rewards)
    dump["logprobs"] = new = read(trace, policy)
    learned, owners = grpo.learned_tokens(config, samples, mask)
    weights = grpo.token_weights(config, learned, range(9))
    tensors = new, old, reference, advantages.unsqueeze(1) * mask, weights, owners
    loss = grpo.token_losses(config, defaultdict(float), *(tensor[mask] for tensor in tensors))
    require_that_it_follows(method, dump | gradients_of(loss, policy=policy), variant)


@pytest.mark.parametrize("variant", ["", "ipo", "conservative"])
def test_dpo(variant: str) -> None:
    trace = load_trace("dpo", variant)
    given, policy, reference = trace.hyperparameters, build(trace, "learned"), build(trace, "reference")
    dump, ratios = Dump(), []
    for side in ("chosen", "rejected"):
        ours = read(trace, policy, f"{side}_responses")
        with torch.no_grad():
            theirs = read(trace, reference, f"{side}_responses")
        dump |= {f"{side}_logprobs": ours, f"ref_{side}_logprobs": theirs}
        lengths = torch.tensor([len(r) for r in trace.inputs[f"{side}_responses"]])
        ratios.append((ours - theirs).sum(-1) / (lengths if given["loss_type"] == "ipo" else 1))
    margins = ratios[0] - ratios[1]
    losses = preference_losses(
        margins, torch.ones(len(margins)), given["loss_type"], given["beta"], given["label_smoothing"]
    )
    dump |= {"margins": given["beta"] * margins, "losses": losses}
    require_that_it_follows("dpo", dump | gradients_of(losses.mean(), policy=policy), variant)


@pytest.mark.parametrize("variant", ["", "apo_zero_unpaired"])
def test_kto(variant: str) -> None:
    trace = load_trace("kto", variant)
    given, policy, reference = trace.hyperparameters, build(trace, "learned"), build(trace, "reference")
    named = ("beta", "desirable_weight", "undesirable_weight", "loss_type")
    config = KTOConfig(**{name: given[name] for name in named})
    with torch.no_grad():
        theirs, others = read(trace, reference), read(trace, policy, "mismatched_responses")
        their_others = read(trace, reference, "mismatched_responses")
    kl = max(0.0, float((others - their_others).sum(-1).mean())) if given["loss_type"] == "kto" else 0.0
    ours = read(trace, policy)
    ratios = (ours - theirs).sum(-1)
    losses = kto_losses(ratios, kl, torch.tensor(trace.inputs["labels"]).float(), config)
    dump = {
        "ref_logprobs": theirs, "logprobs": ours, "mismatched_logprobs": others, "reference_point": kl,
        "ref_mismatched_logprobs": their_others, "log_ratios": ratios, "losses": losses,
    }  # fmt: skip
    require_that_it_follows("kto", dump | gradients_of(losses.mean(), policy=policy), variant)


def test_the_reward_model() -> None:
    trace = load_trace("reward")
    model = build(trace, "learned", LlamaForSequenceClassification)
    chosen, rejected = (
        last_token_scores(model, batch.input_ids, batch.attention_mask).squeeze(-1)
        for batch in (
            join_and_pad(trace.inputs["prompts"], trace.inputs[f"{side}_responses"], 0)
            for side in ("chosen", "rejected")
        )
    )
    loss = bradley_terry_loss(rejected, chosen, torch.ones(len(chosen)))
    dump = {"chosen_scores": chosen, "rejected_scores": rejected}
    require_that_it_follows("reward", dump | gradients_of(loss, model=model))
