"""A trainer of six methods in torch: model, padding, losses, autograd, AdamW. It imports no trace.

`train(method, given)` takes what stands in a trace's file (`inputs`, `hyperparameters`, `weights`) and returns a dump:
what a trainer computes on the way, by name. The gradient of a loss is made in micro-batches, as trainers do.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPE = torch.float64
MICRO_BATCH = 2  # rows or pairs in one backward pass


# -------------------------------------------------------------------------------------------------------------- model


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(width, width, bias=False))

    def forward(self, x: Tensor, attention_mask: Tensor, positions: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = lambda y: y.view(batch, length, self.heads, -1).transpose(1, 2)  # noqa: E731
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        q, k = rotary(q, positions), rotary(k, positions)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        seen = causal & attention_mask.bool()[:, None, None, :]
        scores = scores.masked_fill(~seen, torch.finfo(x.dtype).min)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))


def rotary(x: Tensor, positions: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = positions[:, None, :, None].to(x.dtype) * frequencies
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


class MLP(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, width: int, inner: int, heads: int):
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(width), Attention(width, heads)
        self.post_attention_layernorm, self.mlp = RMSNorm(width), MLP(width, inner)

    def forward(self, x: Tensor, attention_mask: Tensor, positions: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), attention_mask, positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class Backbone(nn.Module):
    def __init__(self, vocabulary: int, width: int, inner: int, heads: int):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([Layer(width, inner, heads)])
        self.norm = RMSNorm(width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, attention_mask, positions)
        return self.norm(x)


class Network(nn.Module):
    """A language model (head "lm_head") or a model with one output per token (head "score")."""

    def __init__(self, head: str):
        super().__init__()
        self.model = Backbone(12, 4, 6, 2)
        setattr(self, head, nn.Linear(4, 12 if head == "lm_head" else 1, bias=False))
        self.head = head

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return getattr(self, self.head)(self.model(input_ids, attention_mask))


def build(weights: dict[str, Any]) -> Network:
    network = Network("score" if "score.weight" in weights else "lm_head").to(DTYPE)
    network.load_state_dict({name: torch.as_tensor(w, dtype=DTYPE) for name, w in weights.items()})
    return network


# ------------------------------------------------------------------------------------------------------------ batches


def collate(prompts: list[list[int]], responses: list[list[int]], pad_id: int) -> dict[str, Tensor]:
    """Left-padded prompts and right-padded responses: ids and masks, each [B, …]."""
    longest_prompt, longest = max(map(len, prompts)), max(map(len, responses))
    prompt_ids = torch.tensor([[pad_id] * (longest_prompt - len(p)) + p for p in prompts])
    prompt_mask = torch.tensor([[0] * (longest_prompt - len(p)) + [1] * len(p) for p in prompts])
    response_ids = torch.tensor([r + [pad_id] * (longest - len(r)) for r in responses])
    response_mask = torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in responses])
    return {
        "input_ids": torch.cat([prompt_ids, response_ids], 1),
        "attention_mask": torch.cat([prompt_mask, response_mask], 1),
        "response_ids": response_ids,
        "mask": response_mask.to(DTYPE),
    }


def rows_of(batch: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    return {name: tensor[rows] for name, tensor in batch.items()}


def token_logprobs(network: Network, batch: dict[str, Tensor], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """log-probabilities of the response tokens, and entropies: both [B, R], 0 at pads."""
    length = batch["response_ids"].shape[1]
    logits = network(batch["input_ids"], batch["attention_mask"])[:, -length - 1 : -1] / temperature
    logprobs = F.log_softmax(logits, dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    chosen = logprobs.gather(-1, batch["response_ids"].unsqueeze(-1)).squeeze(-1)
    return chosen * batch["mask"], entropy * batch["mask"]


def token_values(network: Network, batch: dict[str, Tensor]) -> Tensor:
    """Values [B, R] of the states before the response tokens, 0 at pads."""
    length = batch["response_ids"].shape[1]
    values = network(batch["input_ids"], batch["attention_mask"])[:, -length - 1 : -1].squeeze(-1)
    return values * batch["mask"]


def last_token_scores(network: Network, batch: dict[str, Tensor]) -> Tensor:
    """Scores [B] at the last response token."""
    length = batch["response_ids"].shape[1]
    prompt = batch["input_ids"].shape[1] - length
    last = prompt + batch["mask"].sum(-1).long() - 1
    scores = network(batch["input_ids"], batch["attention_mask"]).squeeze(-1)
    return scores[torch.arange(len(scores)), last]


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum()


# --------------------------------------------------------------------------------------------------------- the update


class Optimizer:
    """AdamW with gradients clipped to a norm."""

    def __init__(self, parameters: dict[str, nn.Parameter], hp: dict[str, Any]):
        self.parameters, self.hp = parameters, hp
        self.adamw = torch.optim.AdamW(
            parameters.values(),
            lr=hp["learning_rate"],
            betas=(hp["adam_beta1"], hp["adam_beta2"]),
            eps=hp["adam_epsilon"],
            weight_decay=hp["weight_decay"],
        )

    def step(self, dump: dict[str, Any], prefix: str) -> None:
        """Note gradients, their norm before clipping, and the weights after the step; clear the gradients."""
        dump[f"{prefix}gradients"] = {name: p.grad.clone() for name, p in self.parameters.items()}
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.hp["max_grad_norm"])
        dump[f"{prefix}gradient_norm"] = norm
        self.adamw.step()
        self.adamw.zero_grad()
        dump[f"{prefix}parameters"] = {name: p.detach().clone() for name, p in self.parameters.items()}


def micro_batches(count: int) -> list[slice]:
    return [slice(start, min(start + MICRO_BATCH, count)) for start in range(0, count, MICRO_BATCH)]


def collect(parts: list[dict[str, Tensor]], prefix: str, dump: dict[str, Any]) -> None:
    """Join what the micro-batches noted: rows are put together, numbers (shares of a mean) are added."""
    for name in parts[0]:
        values = [part[name].detach() for part in parts]
        dump[prefix + name] = torch.cat(values) if values[0].dim() else torch.stack(values).sum()


# ---------------------------------------------------------------------------------------------------------------- PPO


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimates [B, R]."""
    advantages = torch.zeros_like(rewards)
    last_advantage, next_value = torch.zeros(len(rewards), dtype=DTYPE), torch.zeros(len(rewards), dtype=DTYPE)
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        last_advantage = (delta + gamma * lam * last_advantage) * mask[:, t]
        next_value = values[:, t] * mask[:, t]
        advantages[:, t] = last_advantage
    return advantages


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask)
    return (values - mean) * torch.rsqrt(variance + 1e-8) * mask


def train_ppo(inputs: dict[str, Any], hp: dict[str, Any], weights: dict[str, Any], dump: dict[str, Any]) -> None:
    policy = build({n.removeprefix("policy."): w for n, w in weights["learned"].items() if n.startswith("policy.")})
    value = build({n.removeprefix("value."): w for n, w in weights["learned"].items() if n.startswith("value.")})
    old, old_value, reference = build(weights["old"]), build(weights["old_value"]), build(weights["reference"])
    batch = collate(inputs["prompts"], inputs["responses"], hp["pad_token_id"])
    mask = batch["mask"]

    # The rollout
    with torch.no_grad():
        old_logprobs, _ = token_logprobs(old, batch, hp["temperature"])
        ref_logprobs, _ = token_logprobs(reference, batch, hp["temperature"])
        old_values = token_values(old_value, batch)
        kl = old_logprobs - ref_logprobs
        scores = torch.tensor(inputs["reward_model_scores"], dtype=DTYPE)
        has_eos = (batch["response_ids"] == hp["eos_token_id"]).any(-1)
        scores = torch.where(has_eos, scores, scores - hp["missing_eos_penalty"])
        rewards = -hp["kl_coef"] * kl
        last = mask.sum(-1).long() - 1
        rewards[torch.arange(len(rewards)), last] += scores
        advantages = gae(rewards, old_values, mask, hp["gamma"], hp["lam"])
        returns = advantages + old_values
        whitened = whiten(advantages, mask)
    dump.update(response_mask=mask, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs, old_values=old_values, kl=kl)
    dump.update(scores=scores, rewards=rewards, advantages=advantages, returns=returns, whitened_advantages=whitened)

    # Two passes over it
    named = {f"policy.{n}": p for n, p in policy.named_parameters()}
    named |= {f"value.{n}": p for n, p in value.named_parameters()}
    optimizer, tokens = Optimizer(named, hp), mask.sum()
    for prefix in ("", "second/"):
        parts = []
        for rows in micro_batches(len(mask)):
            part, mini = rows_of(batch, rows), mask[rows]
            logprobs, entropy = token_logprobs(policy, part, hp["temperature"])
            ratio = torch.exp(logprobs - old_logprobs[rows])
            unclipped = -whitened[rows] * ratio
            clipped = -whitened[rows] * ratio.clamp(1 - hp["cliprange"], 1 + hp["cliprange"])
            policy_losses = torch.max(unclipped, clipped)
            policy_loss = (policy_losses * mini).sum() / tokens
            new_values = token_values(value, part)
            low, high = old_values[rows] - hp["cliprange_value"], old_values[rows] + hp["cliprange_value"]
            near = torch.max(torch.min(new_values, high), low)
            value_losses = torch.max((new_values - returns[rows]) ** 2, (near - returns[rows]) ** 2)
            value_loss = 0.5 * (value_losses * mini).sum() / tokens
            loss = policy_loss + hp["vf_coef"] * value_loss
            loss.backward()
            clip_fraction = ((clipped > unclipped) * mini).sum() / tokens
            parts.append({"logprobs": logprobs, "entropy": entropy, "ratio": ratio * mini})
            parts[-1].update(policy_losses=policy_losses, policy_loss=policy_loss, clip_fraction=clip_fraction)
            parts[-1].update(new_values=new_values, value_losses=value_losses, value_loss=value_loss, loss=loss)
        collect(parts, prefix, dump)
        optimizer.step(dump, prefix)


# ------------------------------------------------------------------------------------------------------ GRPO and RLOO


def train_grpo(inputs: dict[str, Any], hp: dict[str, Any], weights: dict[str, Any], dump: dict[str, Any]) -> None:
    policy, old, reference = build(weights["learned"]), build(weights["old"]), build(weights["reference"])
    batch = collate(inputs["prompts"], inputs["responses"], hp["pad_token_id"])
    mask = batch["mask"]

    # The rollout
    with torch.no_grad():
        old_logprobs, _ = token_logprobs(old, batch, hp["temperature"])
        ref_logprobs, _ = token_logprobs(reference, batch, hp["temperature"])
        rewards = torch.tensor(inputs["rewards"], dtype=DTYPE)
        grouped = rewards.view(-1, hp["num_generations"])
        means = grouped.mean(1).repeat_interleave(hp["num_generations"])
        stds = grouped.std(1).repeat_interleave(hp["num_generations"])
        advantages = (rewards - means) / (stds + 1e-4)
    dump.update(response_mask=mask, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs)
    dump.update(group_means=means, group_stds=stds, advantages=advantages)

    # Two passes over it
    optimizer = Optimizer(dict(policy.named_parameters()), hp)
    for prefix in ("", "second/"):
        parts = []
        for rows in micro_batches(len(mask)):
            part, mini, advantage = rows_of(batch, rows), mask[rows], advantages[rows].unsqueeze(1)
            logprobs, entropy = token_logprobs(policy, part, hp["temperature"])
            ratio = torch.exp(logprobs - old_logprobs[rows])
            log_ratio_to_reference = ref_logprobs[rows] - logprobs
            kl = torch.exp(log_ratio_to_reference) - log_ratio_to_reference - 1
            unclipped = ratio * advantage
            clipped = ratio.clamp(1 - hp["epsilon"], 1 + hp["epsilon_high"]) * advantage
            policy_losses = -torch.min(unclipped, clipped) * mini
            token_losses = policy_losses + hp["beta"] * kl
            per_response = (token_losses * mini).sum(-1) / mini.sum(-1)
            loss = per_response.sum() / len(mask)
            loss.backward()
            clip_fraction = ((clipped < unclipped) * mini).sum() / mask.sum()
            parts.append({"logprobs": logprobs, "entropy": entropy, "ratio": ratio * mini, "kl": kl * mini})
            parts[-1].update(policy_losses=policy_losses, token_losses=token_losses * mini, loss=loss)
            parts[-1].update(clip_fraction=clip_fraction)
        collect(parts, prefix, dump)
        optimizer.step(dump, prefix)


def train_rloo(inputs: dict[str, Any], hp: dict[str, Any], weights: dict[str, Any], dump: dict[str, Any]) -> None:
    policy, old, reference = build(weights["learned"]), build(weights["old"]), build(weights["reference"])
    batch = collate(inputs["prompts"], inputs["responses"], hp["pad_token_id"])
    mask, size = batch["mask"], hp["num_generations"]

    # The rollout
    with torch.no_grad():
        old_logprobs, _ = token_logprobs(old, batch, hp["temperature"])
        ref_logprobs, _ = token_logprobs(reference, batch, hp["temperature"])
        kl = old_logprobs - ref_logprobs
        sequence_kl = (kl * mask).sum(-1)
        rewards = torch.tensor(inputs["scores"], dtype=DTYPE) - hp["beta"] * sequence_kl
        grouped = rewards.view(-1, size)
        baselines = ((grouped.sum(1, keepdim=True) - grouped) / (size - 1)).view(-1)
        advantages = rewards - baselines
        old_sequence = (old_logprobs * mask).sum(-1)
    dump.update(response_mask=mask, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs, kl=kl)
    dump.update(sequence_kl=sequence_kl, rewards=rewards, baselines=baselines, advantages=advantages)

    # Two passes over it
    optimizer = Optimizer(dict(policy.named_parameters()), hp)
    for prefix in ("", "second/"):
        parts = []
        for rows in micro_batches(len(mask)):
            part, mini, advantage = rows_of(batch, rows), mask[rows], advantages[rows]
            logprobs, entropy = token_logprobs(policy, part, hp["temperature"])
            sequence_logprobs = (logprobs * mini).sum(-1)
            ratio = torch.exp(sequence_logprobs - old_sequence[rows])
            unclipped = ratio * advantage
            clipped = ratio.clamp(1 - hp["epsilon"], 1 + hp["epsilon"]) * advantage
            losses = -torch.min(unclipped, clipped)
            loss = losses.sum() / len(mask)
            loss.backward()
            clip_fraction = (clipped < unclipped).to(DTYPE).sum() / len(mask)
            parts.append({"logprobs": logprobs, "entropy": entropy, "sequence_logprobs": sequence_logprobs})
            parts[-1].update(ratio=ratio, losses=losses, loss=loss, clip_fraction=clip_fraction)
        collect(parts, prefix, dump)
        optimizer.step(dump, prefix)


# ------------------------------------------------------------------------------------------- DPO, KTO and reward model


def train_dpo(inputs: dict[str, Any], hp: dict[str, Any], weights: dict[str, Any], dump: dict[str, Any]) -> None:
    policy, reference = build(weights["learned"]), build(weights["reference"])
    chosen = collate(inputs["prompts"], inputs["chosen_responses"], hp["pad_token_id"])
    rejected = collate(inputs["prompts"], inputs["rejected_responses"], hp["pad_token_id"])
    pairs = len(inputs["prompts"])

    # What the reference says, once
    with torch.no_grad():
        ref_chosen, _ = token_logprobs(reference, chosen)
        ref_rejected, _ = token_logprobs(reference, rejected)
        ref_chosen_sums, ref_rejected_sums = ref_chosen.sum(-1), ref_rejected.sum(-1)
    dump.update(ref_chosen_logprobs=ref_chosen, ref_chosen_sequence_logprobs=ref_chosen_sums)
    dump.update(ref_rejected_logprobs=ref_rejected, ref_rejected_sequence_logprobs=ref_rejected_sums)

    optimizer = Optimizer(dict(policy.named_parameters()), hp)
    for prefix in ("", "second/"):
        parts = []
        for rows in micro_batches(pairs):
            chosen_logprobs, _ = token_logprobs(policy, rows_of(chosen, rows))
            rejected_logprobs, _ = token_logprobs(policy, rows_of(rejected, rows))
            chosen_sums = (chosen_logprobs * chosen["mask"][rows]).sum(-1)
            rejected_sums = (rejected_logprobs * rejected["mask"][rows]).sum(-1)
            chosen_rewards = hp["beta"] * (chosen_sums - ref_chosen_sums[rows])
            rejected_rewards = hp["beta"] * (rejected_sums - ref_rejected_sums[rows])
            margins = chosen_rewards - rejected_rewards
            losses = -F.logsigmoid(margins)
            loss = losses.sum() / pairs
            loss.backward()
            accuracy = (margins > 0).to(DTYPE).sum() / pairs
            parts.append({"chosen_logprobs": chosen_logprobs, "chosen_sequence_logprobs": chosen_sums})
            parts[-1].update(rejected_logprobs=rejected_logprobs, rejected_sequence_logprobs=rejected_sums)
            parts[-1].update(chosen_rewards=chosen_rewards, rejected_rewards=rejected_rewards, margins=margins)
            parts[-1].update(losses=losses, loss=loss, accuracy=accuracy)
        collect(parts, prefix, dump)
        optimizer.step(dump, prefix)


def train_kto(inputs: dict[str, Any], hp: dict[str, Any], weights: dict[str, Any], dump: dict[str, Any]) -> None:
    policy, reference = build(weights["learned"]), build(weights["reference"])
    batch = collate(inputs["prompts"], inputs["responses"], hp["pad_token_id"])
    mismatched = collate(inputs["prompts"], inputs["mismatched_responses"], hp["pad_token_id"])
    labels, count = torch.tensor(inputs["labels"]), len(inputs["labels"])

    # What the reference says, once
    with torch.no_grad():
        ref_logprobs, _ = token_logprobs(reference, batch)
        ref_mismatched, _ = token_logprobs(reference, mismatched)
        ref_sums, ref_mismatched_sums = ref_logprobs.sum(-1), ref_mismatched.sum(-1)
    dump.update(ref_logprobs=ref_logprobs, ref_sequence_logprobs=ref_sums)
    dump.update(ref_mismatched_logprobs=ref_mismatched, ref_mismatched_sequence_logprobs=ref_mismatched_sums)

    optimizer = Optimizer(dict(policy.named_parameters()), hp)
    for prefix in ("", "second/"):
        # The reference point is one for all micro-batches
        with torch.no_grad():
            mismatched_logprobs, _ = token_logprobs(policy, mismatched)
            mismatched_sums = (mismatched_logprobs * mismatched["mask"]).sum(-1)
            reference_point = (mismatched_sums - ref_mismatched_sums).mean().clamp(min=0)
        dump[f"{prefix}mismatched_logprobs"] = mismatched_logprobs
        dump[f"{prefix}mismatched_sequence_logprobs"] = mismatched_sums
        dump[f"{prefix}reference_point"] = reference_point
        parts = []
        for rows in micro_batches(count):
            logprobs, _ = token_logprobs(policy, rows_of(batch, rows))
            sums = (logprobs * batch["mask"][rows]).sum(-1)
            log_ratios = sums - ref_sums[rows]
            desirable = 1 - torch.sigmoid(hp["beta"] * (log_ratios - reference_point))
            undesirable = 1 - torch.sigmoid(hp["beta"] * (reference_point - log_ratios))
            losses = torch.where(
                labels[rows], hp["desirable_weight"] * desirable, hp["undesirable_weight"] * undesirable
            )
            loss = losses.sum() / count
            loss.backward()
            parts.append({"logprobs": logprobs, "sequence_logprobs": sums, "log_ratios": log_ratios})
            parts[-1].update(losses=losses, loss=loss)
        collect(parts, prefix, dump)
        optimizer.step(dump, prefix)


def train_reward(inputs: dict[str, Any], hp: dict[str, Any], weights: dict[str, Any], dump: dict[str, Any]) -> None:
    network = build(weights["learned"])
    chosen = collate(inputs["prompts"], inputs["chosen_responses"], hp["pad_token_id"])
    rejected = collate(inputs["prompts"], inputs["rejected_responses"], hp["pad_token_id"])
    pairs = len(inputs["prompts"])
    optimizer = Optimizer(dict(network.named_parameters()), hp)
    for prefix in ("", "second/"):
        parts = []
        for rows in micro_batches(pairs):
            chosen_scores = last_token_scores(network, rows_of(chosen, rows))
            rejected_scores = last_token_scores(network, rows_of(rejected, rows))
            margins = chosen_scores - rejected_scores
            losses = -F.logsigmoid(margins)
            loss = losses.sum() / pairs
            loss.backward()
            accuracy = (chosen_scores > rejected_scores).to(DTYPE).sum() / pairs
            parts.append({"chosen_scores": chosen_scores, "rejected_scores": rejected_scores, "margins": margins})
            parts[-1].update(losses=losses, loss=loss, accuracy=accuracy)
        collect(parts, prefix, dump)
        optimizer.step(dump, prefix)


METHODS = {
    "ppo": train_ppo,
    "dpo": train_dpo,
    "grpo": train_grpo,
    "rloo": train_rloo,
    "kto": train_kto,
    "reward": train_reward,
}


def train(method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Train two steps on a trace's inputs, and return the dump: lists, numbers, and dicts of lists."""
    dump: dict[str, Any] = {}
    METHODS[method](given["inputs"], given["hyperparameters"], given["weights"], dump)

    def plain(value: Any) -> Any:
        return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value.tolist()

    return {name: plain(value) for name, value in dump.items()}
