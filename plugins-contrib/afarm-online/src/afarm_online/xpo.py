"""Exploratory preference optimisation (Xie et al. 2024): online DPO with a bonus for exploring.

Each response y of the policy π meets a response ỹ of its start π₀ to the same prompt. With h the difference of
log π/π₀ between the better and the worse of them, the loss of a pair is −log σ(β h) + α log π(ỹ|x) (Algorithm 1). The
second term is the paper's optimism: it takes probability from what is known already. β is `kl_coef`.

Shapes: B responses of the policy in a rollout and as many pairs, b pairs in a batch.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import Any

from torch import Tensor

from afarm import MethodInputs, TrainContext
from afarm.backend import (
    CheckpointPolicy,
    Diverged,
    begin_update,
    chosen_policy,
    fall_back,
    minibatches,
    optimizer_step,
    read_logprobs,
    resume_training,
    rollout,
    sampled_logprobs,
    save_if_due,
    start_training,
    steps_left,
    watch_kl,
)
from afarm_online import XPOConfig
from afarm_online.pairs import (
    PairBatch,
    describe_samples,
    label_pairs,
    mean_over_pairs,
    note_pairs,
    pair_losses,
    read_pairs,
)


def train_xpo(config: XPOConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`, and return the policy of the best or the last checkpoint."""
    training = start_training(config, inputs, context)
    try:
        done, _ = resume_training(training)
        for step in steps_left(training, done):
            # Sample B responses of the policy and, if there is a step to take, as many of its start
            prompts, own = rollout(training, step)
            samples, is_last = own, step == config.total_steps
            if not is_last:
                _, others = rollout(training, step, training.start, draws="start")
                samples = [sample for both in zip(own, others, strict=True) for sample in both]  # the policy's first

            # Read log π(y|x) [B] of the policy's, and log π₀ [2B] of both, in the last round [B]
            logps = sampled_logprobs(training, own).sum(1)
            reference = read_logprobs(training, training.start, samples).sum(1)
            kl = float((logps - reference[:: 1 if is_last else 2]).mean())
            watch_kl(training, step, kl)
            if step > done:  # the policy of the step before has drawn sound samples: only now is it saved
                save_if_due(training, step, kl=training.kl)
            if is_last:
                break

            # Pair each with a response of the start, and have the B pairs labelled
            doubled = [number for number in prompts for _ in range(2)]
            pairs, metrics = label_pairs(training, step, doubled, samples)

            # Learn: DPO's loss is a mean over the decided pairs of a minibatch, the bonus one over all of them
            rate, sums, norms = begin_update(training, step), defaultdict[str, Any](float), list[float]()
            for iteration in range(config.num_iterations):
                for rows in minibatches(training, step, iteration, len(pairs)):
                    learned = [pairs[row] for row in rows]
                    decided = sum(pair.weight for pair in learned)
                    if not decided and not config.alpha:
                        continue
                    for batch in read_pairs(training, samples, reference, learned):
                        losses = pair_losses(batch.ratios, batch.p, config.loss_type, config.kl_coef)
                        bonus = exploration(batch, config.alpha)
                        ((batch.weight * losses).sum() / max(1.0, decided) + bonus.sum() / len(rows)).backward()
                        note_pairs(sums, config, batch, losses)
                    norms.append(optimizer_step(training, step))

            metrics |= {**describe_samples(own, logps, kl), **mean_over_pairs(sums)}
            metrics["objective/entropy_of_start"] = -float(reference[1::2].mean())
            context.log_metrics(step + 1, {**metrics, "policy/grad_norm": fmean(norms or [0.0]), "lr": rate})
    except Diverged as error:
        fall_back(training, error)
    return chosen_policy(training)


def exploration(batch: PairBatch, alpha: float) -> Tensor:
    """Compute α log π(ỹ|x) [b] of the start's responses, which are the second ones of pairs."""
    return alpha * batch.logps[1]
