"""The trainer of both files: the mean of a loss over the examples of a step, however the step is cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from torch import Tensor
from transformers import Trainer, TrainingArguments

from afarm import MethodInputs, TrainContext
from afarm.backend import (
    CandidatePolicies,
    CheckpointPolicy,
    LengthSortedTrainer,
    all_gather_object,
    batched_logprobs,
    make_selection,
    run_trainer,
    switch_off_dropout,
    trainable_copy,
    trained_model,
    trainer_arguments,
    world_size,
)
from afarm_preferences import KTOConfig, PairwiseConfig

Batch = Mapping[str, Tensor]
Row = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt and of a response."""


class PreferenceTrainer(LengthSortedTrainer, Trainer):
    """Trains on examples whose batches have `p` [B], the labels. A subclass has the losses."""

    loss_is_scaled_for_ga = True

    def __init__(self, settings: KTOConfig | PairwiseConfig, **arguments: Any):
        super().__init__(**arguments)
        self.settings = settings
        self.noted: dict[str, list[float]] = defaultdict(list)

    def losses(self, batch: Batch) -> Tensor:
        """Compute the loss [B] of each example."""
        raise NotImplementedError

    def compute_loss(
        self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        # The mean over the examples of a step in all processes, which average gradients
        loss = self.losses(inputs).sum() / num_items_in_batch * world_size()
        return (loss, {}) if return_outputs else loss

    def _get_num_items_in_batch(self, batch_samples: list[Batch], device: Any) -> int:
        return sum(all_gather_object(sum(len(batch["p"]) for batch in batch_samples)))

    def note(self, values: Mapping[str, Tensor]) -> None:
        """Keep values of examples under a metric's name: it is their mean over a step, of all processes."""
        own = {name: value.detach().tolist() for name, value in values.items()}
        for of_process in all_gather_object(own):
            for name, numbers in of_process.items():
                self.noted[name] += numbers

    def log(self, logs: dict[str, float], *arguments: Any) -> None:
        super().log({**logs, **{name: fmean(of) for name, of in self.noted.items() if of}}, *arguments)
        self.noted.clear()


def train(
    kind: type[PreferenceTrainer],
    start: CheckpointPolicy,
    examples: Sequence[Mapping[str, Any]],
    collate: Callable[[Sequence[Mapping[str, Any]]], Batch],
    counts: Mapping[str, float],
    config: KTOConfig | PairwiseConfig,
    inputs: MethodInputs,
    context: TrainContext,
) -> CheckpointPolicy:
    """Train a copy of `start` on examples that have a `length`, and log `counts` at the end."""
    from datasets import Dataset

    context.backend.seed(context.seed)  # adapters start from random numbers
    policy = trainable_copy(start, config.lora)
    switch_off_dropout(policy.model)  # the reference's log-probabilities were read without
    trainer = kind(
        config,
        model=policy.model,
        args=trainer_arguments(TrainingArguments, config, context),
        train_dataset=Dataset.from_list(list(examples)),
        data_collator=collate,
        processing_class=start.tokenizer,
    )
    selection = make_selection(config, inputs, context)
    candidates = CandidatePolicies(policy, selection) if selection else None
    run_trainer(trainer, context, config.section, config.section, candidates)
    context.log_metrics(trainer.state.global_step, dict(counts))
    policy.model = trained_model(trainer)
    return policy


def summed_logprobs(policy: CheckpointPolicy, rows: Sequence[Row], batch_size: int) -> list[float]:
    """Compute the log-probability of each response to its prompt under `policy`, in nats."""
    prompts, responses = [prompt for prompt, _ in rows], [response for _, response in rows]
    return batched_logprobs(policy, prompts, responses, batch_size=batch_size).sum(-1).tolist()
