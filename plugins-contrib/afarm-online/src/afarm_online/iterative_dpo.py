"""Iterative DPO (Xiong et al. 2024; Dong et al. 2024): few rounds of many fresh pairs, and epochs.

A round samples the policy of the round before, has the pairs labelled, and goes on training it on the pairs of all
rounds so far (or its own). The reference stays the first start π₀: all rounds minimise −log σ(β h), h the difference of
log π/π₀ between the better and the worse response, over a growing set of pairs. β is `kl_coef`.

Shapes: B responses in a round, P pairs of all rounds that are learned from, b pairs in a batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from afarm import MethodInputs, Sample, TrainContext
from afarm.backend import (
    CheckpointPolicy,
    Diverged,
    begin_update,
    chosen_policy,
    fall_back,
    optimizer_step,
    permutation,
    read_logprobs,
    resume_training,
    rollout,
    sampled_logprobs,
    save_if_due,
    start_training,
    steps_left,
    watch_kl,
)
from afarm_online import IterativeDPOConfig
from afarm_online.pairs import (
    LabelledPair,
    describe_samples,
    label_pairs,
    mean_over_pairs,
    note_pairs,
    pair_losses,
    read_pairs,
)


def train_iterative_dpo(config: IterativeDPOConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`, and return the policy of the best or the last round."""
    training = start_training(config, inputs, context)
    try:
        done, state = resume_training(training)
        pool = Pool.of_state(state.get("pool", {}))
        for step in steps_left(training, done):
            # Sample B responses, n to each prompt; log-probabilities [B] of the policy and of the first start
            prompts, samples = rollout(training, step)
            logps = sampled_logprobs(training, samples).sum(1)
            reference = read_logprobs(training, training.start, samples).sum(1)
            kl = float((logps - reference).mean())
            watch_kl(training, step, kl)
            if step > done:  # the policy of the round before has drawn sound samples: only now is it saved
                save_if_due(training, step, kl=training.kl, pool=pool.to_state())
            if step == config.total_steps:
                break

            # Pair the responses to a prompt, and have the pairs labelled. After a kill the ledger knows the answers
            pairs, metrics = label_pairs(training, step, prompts, samples)
            if config.pool == "replace":
                pool = Pool()
            pool.add(samples, reference, pairs)

            # Learn, in epochs over the P pairs: a minibatch's loss is the mean over its decided pairs
            known = torch.tensor(pool.reference, device=context.backend.device)
            rate, sums, norms = begin_update(training, step), defaultdict[str, Any](float), list[float]()
            for epoch in range(config.num_iterations):
                order = permutation(len(pool.pairs), context.seed, training.section, "minibatches", step, epoch)
                for first in range(0, len(order), config.mini_batch_size):
                    learned = [pool.pairs[row] for row in order[first : first + config.mini_batch_size]]
                    decided = sum(pair.weight for pair in learned)
                    if not decided:
                        continue
                    for batch in read_pairs(training, pool.samples, known, learned):
                        losses = pair_losses(batch.ratios, batch.p, config.loss_type, config.kl_coef)
                        ((batch.weight * losses).sum() / decided).backward()
                        note_pairs(sums, config, batch, losses)
                    norms.append(optimizer_step(training, step))

            metrics |= {
                **describe_samples(samples, logps, kl),
                **mean_over_pairs(sums),
                "pairs/pool": sum(pair.weight for pair in pool.pairs),
            }
            context.log_metrics(step + 1, {**metrics, "policy/grad_norm": fmean(norms or [0.0]), "lr": rate})
    except Diverged as error:
        fall_back(training, error)
    return chosen_policy(training)


@dataclass
class Pool:
    """The pairs that are learned from; `reference` are the first start's log-probabilities of the samples."""

    samples: list[Sample] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    pairs: list[LabelledPair] = field(default_factory=list)

    def add(self, samples: Sequence[Sample], reference: Tensor, pairs: Sequence[LabelledPair]) -> None:
        """Add a round's samples and pairs; texts and log-probabilities are not kept."""
        before = len(self.samples)
        self.samples += [Sample("", sample.prompt_ids, sample.token_ids) for sample in samples]
        self.reference += reference.tolist()
        self.pairs += [replace(pair, first=before + pair.first, second=before + pair.second) for pair in pairs]

    def to_state(self) -> dict[str, Any]:
        """Return the pool as plain lists, for a checkpoint."""
        samples = [(sample.prompt_ids, sample.token_ids) for sample in self.samples]
        return {"samples": samples, "reference": self.reference, "pairs": list(map(astuple, self.pairs))}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Pool:
        """Read what `to_state` returned; an empty pool of a checkpoint without."""
        samples = [Sample("", *tokens) for tokens in state.get("samples", ())]
        return cls(samples, list(state.get("reference", ())), [LabelledPair(*pair) for pair in state.get("pairs", ())])
