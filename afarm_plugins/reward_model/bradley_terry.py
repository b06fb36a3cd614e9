"""A Bradley–Terry reward model (AlpacaFarm, section 3.2 and App. B) on TRL's RewardTrainer.

P(output 2 is better) = σ(reward 2 − reward 1), fitted by cross-entropy against the label p2, which may be soft (a
weighted judge's). The model is the SFT policy's trunk with a scalar head on the last token of the response.
TRL's trainer takes hard pairs only and finds the last token by the pad token's id, which is wrong where that is also
the end-of-sequence token; the loss here replaces both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from trl import RewardConfig, RewardTrainer

from afarm.backend import (
    CheckpointPolicy,
    LengthSortedTrainer,
    TorchRewardModel,
    add_adapter,
    agreement,
    merge_adapter,
    pad,
    pair_accuracy,
    pair_rewards,
    train,
    trainer_arguments,
)
from afarm.backend.reward import last_token_scores
from afarm.errors import DataError, ModelError
from afarm.interfaces import Policy, TrainContext
from afarm.keyed import digest
from afarm.records import JudgedPair

if TYPE_CHECKING:
    from afarm_plugins.reward_model import RewardModelConfig


MEASURED_PAIRS = 1000
"""Training pairs that the training accuracy is measured on, at least."""


def preference_loss(
    reward_1: torch.Tensor, reward_2: torch.Tensor, p2: torch.Tensor, pairs: int | None = None
) -> torch.Tensor:
    """Cross-entropy (a scalar, nats) of σ(reward_2 − reward_1) against p2, all [B]: summed, and divided by `pairs`.

    `pairs` counts those of the whole step, of which these may be a part (default: B, for the mean).
    """
    return F.binary_cross_entropy_with_logits(reward_2 - reward_1, p2, reduction="sum") / (pairs or len(p2))


class BradleyTerryRewardModel(TorchRewardModel):
    """A reward model fitted to preferences."""

    @classmethod
    def fit(
        cls, preferences: Sequence[JudgedPair], start: Policy, config: RewardModelConfig, context: TrainContext
    ) -> BradleyTerryRewardModel:
        """Draws (unless `keep_draws`), unparsed and refused judgements are dropped and counted in the metrics.

        Raises `DataError` where nothing is left to learn from and `TrainingError` where the loss is not finite.
        """
        if not isinstance(start, CheckpointPolicy):
            raise ModelError(f"a reward model starts from a language model, not from a {type(start).__name__}")
        decided, counts = usable(preferences, config.keep_draws)
        training, held_out = split(decided, config.eval_fraction, context.seed)
        context.backend.seed(context.seed)
        model: Any = cls.classifier_from(start, config.head_init_std)
        if config.lora:
            model = add_adapter(model, config.lora, train_also=["score"])
        reward_model = cls(model, start.tokenizer, start.template, context.backend)
        examples, cut = tokenize(reward_model, training, config.max_length)
        trainer = SoftLabelTrainer(
            model=model,
            args=trainer_arguments(RewardConfig, config, context),
            train_dataset=Dataset.from_list(examples),
            data_collator=PairCollator(reward_model.pad_id),
            processing_class=start.tokenizer,
            optimizers=(optimizer(model, config), None),
        )
        train(trainer, context, "reward model", "bradley_terry")
        reward_model.model = merge_adapter(model)
        # One pass serves the scale and the accuracy: scoring costs a third of an epoch.
        half = math.ceil(config.standardize_outputs / 2)
        measured = training[: max(MEASURED_PAIRS, half)]
        first, second = pair_rewards(reward_model, measured)
        reward_model.standardize(first[:half] + second[:half])
        found = {**counts, "outputs_cut": float(cut), "train_accuracy": agreement(measured, first, second)}
        if held_out:
            found["eval_accuracy"] = pair_accuracy(reward_model, held_out)
            found["eval_pairs"] = float(len(held_out))
        context.log_metrics(trainer.state.global_step, {k: v for k, v in found.items() if not math.isnan(v)})
        return reward_model

    def standardize(self, rewards: Sequence[float]) -> None:
        """Shift and scale so that these rewards (given by this model as it is) have mean 0 and deviation 1."""
        if not rewards:
            return
        raw = torch.tensor(rewards, dtype=torch.float64) * self.std + self.mean
        deviation = float(raw.std(correction=0))
        # A model that has learned nothing gives every output one reward: shift it, and leave the scale.
        self.mean, self.std = float(raw.mean()), deviation if deviation > 1e-8 else 1.0


def usable(preferences: Sequence[JudgedPair], keep_draws: bool = False) -> tuple[list[JudgedPair], dict[str, float]]:
    """(those to learn from, all with a p2; how many there were of each outcome, as metrics).

    Raises `DataError` where none is left.
    """
    outcomes = Counter(j.preference.outcome for j in preferences)
    rows = [even(j) if keep_draws and j.preference.outcome == "draw" else j for j in preferences]
    found = [j for j in rows if j.p2 is not None]
    if not found:
        seen = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items()) or "no preferences at all"
        raise DataError(
            f"the reward model has nothing to learn from: {seen}. "
            "Check the annotator's answers, or choose another with --annotator"
        )
    counts = {f"pairs_{outcome}": float(n) for outcome, n in sorted(outcomes.items())}
    return found, {**counts, "pairs_left_out": float(len(preferences) - len(found))}


def even(judged: JudgedPair) -> JudgedPair:
    """A draw as a label to learn from: each output as likely to be the better one."""
    return replace(judged, preference=replace(judged.preference, p2=0.5, outcome="decided"))


def split(judged: Sequence[JudgedPair], fraction: float, seed: int) -> tuple[list[JudgedPair], list[JudgedPair]]:
    """(training, held out): `fraction` of the instructions, with all of their pairs, are held out.

    Which ones is drawn by key, so it does not depend on their order; at least one instruction stays in training.
    """
    ids = {j.pair.instruction.id for j in judged}
    ranked = sorted(ids, key=lambda i: digest(seed, "reward model's held-out split", i))
    out = set(ranked[: min(round(fraction * len(ranked)), len(ranked) - 1)])
    held_out = [j for j in judged if j.pair.instruction.id in out]
    return [j for j in judged if j.pair.instruction.id not in out], held_out


def tokenize(
    reward_model: TorchRewardModel, judged: Sequence[JudgedPair], max_length: int
) -> tuple[list[dict[str, Any]], int]:
    """(examples, with TRL's column names, and how many outputs were cut to `max_length`)."""
    instructions = [j.pair.instruction for j in judged]
    first, cut_1 = reward_model.template.encode(instructions, [j.pair.output_1 for j in judged], max_length)
    second, cut_2 = reward_model.template.encode(instructions, [j.pair.output_2 for j in judged], max_length)
    examples = [
        # TRL takes data with these two columns as tokenised. Which one is better is p2's to say.
        {
            "chosen_ids": [*p2, *r2],
            "rejected_ids": [*p1, *r1],
            "p_chosen": j.p2,
            "length": max(len(p1) + len(r1), len(p2) + len(r2)),
        }
        for (p1, r1), (p2, r2), j in zip(first, second, judged, strict=True)
    ]
    return examples, cut_1 + cut_2


@dataclass
class PairCollator:
    """Both outputs of each pair in one right-padded batch: the second ones first, as TRL orders chosen and rejected."""

    pad_id: int

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        sequences = [e["chosen_ids"] for e in examples] + [e["rejected_ids"] for e in examples]
        ids, mask = pad(sequences, self.pad_id)
        labels = torch.tensor([e["p_chosen"] for e in examples], dtype=torch.float32)
        return {"input_ids": ids, "attention_mask": mask, "p_chosen": labels}


class SoftLabelTrainer(LengthSortedTrainer, RewardTrainer):
    """TRL's trainer with the loss above, the mean over the pairs of a step however it is cut into micro-batches."""

    loss_is_scaled_for_ga = True

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, torch.Tensor]], device: torch.device) -> int:
        return sum(len(batch["p_chosen"]) for batch in batch_samples)

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        rewards = last_token_scores(self.accelerator.unwrap_model(model), inputs["input_ids"], inputs["attention_mask"])
        second, first = rewards.chunk(2)
        p2 = inputs["p_chosen"]
        loss = preference_loss(first, second, p2, num_items_in_batch)
        with torch.no_grad():
            agreement = ((second - first) * (p2 - 0.5) > 0).float()[p2 != 0.5]
            if len(agreement):
                self._metrics["train"]["accuracy"].append(agreement.mean().item())
            self._metrics["train"]["margin"].append((second - first).abs().mean().item())
        return (loss, {"rewards": rewards}) if return_outputs else loss


def optimizer(model: Any, config: RewardModelConfig) -> torch.optim.AdamW:
    """AdamW with the head in a group of its own, whose learning rate may differ."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    head = [p for name, p in trained if "score" in name.split(".")]
    trunk = [p for name, p in trained if "score" not in name.split(".")]
    groups: list[dict[str, Any]] = [
        {"params": trunk, "lr": config.learning_rate},
        {"params": head, "lr": config.head_learning_rate or config.learning_rate},
    ]
    return torch.optim.AdamW(groups, weight_decay=config.weight_decay)
