"""Kahneman-Tversky optimisation (Ethayarajh et al. 2024): outputs that are desirable or not, one at a time.

With r = log π(y|x)/π₀(y|x) and z₀ an estimate of the KL to the reference π₀, the start policy, the loss of an output is
λ_D (1 − σ(β (r − z₀))) if it is desirable, and λ_U (1 − σ(β (z₀ − r))) if it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from afarm import DataError, Feedback, MethodInputs, TrainContext, seeding
from afarm.backend import (
    CheckpointPolicy,
    all_reduce_by_name,
    evaluating,
    join_and_pad,
    require_checkpoint,
    response_logprobs,
)
from afarm_preferences import KTOConfig
from afarm_preferences.trainer import Batch, PreferenceTrainer, Row, summed_logprobs, train


def train_kto(config: KTOConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start` on `inputs.feedback`. Raises `DataError` unless there are both labels."""
    start = require_checkpoint(inputs.start, config.section)
    counts = count_labels(inputs.feedback, config.section)
    rows, cut = start.encode(
        [thumb.instruction for thumb in inputs.feedback],
        [thumb.output for thumb in inputs.feedback],
        config.max_length,
        [thumb.finish_reason != "length" for thumb in inputs.feedback],
    )
    batch_size = config.per_device_train_batch_size
    examples = [
        {"row": row, "p": float(thumb.label), "reference": logp, "length": len(row[0]) + len(row[1])}
        for thumb, row, logp in zip(inputs.feedback, rows, summed_logprobs(start, rows, batch_size), strict=True)
    ]
    if config.loss_type == "kto":
        others = mismatched_rows(rows, start.longest(config.max_length), context.seed)
        for example, row, logp in zip(examples, others, summed_logprobs(start, others, batch_size), strict=True):
            example |= {"other": row, "other_reference": logp}
    counts["outputs_cut"] = cut
    return train(KTOTrainer, start, examples, partial(collate_rows, start.pad_id), counts, config, inputs, context)


def count_labels(feedback: Sequence[Feedback], learner: str) -> dict[str, float]:
    """Count rows by label, as metrics. Raises `DataError`, naming the `learner`, unless there are rows of both."""
    up = sum(thumb.label for thumb in feedback)
    down = len(feedback) - up
    if not feedback:
        raise DataError(f"{learner} has nothing to learn from: no pair has a better output, and no output a label")
    if not (up and down):
        raise DataError(
            f"{learner} learns from desirable and undesirable outputs, and all {len(feedback)} rows are "
            f"{'desirable' if up else 'undesirable'}: add rows of the other label, or learn good outputs alone with "
            "--method sft"
        )
    return {"rows_desirable": float(up), "rows_undesirable": float(down)}


def mismatched_rows(rows: Sequence[Row], limit: int, seed: int) -> list[Row]:
    """Give each row's prompt the response of another prompt, cut to `limit` tokens together: [N] rows.

    They are drawn by seed and place, so a step's do not depend on how it is cut. Raises `DataError` if there is one
    prompt only.
    """
    prompts = [tuple(prompt) for prompt, _ in rows]
    if len(set(prompts)) == 1:
        raise DataError("kto estimates its KL by outputs to other prompts, and all rows have one prompt: add others")
    others = []
    for number, prompt in enumerate(prompts):
        attempts = (seeding.integer(seed, "kto", number, attempt) % len(rows) for attempt in range(10**6))
        response = next(rows[row][1] for row in attempts if prompts[row] != prompt)
        others.append((rows[number][0], response[: max(1, limit - len(prompt))]))
    return others


def collate_rows(pad_id: int, examples: Sequence[Mapping[str, Any]]) -> Batch:
    """Batch B rows, right-padded to [B, T], and as `other_…` their prompts with responses of other prompts."""
    tensors = {"p": torch.tensor([example["p"] for example in examples])}
    for name, prefix in (("row", ""), ("other", "other_")):
        if name in examples[0]:
            prompts, responses = zip(*(example[name] for example in examples), strict=True)
            batch = join_and_pad(prompts, responses, pad_id)
            tensors[f"{prefix}input_ids"], tensors[f"{prefix}attention_mask"] = batch.input_ids, batch.attention_mask
            tensors[f"{prefix}response_mask"] = batch.response_mask
            tensors[f"{prefix}reference"] = torch.tensor([example[f"{prefix}reference"] for example in examples])
    return tensors


def kto_losses(ratios: Tensor, kl: Tensor | float, p: Tensor, config: KTOConfig) -> Tensor:
    """Compute the loss [B] of outputs with log ratios `ratios` [B], `p` [B] 1 for desirable and 0 for undesirable.

    `kl` is z₀, in nats; 0 gives the unpaired form of APO-zero (D'Oosterlinck et al. 2024).
    """
    desirable = config.desirable_weight * torch.sigmoid(config.beta * (kl - ratios))
    undesirable = config.undesirable_weight * torch.sigmoid(config.beta * (ratios - kl))
    return p * desirable + (1 - p) * undesirable


class KTOTrainer(PreferenceTrainer):
    """Estimates z₀ once a step, from all of its rows in all processes, and then learns from them."""

    settings: KTOConfig
    kl: float = 0.0

    def get_batch_samples(self, *arguments: Any) -> tuple[list[Batch], Any]:
        """Read the micro-batches of the next step, and estimate z₀ before the first is learned from."""
        batches, rows = super().get_batch_samples(*arguments)
        if self.settings.loss_type == "kto":
            self.kl = self.estimate_kl(batches)
        return batches, rows

    @torch.no_grad()
    def estimate_kl(self, batches: Sequence[Batch]) -> float:
        """Estimate z₀ in nats: the mean log ratio of responses to other prompts, at least 0. A collective."""
        with evaluating(self.model):
            ratios = torch.cat([self.log_ratios(self._prepare_inputs(batch), "other_") for batch in batches])
        sums = all_reduce_by_name({"ratio": ratios.sum(), "rows": ratios.new_tensor(len(ratios))})
        return max(0.0, float(sums["ratio"] / sums["rows"]))

    def log_ratios(self, batch: Batch, prefix: str = "") -> Tensor:
        """Compute log π(y|x)/π₀(y|x), [B]."""
        names = ("input_ids", "attention_mask", "response_mask", "reference")
        ids, attended, response, reference = (batch[f"{prefix}{name}"] for name in names)
        model = self.accelerator.unwrap_model(self.model)
        return response_logprobs(model, ids, attended, response).sum(-1) - reference

    def losses(self, batch: Batch) -> Tensor:
        ratios, is_desirable = self.log_ratios(batch), batch["p"] > 0.5
        losses = kto_losses(ratios, self.kl, batch["p"], self.settings)
        rewards, logps = self.settings.beta * ratios, ratios + batch["reference"]
        self.note(
            {
                "kl": torch.full_like(ratios, self.kl),
                "rewards/chosen": rewards[is_desirable],
                "rewards/rejected": rewards[~is_desirable],
                "logps/chosen": logps[is_desirable],
                "logps/rejected": logps[~is_desirable],
            }
        )
        return losses
