"""Training on pairs by the losses of `losses.py`, weighted and summed, with a reference policy or without.

The reference is the start policy. It reads all pairs once, before training, and only if a loss looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from afarm import JudgedPair, MethodInputs, TrainContext
from afarm.backend import CheckpointPolicy, join_and_pad, require_checkpoint, response_logprobs, usable_pairs
from afarm_preferences import PairwiseConfig
from afarm_preferences.losses import PER_TOKEN, Side, pair_losses
from afarm_preferences.trainer import Batch, PreferenceTrainer, summed_logprobs, train


def train_pairwise(config: PairwiseConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start` on pairs. Raises `DataError` if there is nothing to learn from."""
    start = require_checkpoint(inputs.start, config.section)

    def is_usable(judged: JudgedPair) -> bool:
        return judged.p2 is not None or (config.keep_draws and judged.preference.outcome == "draw")

    pairs, counts = usable_pairs(inputs.preferences, is_usable, config.section, start, config.max_length)
    examples, cut = encode_pairs(start, pairs, config.max_length)
    if config.uses_reference:
        rows = [example[side] for side in ("chosen", "rejected") for example in examples]
        logps = summed_logprobs(start, rows, 2 * config.per_device_train_batch_size)
        for number, example in enumerate(examples):
            example["reference"] = logps[number], logps[number + len(examples)]
    collate = partial(collate_pairs, start.pad_id)
    return train(PairwiseTrainer, start, examples, collate, {**counts, "outputs_cut": cut}, config, inputs, context)


def encode_pairs(
    policy: CheckpointPolicy, pairs: Sequence[JudgedPair], max_length: int
) -> tuple[list[dict[str, Any]], int]:
    """Encode one example per pair, and count how many outputs were cut.

    `chosen` and `rejected` are (prompt, response), in token ids; `p` is the probability that `chosen` is better, ½ for
    a draw, whose `chosen` is the second output; `reference` holds a log-probability for each, 0 until it is read.
    """
    first, second, cut = policy.encode_pairs(pairs, max_length)
    examples = []
    for one, two, judged in zip(first, second, pairs, strict=True):
        p2 = 0.5 if judged.p2 is None else judged.p2
        chosen, rejected = (two, one) if p2 >= 0.5 else (one, two)
        length = max(len(prompt) + len(response) for prompt, response in (one, two))
        example = {"chosen": chosen, "rejected": rejected, "p": max(p2, 1 - p2), "length": length}
        examples.append({**example, "reference": (0.0, 0.0)})
    return examples, cut


def collate_pairs(pad_id: int, examples: Sequence[Mapping[str, Any]]) -> Batch:
    """Batch B pairs as 2B rows, the chosen responses first, right-padded to [2B, T]."""
    rows = [example[side] for side in ("chosen", "rejected") for example in examples]
    batch = join_and_pad([prompt for prompt, _ in rows], [response for _, response in rows], pad_id)
    return {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "response_mask": batch.response_mask,
        "reference": torch.tensor([example["reference"] for example in examples]).T.flatten(),
        "p": torch.tensor([example["p"] for example in examples]),
    }


class PairwiseTrainer(PreferenceTrainer):
    """Minimises the weighted sum of the config's losses."""

    settings: PairwiseConfig

    def losses(self, batch: Batch) -> Tensor:
        model, config, p = self.accelerator.unwrap_model(self.model), self.settings, batch["p"]
        tokens = batch["response_mask"].sum(-1)  # [2B]
        logps = response_logprobs(model, batch["input_ids"], batch["attention_mask"], batch["response_mask"]).sum(-1)
        sides = zip(logps.chunk(2), batch["reference"].chunk(2), tokens.chunk(2), strict=True)
        chosen, rejected = (Side(*side) for side in sides)  # of [B] each
        losses = pair_losses(chosen, rejected, p, config)
        weighted = torch.stack([weight * losses[name] for name, weight in config.weights.items()])

        per_token = losses.keys() <= PER_TOKEN
        rewards = [config.beta * side.ratio / (side.tokens if per_token else 1) for side in (chosen, rejected)]
        self.note(
            {
                "rewards/chosen": rewards[0],
                "rewards/rejected": rewards[1],
                "rewards/margins": rewards[0] - rewards[1],
                "rewards/accuracies": (rewards[0] > rewards[1]).float()[p > 0.5],
                "logps/chosen": chosen.logps,
                "logps/rejected": rejected.logps,
                **({f"loss/{name}": loss for name, loss in losses.items()} if len(losses) > 1 else {}),
            }
        )
        return weighted.sum(0)
