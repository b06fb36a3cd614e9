"""Online DPO (Guo et al. 2024, "OAIF"): DPO on pairs that have just been sampled and labelled.

With h the difference of log π/π₀ between the better and the worse response, the loss of a pair is −log σ(β h): DPO's,
whose pairs come from the policy as it is now. π₀ is the start policy and β `kl_coef`.

Shapes: B responses in a rollout, R tokens in the longest, P pairs, b pairs in a batch.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import Any

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
from afarm_online import OnlineDPOConfig
from afarm_online.pairs import describe_samples, label_pairs, mean_over_pairs, note_pairs, pair_losses, read_pairs


def train_online_dpo(config: OnlineDPOConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`, and return the policy of the best or the last checkpoint."""
    training = start_training(config, inputs, context)
    try:
        done, _ = resume_training(training)
        for step in steps_left(training, done):
            # Sample B responses, n to each prompt; log-probabilities [B] of the policy and of its start
            prompts, samples = rollout(training, step)
            logps = sampled_logprobs(training, samples).sum(1)
            reference = read_logprobs(training, training.start, samples).sum(1)
            kl = float((logps - reference).mean())
            watch_kl(training, step, kl)
            if step > done:  # the policy of the step before has drawn sound samples: only now is it saved
                save_if_due(training, step, kl=training.kl)
            if step == config.total_steps:
                break

            # Pair the responses to a prompt, and have the P pairs labelled. After a kill the ledger knows the answers
            pairs, metrics = label_pairs(training, step, prompts, samples)

            # Learn: a minibatch's loss is the mean over its decided pairs
            rate, sums, norms = begin_update(training, step), defaultdict[str, Any](float), list[float]()
            for iteration in range(config.num_iterations):
                for rows in minibatches(training, step, iteration, len(pairs)):
                    learned = [pairs[row] for row in rows]
                    decided = sum(pair.weight for pair in learned)
                    if not decided:
                        continue
                    for batch in read_pairs(training, samples, reference, learned):
                        losses = pair_losses(batch.ratios, batch.p, config.loss_type, config.kl_coef)
                        ((batch.weight * losses).sum() / decided).backward()
                        note_pairs(sums, config, batch, losses)
                    norms.append(optimizer_step(training, step))

            metrics |= {**describe_samples(samples, logps, kl), **mean_over_pairs(sums)}
            context.log_metrics(step + 1, {**metrics, "policy/grad_norm": fmean(norms or [0.0]), "lr": rate})
    except Diverged as error:
        fall_back(training, error)
    return chosen_policy(training)
