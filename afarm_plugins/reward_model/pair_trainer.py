"""TRL's reward trainer on soft labels, and early stopping on held-out pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import TrainerCallback
from trl import RewardTrainer

from afarm import JudgedPair, TrainContext
from afarm.backend import (
    LengthSortedTrainer,
    TorchRewardModel,
    all_gather_object,
    gathered_weights,
    last_token_scores,
    pad,
    pairwise_accuracy,
    parameter_groups,
    rank,
    world_size,
)
from afarm_plugins.reward_model import RewardModelConfig
from afarm_plugins.reward_model.calibration import calibration

BEST_WEIGHTS = "best.pt"
"""The file of a checkpoint with the best weights up to its step."""


def probabilities(raw_1: torch.Tensor, raw_2: torch.Tensor) -> list[float]:
    """Compute the probability that output 2 is better from raw rewards [N, K], averaged over members."""
    return (raw_2 - raw_1).double().sigmoid().mean(-1).tolist()


def collate_reward_pairs(pad_id: int, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Batch pairs in one right-padded tensor, second outputs first, as TRL's chosen ones."""
    ids, mask = pad([e["chosen_ids"] for e in examples] + [e["rejected_ids"] for e in examples], pad_id)
    labels = torch.tensor([e["p_chosen"] for e in examples], dtype=torch.float32)
    weights = torch.tensor([e["weights"] for e in examples], dtype=torch.float32)
    return {"input_ids": ids, "attention_mask": mask, "p_chosen": labels, "weights": weights}


def bradley_terry_loss(
    reward_1: Tensor, reward_2: Tensor, p2: Tensor, pairs: float | None = None, weights: Tensor | None = None
) -> Tensor:
    """Cross-entropy (in nats) of σ(reward_2 − reward_1) against the label p2, summed over `pairs`.

    Rewards and `weights` are [B], or [B, K] for K members, whose losses are averaged; p2 is [B]. `pairs` is the number
    in the whole step, of which these may be a part (default: B). Source: Dubois et al. 2023, section 3.2.
    """
    margin = reward_2 - reward_1
    label = p2.view(-1, *[1] * (margin.dim() - 1)).expand_as(margin)
    loss = F.binary_cross_entropy_with_logits(margin, label, weight=weights, reduction="sum")
    return loss / ((pairs or len(p2)) * margin[:1].numel())


class SoftLabelTrainer(LengthSortedTrainer, RewardTrainer):
    """TRL's trainer with `bradley_terry_loss`: the mean over a step's pairs, however it is cut."""

    loss_is_scaled_for_ga = True
    settings: RewardModelConfig

    def _optimizer(self) -> torch.optim.Optimizer:
        """Make AdamW with a group for the heads, whose learning rate may differ."""
        config = self.settings
        trained = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        head = [p for name, p in trained if "score" in name.split(".")]
        backbone = [p for name, p in trained if "score" not in name.split(".")]
        groups: list[dict[str, Any]] = [
            {"params": backbone, "lr": config.learning_rate},
            {"params": head, "lr": config.head_learning_rate or config.learning_rate},
        ]
        self.optimizer = torch.optim.AdamW(parameter_groups(groups), weight_decay=config.weight_decay)
        return self.optimizer

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, torch.Tensor]], device: torch.device) -> int:
        return sum(all_gather_object(sum(len(batch["p_chosen"]) for batch in batch_samples)))

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        rewards = last_token_scores(self.accelerator.unwrap_model(model), inputs["input_ids"], inputs["attention_mask"])
        second, first = rewards.chunk(2)
        p2 = inputs["p_chosen"]
        # The loss is a mean over the pairs of all processes, which average gradients.
        loss = bradley_terry_loss(first, second, p2, num_items_in_batch, inputs["weights"]) * world_size()
        with torch.no_grad():
            margin = (second - first).mean(-1)
            right = (0.5 + 0.5 * (margin * (p2 - 0.5)).sign())[p2 != 0.5]  # equal rewards count a half
            for accuracies, margins in all_gather_object((right.tolist(), margin.abs().tolist())):
                if accuracies:
                    self._metrics["train"]["accuracy"] += accuracies
                self._metrics["train"]["margin"] += margins
        return (loss, {"rewards": rewards}) if return_outputs else loss


@dataclass(eq=False)
class HeldOut(TrainerCallback):
    """A callback that measures held-out pairs every `eval_steps`, and stops when patience ends.

    The best weights are in the trainer's checkpoints too, so a killed stage ends the same.
    """

    reward_model: TorchRewardModel
    held_out: Sequence[JudgedPair]
    config: RewardModelConfig
    context: TrainContext
    best: dict[str, Any] = field(default_factory=lambda: {"loss": float("inf"), "step": 0, "since": 0, "weights": {}})

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        latest = self.context.checkpoints.latest()
        if latest and (latest[1] / BEST_WEIGHTS).is_file():
            self.best = torch.load(latest[1] / BEST_WEIGHTS, map_location="cpu", weights_only=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, patience = state.global_step, self.config.early_stopping_patience
        if patience is not None and self.best["since"] >= patience:
            # Killed after it had stopped: the trainer has taken another step, which `keep_best` undoes.
            control.should_training_stop = True
            return
        if step % self.config.eval_steps and step < state.max_steps:
            return
        metrics = self.measure()
        self.context.log_metrics(step, metrics)
        if patience is None:
            return
        if metrics["eval_loss"] < self.best["loss"]:
            weights = gathered_weights(dict(self._trained()))
            self.best = {"loss": metrics["eval_loss"], "step": step, "since": 0, "weights": weights}
        else:
            self.best["since"] += 1
            control.should_training_stop |= self.best["since"] >= patience

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.best["weights"] and rank() == 0:
            torch.save(self.best, Path(args.output_dir) / f"checkpoint-{state.global_step}" / BEST_WEIGHTS)

    def measure(self) -> dict[str, float]:
        """Measure `eval_loss` (nats) and `eval_accuracy` of the raw rewards."""
        first, second = self.reward_model.both(self.held_out)
        labels = [j.p2 for j in self.held_out if j.p2 is not None]
        loss: float = calibration(labels, probabilities(first, second))["loss"]
        accuracy = pairwise_accuracy(self.held_out, first.mean(-1).tolist(), second.mean(-1).tolist())
        return {"eval_loss": loss, "eval_accuracy": accuracy}

    def keep_best(self, step: int) -> None:
        """Restore the best weights after `step`, if there is a patience."""
        if not self.best["weights"]:
            return
        with torch.no_grad():
            for name, parameter in self._trained():
                parameter.copy_(self.best["weights"][name])
        self.context.log_metrics(step, {"best_step": float(self.best["step"]), "best_eval_loss": self.best["loss"]})

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self.reward_model.model.named_parameters() if p.requires_grad]
