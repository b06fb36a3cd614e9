"""Proximal policy optimisation against a reward model, read from top to bottom.

A step: sample a response to each of `rollout_batch_size` prompts; score it; subtract the KL to the start policy from
the reward, token by token; estimate advantages with the value model; then `num_ppo_epochs` passes of the clipped
update. `train_ppo` is that loop. `shared.py` has what `layout=shared` does differently. Deviations from the paper
(Dubois et al. 2023, section 4 and appendix B) and its reference implementation, and why: `docs/methods/ppo.md`.

The ratio must start at 1, so dropout is off, and below float32, where the sampler's cache and left padding round
differently, old log-probabilities come from a forward pass of training. Pads enter no statistic, loss, value or KL. The
reference is the start policy itself, since training changes a copy.

Shapes: B responses in a rollout, R tokens in the longest, n response tokens in a batch, m in a chunk of one. Tensors
[B, R] are 0 or False at pads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from afarm import MethodInputs, RewardModel, Sample, TrainContext, TrainingError
from afarm.backend import (
    CheckpointPolicy,
    Diverged,
    KLEstimates,
    TokenBatch,
    TorchRewardModel,
    Training,
    add_adapter,
    all_reduce_by_name,
    backward_in_chunks,
    begin_update,
    chosen_policy,
    clipped_policy_loss,
    fall_back,
    head_scores,
    kl_estimates,
    masked,
    micro_batches,
    minibatches,
    optimizer_step,
    plain_copy,
    read_logprobs,
    read_responses,
    require_checkpoint,
    response_mask,
    resume_training,
    rollout,
    sampled_logprobs,
    save_if_due,
    score,
    start_training,
    states_before,
    steps_left,
    trainable_copy,
    watch_kl,
)
from afarm_plugins.ppo import PPOConfig, shared
from afarm_plugins.ppo.objectives import (
    clipped_value_loss,
    generalised_advantages,
    kl_penalised_rewards,
    masked_mean_variance,
    whiten,
)

LEARNED = (
    *("loss/policy_avg", "policy/approxkl_avg", "policy/clipfrac_avg", "val/ratio"),
    *("loss/value_avg", "val/clipfrac_avg"),
)
"""The sums of a minibatch, in the order of the log."""


def train_ppo(config: PPOConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`. Returns the policy of the best or the last checkpoint.

    If training diverges, it ends at the last checkpoint, or raises `TrainingError` naming the step if there is none.
    Raises `DataError` if no prompt is short enough, and `KeyboardInterrupt` once the context says to stop.
    """
    training, value = start_ppo(config, inputs, context)
    add_gradients = shared.add_gradients if config.layout == "shared" else add_gradients_apart
    # Reads of a shared layout switch adapters on one model, so they take turns
    together = (lambda *reads: [read() for read in reads]) if config.layout == "shared" else context.backend.together
    kl_coef = config.kl_coef
    try:
        done, state = resume_training(training)
        kl_coef = state.get("kl_coef", kl_coef)
        for step in steps_left(training, done):
            # Sample B responses; score them [B], and read log-probabilities and values [B, R]
            prompts, samples = rollout(training, step)
            mask = response_mask(samples, context.backend.device)
            scores, logprobs, ref_logprobs, values = together(
                partial(read_scores, training, prompts, samples),
                partial(sampled_logprobs, training, samples),
                partial(read_logprobs, training, training.start, samples),
                partial(read_values, training, value, samples),
            )
            kl = kl_estimates(logprobs, ref_logprobs, mask)
            mean_kl = float(kl.k1.sum(1).mean())
            if not (torch.isfinite(scores).all() and math.isfinite(mean_kl)):
                raise Diverged(config, step + 1, "a score or a log-probability is not a finite number")
            watch_kl(training, step, mean_kl)

            # The policy of the step before has drawn sound samples: only now is it saved
            if step > done:
                save_if_due(training, step, kl_coef=kl_coef)
            if step == config.total_steps:
                break

            # Rewards with the KL; advantages
            rewards = shape_rewards(config, kl_coef, scores, kl, mask)
            advantages, returns = generalised_advantages(rewards, values, mask, config.gamma, config.lam)
            if config.whiten_advantages == "rollout":
                advantages = whiten(advantages, mask)
            collected = ValuedRollout(samples, mask, scores, logprobs, values, advantages, returns)
            metrics = rollout_metrics(training, collected, kl, kl_coef)
            if config.kl_controller == "adaptive":  # from the next rollout on
                kl_coef = next_kl_coef(kl_coef, mean_kl, config.kl_target, config.kl_horizon, len(samples))

            # Learn: `sums` are over the response tokens of a minibatch, `totals` over those of all passes
            rate = begin_update(training, step)
            totals, norms, skipped = defaultdict[str, float](float), list[float](), 0
            for epoch in range(config.num_ppo_epochs):
                for rows in minibatches(training, step, epoch, len(samples)):
                    if skipped:
                        skipped += 1
                        continue
                    training.optimizer.zero_grad()
                    tokens, sums = mask[rows].sum(), defaultdict[str, Any](float)
                    policy_share = partial(policy_loss, config, tokens, sums)
                    value_share = partial(value_loss, config, tokens, sums)
                    if config.whiten_advantages == "minibatch":
                        advantages = whiten_rows(collected.advantages, mask, rows)
                    tensors = (logprobs, advantages, values, returns, mask)
                    add_gradients(training, value, samples, rows, policy_share, value_share, *tensors)
                    summed = {"tokens": tokens, **all_reduce_by_name({name: sums[name] for name in LEARNED})}
                    target = config.target_approx_kl
                    if norms and target is not None and summed["policy/approxkl_avg"] / tokens > target:
                        skipped = 1
                        continue
                    norms.append(optimizer_step(training, step))
                    for name, total in summed.items():
                        totals[name] += float(total)
            training.optimizer.zero_grad()  # gradients take no memory while the next step samples

            metrics |= {name: total / totals["tokens"] for name, total in totals.items() if name != "tokens"}
            metrics |= {"policy/grad_norm": sum(norms) / len(norms), "policy/skipped_minibatches": skipped, "lr": rate}
            context.log_metrics(step + 1, {**metrics, "episode": (step + 1) * config.rollout_batch_size})
    except Diverged as error:
        fall_back(training, error)
    return chosen_policy(training)


# ----------------------------------------------------------------------------------------------------- the four models


def start_ppo(config: PPOConfig, inputs: MethodInputs, context: TrainContext) -> tuple[Training, nn.Module]:
    """Set up the four models: (training, value model), where a shared layout's value model is just a head."""
    assert inputs.reward_model is not None  # named in `needs`
    start = require_checkpoint(inputs.start, "ppo")
    context.backend.seed(context.seed)  # adapters start from random numbers
    policy, value = trainable_copy(start, config.lora), None
    if config.layout == "shared":
        value = shared.add_value_head(policy.model, config)
    else:
        value = start_value_model(start, inputs.reward_model, config)

    def peak_rate(name: str) -> float:
        network, *path = name.split(".")
        is_head = network == "value" and (config.layout == "shared" or "score" in path)
        return (config.value_head_learning_rate if is_head else None) or config.learning_rate

    return start_training(config, inputs, context, policy, {"value": value}, peak_rate=peak_rate), value


def start_value_model(start: CheckpointPolicy, reward_model: RewardModel, config: PPOConfig) -> Any:
    """Make a classifier, read before every token, with the reward model's backbone (or the policy's).

    With LoRA its frozen weights are shared with that model. Raises `TrainingError` if the reward model has no backbone
    over the policy's tokens.
    """
    if config.value_init == "sft":
        model = TorchRewardModel.make_classifier(start, share_weights=config.lora is not None)
    elif isinstance(reward_model, TorchRewardModel) and reward_model.reads_tokens_of(start):
        model = plain_copy(reward_model.model, share_weights=config.lora is not None)
    else:
        raise TrainingError(
            f"{type(reward_model).__name__} has no backbone over the policy's tokens for a value model to start from: "
            "use --set ppo.value_init=sft"
        )
    head = shared.zero_head(model.score.in_features).to(model.score.weight)
    if config.value_head_init == "reward_model" and isinstance(reward_model, TorchRewardModel):
        weight, bias = reward_model.scalar_head()
        head.weight.data.copy_(weight)
        head.bias.data.copy_(bias)
    model.score = head
    model.requires_grad_(True)
    return model if config.lora is None else add_adapter(model, config.lora, train_also=["score"])


# ---------------------------------------------------------------------------------------------------------- collecting


class ValuedRollout(NamedTuple):
    """B responses with their `scores` [B]; the other tensors are [B, R].

    `logprobs` are the sampling policy's; `values` and `returns` are of the state before each token.
    """

    samples: Sequence[Sample]
    mask: Tensor
    scores: Tensor
    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


def read_scores(training: Training, prompts: Sequence[int], samples: Sequence[Sample]) -> Tensor:
    """Score samples [B], less `missing_eos_penalty` for each that did not end by itself."""
    device, penalty = training.context.backend.device, training.config.missing_eos_penalty
    scores = torch.tensor(score(training, prompts, samples), device=device)
    if penalty is None:
        return scores
    return scores - penalty * torch.tensor([sample.finish_reason != "stop" for sample in samples], device=device)


def read_values(training: Training, value: nn.Module, samples: Sequence[Sample]) -> Tensor:
    """Read the value [B, R] of the state before each response token, without gradient, in shares."""
    return read_responses(
        partial(compute_values, training, value),
        [sample.prompt_ids for sample in samples],
        [sample.token_ids for sample in samples],
        batch_size=training.config.per_device_rollout_batch_size,
        pad_id=training.policy.pad_id,
        device=training.context.backend.device,
    )


def compute_values(training: Training, value: Any, batch: TokenBatch) -> Tensor:
    """Compute the value [n] of the state before each response token of a batch."""
    if training.config.layout == "shared":
        return shared.head_values(training, value, batch)
    return head_scores(value.score, states_before(value, batch)[0]).squeeze(-1)


def charged_ratios(config: PPOConfig, kl: KLEstimates) -> Tensor:
    """Return the log ratios [B, R] that tokens are charged for, by `kl_penalty`."""
    return kl.k1.clamp(min=0) if config.kl_penalty == "clamped" else kl.k1


def shape_rewards(config: PPOConfig, kl_coef: float, scores: Tensor, kl: KLEstimates, mask: Tensor) -> Tensor:
    """Compute rewards [B, R]: the score [B] on the last token, less each token's KL penalty; whitened."""
    rewards = kl_penalised_rewards(scores, charged_ratios(config, kl), mask, kl_coef)
    if config.whiten_rewards == "scale":
        return scale_rewards(rewards, mask)
    return shift_rewards(rewards, mask, config.response_length) if config.whiten_rewards == "shift" else rewards


def rollout_metrics(training: Training, collected: ValuedRollout, kl: KLEstimates, kl_coef: float) -> dict[str, float]:
    """Compute metrics of the samples, before the update."""
    samples, mask, scores, logprobs, values, _, returns = collected
    non_score = -kl_coef * charged_ratios(training.config, kl).sum(1)
    _, unexplained = masked_mean_variance(returns - values, mask)
    _, variance = masked_mean_variance(returns, mask)
    metrics: dict[str, Tensor | float] = {
        "objective/kl": kl.k1.sum(1).mean(),
        "objective/kl_k2": kl.k2.sum(1).mean(),
        "objective/kl_k3": kl.k3.sum(1).mean(),
        "objective/kl_coef": kl_coef,
        "objective/entropy": -logprobs.sum(1).mean(),
        "objective/scores": scores.mean(),
        "objective/scores_std": scores.std(correction=0),
        "objective/non_score_reward": non_score.mean(),
        "objective/rlhf_reward": (scores + non_score).mean(),
        "objective/length": mask.sum(1).float().mean(),
        "val/num_eos_tokens": sum(sample.finish_reason == "stop" for sample in samples),
        "val/explained_variance": 1 - unexplained / variance.clamp(min=1e-8),
        "data/prompts_left_out": len(training.inputs.unlabeled) - len(training.prompts),
    }
    return {name: float(value) for name, value in metrics.items()}


# ------------------------------------------------------------------------------------------------------------- learning


def policy_loss(
    config: PPOConfig,
    tokens: Tensor,
    sums: defaultdict[str, Any],
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
) -> Tensor:
    """Compute the share of m tokens in the clipped policy loss of a minibatch of `tokens` response tokens.

    `new` and `old` log-probabilities and the other tensors are [m]. Adds to `sums`, for metrics.
    """
    clipped = clipped_policy_loss(new, old, advantages, mask, config.cliprange, tokens)
    sums["loss/policy_avg"] += clipped.loss.detach() * tokens
    sums["policy/approxkl_avg"] += clipped.approx_kl
    sums["policy/clipfrac_avg"] += clipped.clipped
    sums["val/ratio"] += clipped.ratio
    return clipped.loss


def value_loss(
    config: PPOConfig,
    tokens: Tensor,
    sums: defaultdict[str, Any],
    new: Tensor,
    old: Tensor,
    returns: Tensor,
    mask: Tensor,
) -> Tensor:
    """Compute the share of n tokens in the clipped value loss of a minibatch, times `vf_coef`.

    Tensors are [n]: `new` values and the rollout's `old` ones. Adds to `sums`, for metrics.
    """
    clipped = clipped_value_loss(new, old, returns, mask, config.cliprange_value, tokens)
    sums["loss/value_avg"] += clipped.loss.detach() * tokens
    sums["val/clipfrac_avg"] += clipped.clipped
    return config.vf_coef * clipped.loss


def add_gradients_apart(
    training: Training,
    value: nn.Module,
    samples: Sequence[Sample],
    rows: Sequence[int],
    policy_share: Callable[..., Tensor],
    value_share: Callable[..., Tensor],
    *tensors: Tensor,
) -> None:
    """Add the gradients of both losses of a minibatch, in parallel if cores are idle.

    `rows` are the minibatch's, in all processes; each adds its share. `policy_share` is `policy_loss`, `value_share`
    `value_loss`; `tensors` [B, R] are log-probabilities, advantages, values, returns and mask.
    """
    logprobs, advantages, values, returns, mask = tensors

    def learn_values() -> None:
        for batch, flat in micro_batches(training, samples, rows, values, returns, mask):
            value_share(compute_values(training, value, batch), *flat).backward()

    learn_policy = partial(backward_in_chunks, training, samples, rows, policy_share, logprobs, advantages, mask)
    training.context.backend.together(learn_policy, learn_values)


def whiten_rows(advantages: Tensor, mask: Tensor, rows: Sequence[int]) -> Tensor:
    """Standardise `advantages` [B, R] over these rows; 0 in the others."""
    whitened = torch.zeros_like(advantages)
    whitened[rows] = whiten(advantages[rows], mask[rows])
    return whitened


# ------------------------------------------------------------------------------------ the mathematics of PPO alone


def scale_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """Divide `rewards` [B, R] by their standard deviation over `mask`, which does not move the optimum.

    Subtracting the mean too would add a constant per token: a hidden bonus or penalty on length.
    """
    _, variance = masked_mean_variance(rewards, mask)
    return masked(rewards * torch.rsqrt(variance + 1e-8), mask)


def shift_rewards(rewards: Tensor, mask: Tensor, length: int) -> Tensor:
    """Standardise `rewards` [B, R] over B · `length` positions and add their mean back unscaled.

    AlpacaFarm's released code does so to a tensor [B, `length`] with rewards of 0 at pads. That pays a constant at each
    of `length` positions, here for those after the end with the last token: the same for undiscounted returns.
    """
    rewards = masked(rewards, mask)
    lengths = mask.sum(1)
    positions = len(rewards) * length
    mean = rewards.sum() / positions
    deviations = masked((rewards - mean) ** 2, mask).sum() + (positions - lengths.sum()) * mean**2
    scale = torch.rsqrt(deviations / positions + 1e-8)
    constant = mean * (1 - scale)
    is_last = torch.arange(rewards.shape[1], device=rewards.device) == (lengths - 1).unsqueeze(1)
    return masked(rewards * scale + constant, mask) + is_last * ((length - lengths) * constant).unsqueeze(1)


def next_kl_coef(kl_coef: float, kl: float, target: float, horizon: int, episodes: int) -> float:
    """Compute the KL coefficient after a step of `episodes` responses whose mean KL was `kl`.

    It changes in proportion to the relative error, clipped at ±0.2 (Ziegler et al. 2019, section 2.2): by a fifth at
    most within `horizon` responses.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * episodes / horizon)
