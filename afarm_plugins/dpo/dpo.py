"""Direct preference optimisation (Rafailov et al. 2023; AlpacaFarm, App. A and B) on TRL's DPOTrainer.

With h = log π(chosen)/π_ref(chosen) − log π(rejected)/π_ref(rejected), the loss per pair is −log σ(β h). The reference
is the start policy, which reads all pairs once, before training. Deviations from TRL and the paper, and why:
`docs/methods/dpo.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor
from trl import DPOConfig as TRLConfig
from trl import DPOTrainer

from afarm import JudgedPair, MethodInputs, TrainContext
from afarm.backend import (
    CandidatePolicies,
    CheckpointPolicy,
    LengthSortedTrainer,
    all_gather_object,
    batched_logprobs,
    join_and_pad,
    make_selection,
    require_checkpoint,
    response_logprobs,
    run_trainer,
    switch_off_dropout,
    trainable_copy,
    trained_model,
    trainer_arguments,
    usable_pairs,
    world_size,
)
from afarm_plugins.dpo import DPOConfig


def train_dpo(config: DPOConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`. Raises `DataError` if there is nothing to learn from."""
    start = require_checkpoint(inputs.start, "dpo")

    def is_usable(judged: JudgedPair) -> bool:
        return judged.p2 is not None or (config.keep_draws and judged.preference.outcome == "draw")

    pairs, counts = usable_pairs(inputs.preferences, is_usable, "dpo", start, config.max_length)
    examples, cut = pair_examples(start, pairs, config.max_length)
    batch_size = config.per_device_train_batch_size
    for example, logps in zip(examples, reference_logps(start, examples, batch_size), strict=True):
        example["reference_logps"] = logps
    context.backend.seed(context.seed)
    policy = trainable_copy(start, config.lora)
    switch_off_dropout(policy.model)  # the reference's log-probabilities were read without
    trainer = SoftLabelDPOTrainer(
        model=policy.model,
        args=trainer_arguments(
            TRLConfig,
            config,
            context,
            beta=config.beta,
            precompute_ref_log_probs=True,  # so that no reference model is loaded
            disable_dropout=False,  # TRL would switch off the adapters' dropout too
        ),
        train_dataset=Dataset.from_list(examples),
        data_collator=partial(collate_preferences, start.pad_id),
        processing_class=start.tokenizer,
    )
    trainer.settings = config
    if config.lora:
        trainer.model.delete_adapter("ref")  # TRL's own reference, which is not used
    selection = make_selection(config, inputs, context)
    candidates = CandidatePolicies(policy, selection) if selection else None
    run_trainer(trainer, context, "dpo", "dpo", candidates)
    context.log_metrics(trainer.state.global_step, {**counts, "outputs_cut": cut})
    policy.model = trained_model(trainer)
    return policy


def pair_examples(
    policy: CheckpointPolicy, pairs: Sequence[JudgedPair], max_length: int
) -> tuple[list[dict[str, Any]], int]:
    """Encode one example per pair, and count how many outputs were cut.

    An example has `chosen` and `rejected`, each (prompt, response), `p_chosen` and `length`. The chosen output is the
    one that the label prefers, or the second of a draw.
    """
    p2 = [0.5 if judged.p2 is None else judged.p2 for judged in pairs]
    first, second, cut = policy.encode_pairs(pairs, max_length)
    examples = [
        {
            "chosen": example_2 if probability >= 0.5 else example_1,
            "rejected": example_1 if probability >= 0.5 else example_2,
            "p_chosen": max(probability, 1 - probability),
            "length": max(sum(map(len, example_1)), sum(map(len, example_2))),
        }
        for example_1, example_2, probability in zip(first, second, p2, strict=True)
    ]
    return examples, cut


def reference_logps(policy: CheckpointPolicy, examples: Sequence[dict[str, Any]], batch_size: int) -> list[list[float]]:
    """Compute the log-probabilities of each example's responses under `policy`: (chosen, rejected)."""
    rows = [e["chosen"] for e in examples] + [e["rejected"] for e in examples]
    prompts, responses = [prompt for prompt, _ in rows], [response for _, response in rows]
    logps = batched_logprobs(policy, prompts, responses, batch_size=2 * batch_size).sum(-1)
    return torch.stack(logps.chunk(2), dim=1).tolist()


def collate_preferences(pad_id: int, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Batch both outputs of pairs behind their prompt, chosen ones first, right-padded to [2B, T]."""
    rows = [e["chosen"] for e in examples] + [e["rejected"] for e in examples]
    batch = join_and_pad([prompt for prompt, _ in rows], [response for _, response in rows], pad_id)
    return {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "response_mask": batch.response_mask,
        "reference_logps": torch.tensor([e["reference_logps"] for e in examples]).T.flatten(),
        "p_chosen": torch.tensor([e["p_chosen"] for e in examples]),
    }


PREFERENCE_LOSSES: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "sigmoid": lambda margin, beta: -F.logsigmoid(beta * margin),
    "hinge": lambda margin, beta: torch.relu(1 - beta * margin),
    "ipo": lambda margin, beta: (margin - 1 / (2 * beta)) ** 2,
}
"""Losses [B] of surely ordered pairs, from margins [B] (chosen − rejected log ratio) and beta.

sigmoid: Rafailov et al. 2023, eq. 7. hinge: Zhao et al. 2023, on log ratios. ipo: Azar et al. 2023, eq. 17.
"""


def preference_losses(
    margins: Tensor, p_chosen: Tensor, loss_type: str, beta: float, label_smoothing: float = 0.0
) -> Tensor:
    """Loss [B] of DPO and its relatives, with labels that may be soft.

    The expected loss over both orders, where `p_chosen` [B] is the probability that the chosen output is better; for
    sigmoid, the cross-entropy of σ(beta · margin) against it. `label_smoothing` ε first turns p into (1 − ε)·p +
    ε·(1 − p). `loss_type` is sigmoid, hinge or ipo. `margins` [B] are differences of summed log ratios, for ipo of
    per-token means.
    """
    p = p_chosen * (1 - 2 * label_smoothing) + label_smoothing
    loss = PREFERENCE_LOSSES[loss_type]
    return p * loss(margins, beta) + (1 - p) * loss(-margins, beta)


class SoftLabelDPOTrainer(LengthSortedTrainer, DPOTrainer):
    """TRL's trainer with `preference_losses`, on tokenised examples with the reference's log-probs."""

    loss_is_scaled_for_ga = True
    settings: DPOConfig

    def _prepare_dataset(self, dataset: Dataset, *args: Any) -> Dataset:
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, *args: Any) -> Dataset:
        return dataset

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, torch.Tensor]], device: torch.device) -> int:
        return sum(all_gather_object(sum(len(batch["p_chosen"]) for batch in batch_samples)))

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        p_chosen, reference = inputs["p_chosen"], inputs["reference_logps"]
        batch = (inputs[name] for name in ("input_ids", "attention_mask", "response_mask"))
        logps = response_logprobs(self.accelerator.unwrap_model(model), *batch).sum(-1)  # [2B], the end's included
        ratios = logps - reference
        if self.settings.loss_type == "ipo":
            ratios = ratios / inputs["response_mask"].sum(-1)
        chosen, rejected = ratios.chunk(2)
        loss_type, beta, smoothing = self.settings.loss_type, self.settings.beta, self.settings.label_smoothing
        losses = preference_losses(chosen - rejected, p_chosen, loss_type, beta, smoothing)
        self._note(p_chosen, beta * (logps - reference).detach(), logps.detach())
        # The loss is a mean over the pairs of all processes, which average gradients.
        loss = losses.sum() / (num_items_in_batch or len(losses)) * world_size()
        return (loss, {"logps": logps}) if return_outputs else loss

    def _note(self, p_chosen: torch.Tensor, rewards: torch.Tensor, logps: torch.Tensor) -> None:
        """Record TRL's metrics, a value per pair; the logged ones are means over the pairs of a step."""
        chosen, rejected = rewards.chunk(2)
        values_by_name = {
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/margins": chosen - rejected,
            "rewards/accuracies": (chosen > rejected).float()[p_chosen > 0.5],
            "logps/chosen": logps.chunk(2)[0],
            "logps/rejected": logps.chunk(2)[1],
        }
        for process_values in all_gather_object({name: values.tolist() for name, values in values_by_name.items()}):
            for name, numbers in process_values.items():
                if numbers:
                    self._metrics["train"][name] += numbers
