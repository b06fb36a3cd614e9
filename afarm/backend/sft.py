"""Supervised fine-tuning on TRL's SFTTrainer.

It is SFT, and the last step of FeedME, reward conditioning and expert iteration, which differ in their examples. An
example is token ids, so a prompt is exactly as in sampling. Examples are padded, never packed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from afarm.backend.batching import count_cut_prompts
from afarm.backend.checkpoint_selection import CheckpointSelection
from afarm.backend.distributed import world_size
from afarm.backend.logprobs import before_responses, token_loss
from afarm.backend.policy import CheckpointPolicy, trainable_copy
from afarm.backend.trl_bridge import (
    CandidatePolicies,
    LengthSortedTrainer,
    run_trainer,
    trained_model,
    trainer_arguments,
)
from afarm.core.config import TrainerConfig
from afarm.core.interfaces import TrainContext

IGNORED = -100
"""The label of tokens that carry no loss."""

Example = tuple[Sequence[int], Sequence[int]]
"""A prompt and its response, as token ids."""


def fit_supervised(
    start: CheckpointPolicy,
    examples: Sequence[Example],
    config: TrainerConfig,
    context: TrainContext,
    setting: str,
    counts: Mapping[str, float] | None = None,
    selection: CheckpointSelection | None = None,
) -> CheckpointPolicy:
    """Train a copy of `start` to give the responses of `examples` to their prompts.

    The loss is the negative log-likelihood averaged over a step's response tokens, however it is cut into
    micro-batches; prompts carry none. Raises `TrainingError` if the loss is not finite.

    Args:
        start: the policy to start from, not changed.
        examples: (prompt, response) as token ids; `PromptTemplate.encode` closes responses with the end-of-sequence
            token, which is then trained.
        config: with `lora`, adapters are trained; what is saved is merged.
        context: of the training stage.
        setting: the config's name in a recipe ("sft"), for the advice in errors.
        counts: metrics to log at the last step, beside the number of examples.
        selection: chooses among the checkpoints; without it the last counts.
    """
    context.backend.seed(context.seed)
    policy = trainable_copy(start, config.lora)
    trainer = _Trainer(
        model=policy.model,
        args=trainer_arguments(SFTConfig, config, context, dataset_kwargs={"skip_prepare_dataset": True}),
        train_dataset=Dataset.from_list([labelled(*example) for example in examples]),
        processing_class=policy.tokenizer,
    )
    trainer.model_accepts_loss_kwargs = True  # count tokens over the step, whatever the model's own loss does
    candidates = CandidatePolicies(policy, selection) if selection else None
    run_trainer(trainer, context, setting, setting, candidates)
    counts = {**(counts or {}), **count_cut_prompts(examples, start, config.max_length)}
    context.log_metrics(trainer.state.global_step, {"examples": len(examples), **counts})
    policy.model = trained_model(trainer)
    return policy


def labelled(prompt: Sequence[int], response: Sequence[int]) -> dict[str, list[int] | int]:
    """Make a row of `input_ids`, `labels` (`IGNORED` over the prompt) and `length`."""
    return {
        "input_ids": [*prompt, *response],
        "labels": [IGNORED] * len(prompt) + list(response),
        "length": len(prompt) + len(response),
    }


class _Trainer(LengthSortedTrainer, SFTTrainer):
    """TRL's trainer with rows sorted by length, and logits of response tokens only, a chunk at a time."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Compute this micro-batch's share of the loss of a step with `num_items_in_batch` response tokens."""
        ids, mask, labels = inputs["input_ids"], inputs["attention_mask"], inputs["labels"]
        hidden, targets = before_responses(model, ids, mask, labels != IGNORED)
        loss = token_loss(model, hidden, targets, lambda logprobs: -logprobs.sum())
        return loss / num_items_in_batch * world_size()  # gradients are averaged over processes
