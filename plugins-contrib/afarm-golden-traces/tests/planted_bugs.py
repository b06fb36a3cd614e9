# ruff: noqa: E501
"""Fifty mistakes for `reference_trainer.py`, by somebody who had not seen the check."""

import re
from pathlib import Path

SOURCE = Path(__file__).with_name("reference_trainer.py").read_text()


def inside(function, *changes):
    """Replace a whole function or class by itself with `changes`: (old, new), old occurring once."""
    match = re.search(rf"^(?:def|class) {function}\b.*?(?=^\S|\Z)", SOURCE, re.S | re.M)
    text = new = match[0]
    for old, replacement in changes:
        assert text.count(old) == 1, (function, old, text.count(old))
        new = new.replace(old, replacement)
    return (text, new)


def bug(name, method, function, *changes):
    return (name, method, [inside(function, *changes)])


BUGS = [
    # PPO
    bug(
        "value clipped around the return",
        "ppo",
        "train_ppo",
        (
            'low, high = old_values[rows] - hp["cliprange_value"], old_values[rows] + hp["cliprange_value"]',
            'low, high = returns[rows] - hp["cliprange_value"], returns[rows] + hp["cliprange_value"]',
        ),
    ),
    bug(
        "advantages whitened over pads too",
        "ppo",
        "train_ppo",
        (
            "whitened = whiten(advantages, mask)",
            "whitened = (advantages - advantages.mean()) * torch.rsqrt(advantages.var(correction=0) + 1e-8) * mask",
        ),
    ),
    bug(
        "advantages whitened with the unbiased variance",
        "ppo",
        "whiten",
        (
            "variance = masked_mean((values - mean) ** 2, mask)",
            "variance = ((values - mean) ** 2 * mask).sum() / (mask.sum() - 1)",
        ),
    ),
    bug(
        "KL penalty with the wrong sign",
        "ppo",
        "train_ppo",
        ('rewards = -hp["kl_coef"] * kl', 'rewards = hp["kl_coef"] * kl'),
    ),
    bug(
        "score at the last column instead of the last token",
        "ppo",
        "train_ppo",
        ("last = mask.sum(-1).long() - 1", "last = torch.full((len(mask),), mask.shape[1] - 1)"),
    ),
    bug(
        "score one token too early",
        "ppo",
        "train_ppo",
        ("last = mask.sum(-1).long() - 1", "last = (mask.sum(-1).long() - 2).clamp(min=0)"),
    ),
    bug("lambda forgotten in the recursion", "ppo", "gae", ("gamma * lam * last_advantage", "gamma * last_advantage")),
    bug(
        "returns made from whitened advantages",
        "ppo",
        "train_ppo",
        ("        returns = advantages + old_values\n", ""),
        (
            "        whitened = whiten(advantages, mask)\n",
            "        whitened = whiten(advantages, mask)\n        returns = whitened + old_values\n",
        ),
    ),
    bug(
        "old log-probabilities refreshed in the second pass",
        "ppo",
        "train_ppo",
        (
            "            ratio = torch.exp(logprobs - old_logprobs[rows])",
            "            ratio = torch.exp(logprobs - (logprobs.detach() if prefix else old_logprobs[rows]))",
        ),
    ),
    bug(
        "min for max in the pessimistic bound",
        "ppo",
        "train_ppo",
        ("policy_losses = torch.max(unclipped, clipped)", "policy_losses = torch.min(unclipped, clipped)"),
    ),
    bug(
        "missing-EOS penalty is given to those that ended",
        "ppo",
        "train_ppo",
        (
            'scores = torch.where(has_eos, scores, scores - hp["missing_eos_penalty"])',
            'scores = torch.where(has_eos, scores - hp["missing_eos_penalty"], scores)',
        ),
    ),
    bug(
        "mean of micro-batches' means",
        "ppo",
        "train_ppo",
        (
            "policy_loss = (policy_losses * mini).sum() / tokens",
            "policy_loss = (policy_losses * mini).sum() / mini.sum() / math.ceil(len(mask) / MICRO_BATCH)",
        ),
    ),
    bug(
        "temperature forgotten for the new policy",
        "ppo",
        "train_ppo",
        (
            'logprobs, entropy = token_logprobs(policy, part, hp["temperature"])',
            "logprobs, entropy = token_logprobs(policy, part)",
        ),
    ),
    # GRPO
    bug(
        "groups are strided, not in a row",
        "grpo",
        "train_grpo",
        ('grouped = rewards.view(-1, hp["num_generations"])', 'grouped = rewards.view(hp["num_generations"], -1).T'),
    ),
    bug(
        "biased standard deviation of groups", "grpo", "train_grpo", ("grouped.std(1)", "grouped.std(1, correction=0)")
    ),
    bug(
        "standard deviation of the batch",
        "grpo",
        "train_grpo",
        ('stds = grouped.std(1).repeat_interleave(hp["num_generations"])', "stds = rewards.std().expand(len(rewards))"),
    ),
    bug(
        "KL estimator of the other direction",
        "grpo",
        "train_grpo",
        (
            "log_ratio_to_reference = ref_logprobs[rows] - logprobs",
            "log_ratio_to_reference = logprobs - ref_logprobs[rows]",
        ),
    ),
    bug(
        "KL subtracted in the loss",
        "grpo",
        "train_grpo",
        ('policy_losses + hp["beta"] * kl', 'policy_losses - hp["beta"] * kl'),
    ),
    bug(
        "mean over all columns, pads counted",
        "grpo",
        "train_grpo",
        ("(token_losses * mini).sum(-1) / mini.sum(-1)", "(token_losses * mini).mean(-1)"),
    ),
    bug(
        "mean over all tokens instead of responses",
        "grpo",
        "train_grpo",
        ("loss = per_response.sum() / len(mask)", "loss = (token_losses * mini).sum() / mask.sum()"),
    ),
    bug(
        "clip range exchanged",
        "grpo",
        "train_grpo",
        (
            'ratio.clamp(1 - hp["epsilon"], 1 + hp["epsilon_high"])',
            'ratio.clamp(1 - hp["epsilon_high"], 1 + hp["epsilon"])',
        ),
    ),
    bug(
        "reference for the old policy in the ratio",
        "grpo",
        "train_grpo",
        ("ratio = torch.exp(logprobs - old_logprobs[rows])", "ratio = torch.exp(logprobs - ref_logprobs[rows])"),
    ),
    bug(
        "KL without gradient",
        "grpo",
        "train_grpo",
        (
            "kl = torch.exp(log_ratio_to_reference) - log_ratio_to_reference - 1",
            "kl = (torch.exp(log_ratio_to_reference) - log_ratio_to_reference - 1).detach()",
        ),
    ),
    bug(
        "accumulated gradients not divided by all rows",
        "grpo",
        "train_grpo",
        ("loss = per_response.sum() / len(mask)", "loss = per_response.mean()"),
    ),
    # RLOO
    bug(
        "baseline includes the response itself",
        "rloo",
        "train_rloo",
        (
            "baselines = ((grouped.sum(1, keepdim=True) - grouped) / (size - 1)).view(-1)",
            "baselines = grouped.mean(1, keepdim=True).expand_as(grouped).reshape(-1)",
        ),
    ),
    bug("baseline divided by the group's size", "rloo", "train_rloo", ("/ (size - 1)", "/ size")),
    bug(
        "KL a mean over tokens",
        "rloo",
        "train_rloo",
        ("sequence_kl = (kl * mask).sum(-1)", "sequence_kl = (kl * mask).sum(-1) / mask.sum(-1)"),
    ),
    bug(
        "KL of the new policy for the old",
        "rloo",
        "train_rloo",
        ("kl = old_logprobs - ref_logprobs", 'kl = token_logprobs(policy, batch, hp["temperature"])[0] - ref_logprobs'),
    ),
    bug(
        "ratio of mean log-probabilities",
        "rloo",
        "train_rloo",
        (
            "ratio = torch.exp(sequence_logprobs - old_sequence[rows])",
            "ratio = torch.exp((sequence_logprobs - old_sequence[rows]) / mini.sum(-1))",
        ),
    ),
    bug(
        "advantage's sign lost in the loss",
        "rloo",
        "train_rloo",
        ("losses = -torch.min(unclipped, clipped)", "losses = torch.min(unclipped, clipped)"),
    ),
    bug(
        "advantages normalised though RLOO does not",
        "rloo",
        "train_rloo",
        (
            "advantages = rewards - baselines",
            "advantages = rewards - baselines\n        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)",
        ),
    ),
    # DPO
    bug(
        "chosen and rejected exchanged in the reference",
        "dpo",
        "train_dpo",
        (
            "margins = chosen_rewards - rejected_rewards",
            'margins = hp["beta"] * ((chosen_sums - rejected_sums) - (ref_rejected_sums[rows] - ref_chosen_sums[rows]))',
        ),
    ),
    bug(
        "beta applied twice",
        "dpo",
        "train_dpo",
        ("losses = -F.logsigmoid(margins)", 'losses = -F.logsigmoid(hp["beta"] * margins)'),
    ),
    bug(
        "mean log-probability of the responses",
        "dpo",
        "train_dpo",
        (
            'chosen_sums = (chosen_logprobs * chosen["mask"][rows]).sum(-1)',
            'chosen_sums = (chosen_logprobs * chosen["mask"][rows]).sum(-1) / chosen["mask"][rows].sum(-1)',
        ),
    ),
    bug(
        "no reference",
        "dpo",
        "train_dpo",
        (
            'rejected_rewards = hp["beta"] * (rejected_sums - ref_rejected_sums[rows])',
            'rejected_rewards = hp["beta"] * rejected_sums',
        ),
        (
            'chosen_rewards = hp["beta"] * (chosen_sums - ref_chosen_sums[rows])',
            'chosen_rewards = hp["beta"] * chosen_sums',
        ),
    ),
    bug(
        "end of the rejected response is not learned",
        "dpo",
        "train_dpo",
        (
            'rejected = collate(inputs["prompts"], inputs["rejected_responses"], hp["pad_token_id"])',
            'rejected = collate(inputs["prompts"], inputs["rejected_responses"], hp["pad_token_id"])\n    ends = rejected["mask"].sum(-1).long() - 1\n    rejected["mask"][torch.arange(len(ends)), ends] = 0',
        ),
    ),
    bug(
        "rejected log-probabilities without gradient",
        "dpo",
        "train_dpo",
        ("margins = chosen_rewards - rejected_rewards", "margins = chosen_rewards - rejected_rewards.detach()"),
    ),
    bug(
        "one micro-batch is averaged by its own size",
        "dpo",
        "train_dpo",
        ("loss = losses.sum() / pairs", "loss = losses.mean()"),
    ),
    # KTO
    bug(
        "labels turned round",
        "kto",
        "train_kto",
        ("                labels[rows], hp", "                ~labels[rows], hp"),
    ),
    bug("reference point not clamped", "kto", "train_kto", (".mean().clamp(min=0)", ".mean()")),
    bug(
        "reference point from the matched responses",
        "kto",
        "train_kto",
        (
            "mismatched_logprobs, _ = token_logprobs(policy, mismatched)",
            "mismatched_logprobs, _ = token_logprobs(policy, batch)",
        ),
        (
            'mismatched_sums = (mismatched_logprobs * mismatched["mask"]).sum(-1)',
            "mismatched_sums = mismatched_logprobs.sum(-1)",
        ),
    ),
    bug(
        "reference point summed",
        "kto",
        "train_kto",
        ("(mismatched_sums - ref_mismatched_sums).mean()", "(mismatched_sums - ref_mismatched_sums).sum()"),
    ),
    bug(
        "weights exchanged",
        "kto",
        "train_kto",
        (
            'hp["desirable_weight"] * desirable, hp["undesirable_weight"] * undesirable',
            'hp["undesirable_weight"] * desirable, hp["desirable_weight"] * undesirable',
        ),
    ),
    bug(
        "undesirable loss by the sign of the desirable one",
        "kto",
        "train_kto",
        (
            'undesirable = 1 - torch.sigmoid(hp["beta"] * (reference_point - log_ratios))',
            'undesirable = torch.sigmoid(hp["beta"] * (reference_point - log_ratios))',
        ),
    ),
    # Reward model
    bug(
        "score read one token before the last",
        "reward",
        "last_token_scores",
        ('batch["mask"].sum(-1).long() - 1', 'batch["mask"].sum(-1).long() - 2'),
    ),
    bug(
        "score of the last column, pads included",
        "reward",
        "last_token_scores",
        (
            'last = prompt + batch["mask"].sum(-1).long() - 1',
            'last = torch.full((len(batch["mask"]),), batch["input_ids"].shape[1] - 1)',
        ),
    ),
    bug(
        "sigmoid for its logarithm",
        "reward",
        "train_reward",
        ("losses = -F.logsigmoid(margins)", "losses = -torch.sigmoid(margins)"),
    ),
    # The model and the update
    bug(
        "attention looks at pads",
        "ppo",
        "Attention",
        ("seen = causal & attention_mask.bool()[:, None, None, :]", "seen = causal.expand(batch, 1, length, length)"),
    ),
    bug("gradients not cleared between steps", "grpo", "Optimizer", ("        self.adamw.zero_grad()\n", "")),
    bug("weight decay forgotten", "dpo", "Optimizer", ('weight_decay=hp["weight_decay"]', "weight_decay=0.0")),
]
