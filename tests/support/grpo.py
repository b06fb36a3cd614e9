"""Group relative policy optimisation (Shao et al. 2024) as a stranger writes it, from afarm's doors alone."""

from collections import defaultdict
from functools import partial
from typing import ClassVar

import torch

from afarm import Method, OnPolicyConfig, hookimpl, setting
from afarm.backend import (
    Diverged,
    all_reduce_by_name,
    backward_in_chunks,
    begin_update,
    chosen_policy,
    clipped_policy_loss,
    fall_back,
    kl_estimates,
    minibatches,
    optimizer_step,
    read_logprobs,
    response_mask,
    resume_training,
    rollout,
    sampled_logprobs,
    save_if_due,
    score,
    start_training,
    steps_left,
    watch_kl,
)


class GRPOConfig(OnPolicyConfig):
    """As in the paper, several responses per prompt, one pass over each rollout, and the KL in the loss."""

    method_name: ClassVar[str] = "GRPO"

    num_generations: int = setting(8, "responses sampled per prompt, which are compared with each other", gt=1)
    cliprange: float = setting(0.2, "how far the ratio π/π_old may move before it is clipped", gt=0, lt=1)


TOY = {
    "total_steps": 40,
    "rollout_batch_size": 256,
    "mini_batch_size": 128,
    "per_device_train_batch_size": 32,
    "per_device_rollout_batch_size": 64,
    "learning_rate": 1e-4,
    "warmup_steps": 2,
    "kl_coef": 0.05,
    "max_prompt_length": 48,
    "response_length": 48,
    "save_steps": 5,
}
"""Settings for the toy recipe, whose model is small; the defaults are for 7B."""


class GRPO(Method):
    """Raises the probability of responses that score higher than others to their prompt. No value model."""

    needs = frozenset({"reward_model", "unlabeled"})
    measures_kl = True

    def train(self, inputs, context):
        config = self.config
        training = start_training(config, inputs, context)
        try:
            done, _ = resume_training(training)
            for step in steps_left(training, done):
                # Sample B responses of at most R tokens, several to each prompt; tensors are [B, R], 0 at pads
                prompts, samples = rollout(training, step)
                mask = response_mask(samples, context.backend.device)
                logprobs, reference = (
                    sampled_logprobs(training, samples),
                    read_logprobs(training, training.start, samples),
                )
                kl = float(kl_estimates(logprobs, reference, mask).k1.sum(1).mean())
                watch_kl(training, step, kl)
                if step > done:  # what diverged has raised an error by now, and is never kept
                    save_if_due(training, step)
                if step == config.total_steps:
                    break

                scores = torch.tensor(score(training, prompts, samples), device=mask.device)
                groups = scores.view(-1, config.num_generations)
                relative = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
                advantages = relative.view(-1, 1) * mask

                rate, totals = begin_update(training, step), defaultdict(float)
                for rows in minibatches(training, step, 0, len(samples)):
                    tokens, sums = mask[rows].sum(), defaultdict(float)
                    loss_of = partial(token_losses, config, tokens, sums)
                    backward_in_chunks(training, samples, rows, loss_of, logprobs, reference, advantages, mask)
                    norm = optimizer_step(training, step)
                    for name, total in all_reduce_by_name(sums).items():
                        totals[name] += float(total)

                metrics = {name: total / int(mask.sum()) for name, total in totals.items()}
                metrics |= {"objective/scores": float(scores.mean()), "objective/kl": kl}
                context.log_metrics(step + 1, {**metrics, "policy/grad_norm": norm, "lr": rate})
        except Diverged as error:
            fall_back(training, error)
        return chosen_policy(training)


def token_losses(config, tokens, sums, logprobs, old, reference, advantages, mask):
    """The share of m response tokens in the mean loss of a minibatch of `tokens`. All tensors are [m]."""
    clipped = clipped_policy_loss(logprobs, old, advantages, mask, config.cliprange, tokens)
    kl = kl_estimates(logprobs, reference, mask).k3.sum()
    sums["loss/kl"] += kl.detach()
    return clipped.loss + config.kl_coef * kl / tokens


@hookimpl
def register_methods(register):
    summary = "policy optimisation relative to groups of responses"
    register("grpo", "grpo:GRPO", config=GRPOConfig, summary=summary, recipes={"toy": TOY})
