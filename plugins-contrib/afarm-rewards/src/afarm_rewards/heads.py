"""Reward models with one or several heads on the policy's backbone, fitted to pairs with strengths or to numbers.

The heads are the labels of one sequence classifier: A numbers (attributes; 1 for pairs) for each of K members of an
ensemble, member by member. Laplace's model has one label for the reward and one for each direction of its uncertainty;
see `uncertainty.py`. The reward is the weighted sum of a member's numbers, standardised, less k standard deviations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import Trainer, TrainingArguments

from afarm import JudgedPair, ModelBackend, Output, Policy, Score, TrainContext, seeding
from afarm.backend import (
    CheckpointPolicy,
    LengthSortedTrainer,
    TorchRewardModel,
    add_adapter,
    all_gather_object,
    last_token_scores,
    pad,
    pairwise_accuracy,
    parameter_groups,
    plain_copy,
    require_checkpoint,
    run_trainer,
    switch_off_dropout,
    trainer_arguments,
    usable_pairs,
    world_size,
)
from afarm_rewards import HeadsConfig
from afarm_rewards.losses import curvature, pair_losses, squared_errors
from afarm_rewards.targets import numbers, split, with_numbers, with_strengths
from afarm_rewards.uncertainty import evidence_precision, head_with_directions, posterior_covariance

CARD = "afarm_rewards.json"
"""The file beside the weights with what `TorchRewardModel` does not keep."""


@dataclass(eq=False, repr=False)
class HeadRewardModel(TorchRewardModel):
    """A reward model whose rewards know several numbers, or how unsure they are.

    Args:
        weights: of the A numbers of each member, in the reward.
        uncertainty: "none", "ensemble", or "laplace", whose labels after the first are directions.
        conservatism: standard deviations that are taken off the reward.
    """

    _: KW_ONLY
    weights: Sequence[float] = (1.0,)
    uncertainty: str = "none"
    conservatism: float = 0.0

    def members(self, standardised: Tensor) -> Tensor:
        """Return the rewards [..., K] of the members from their labels [..., K · A]; K is 1 under Laplace."""
        labels = standardised[..., :1] if self.uncertainty == "laplace" else standardised
        weights = labels.new_tensor(list(self.weights))
        return labels.unflatten(-1, (-1, len(weights))) @ weights

    def spread(self, standardised: Tensor) -> Tensor:
        """Return the standard deviation [...] of the reward."""
        if self.uncertainty == "laplace":
            return standardised[..., 1:].norm(dim=-1)
        return self.members(standardised).std(-1, correction=0)

    def aggregated(self, members: Tensor) -> Tensor:
        """Aggregate standardised labels [..., L] into rewards [...]: mean − k · std."""
        mean = self.members(members).mean(-1)
        return mean - self.conservatism * self.spread(members) if self.conservatism else mean

    def score_outputs(self, outputs: Sequence[Output]) -> list[Score]:
        labels = self.member_rewards(outputs)
        values: list[float] = self.aggregated(labels).tolist()
        if self.uncertainty == "none":
            return [Score(value) for value in values]
        spreads = self.spread(labels).tolist()
        return [Score(value, spread=spread) for value, spread in zip(values, spreads, strict=True)]

    def scalar_head(self) -> tuple[Tensor, Tensor]:
        """See `TorchRewardModel.scalar_head`: of the mean reward, without conservatism."""
        base = getattr(self.model, "get_base_model", lambda: self.model)()
        head = base.score.weight.detach().float()  # [L, H]
        shown = self.standardised(torch.cat([head, torch.zeros_like(head[:, :1])], dim=-1).T)  # [H + 1, L]
        rewards = self.members(shown).mean(-1)
        return (rewards[:-1] - rewards[-1]).unsqueeze(0), rewards[-1:]

    def save(self, directory: Path) -> None:
        super().save(directory)
        card = {name: getattr(self, name) for name in ("weights", "uncertainty", "conservatism")}
        (Path(directory) / CARD).write_text(json.dumps(card) + "\n", "utf-8")

    @classmethod
    def read(cls, directory: Path, backend: ModelBackend) -> HeadRewardModel:
        loaded: Any = super().read(directory, backend)
        for name, value in json.loads((Path(directory) / CARD).read_text("utf-8")).items():
            setattr(loaded, name, value)
        return loaded

    @classmethod
    def fit(
        cls, preferences: Sequence[JudgedPair], start: Policy, config: HeadsConfig, context: TrainContext
    ) -> HeadRewardModel:
        """Fit to `preferences`, from the backbone of `start`. Raises `DataError` for what `targets` names."""
        start, predicts = require_checkpoint(start, config.section), config.loss == "regression"

        def is_usable(judged: JudgedPair) -> bool:
            return judged.win is not None if predicts else judged.p2 is not None

        pairs, counts = usable_pairs(preferences, is_usable, config.section, start, config.max_length)
        strengths, weights, dropped = [1.0] * len(pairs), {"": 1.0}, dict[str, float]()
        if predicts:
            pairs, weights, dropped = with_numbers(pairs, config)
        else:
            pairs, strengths, dropped = with_strengths(pairs, config)
        training, held_out = split(pairs, config.eval_fraction, partial(seeding.digest, context.seed, "held out"))
        context.backend.seed(context.seed)
        reward_model = cls.untrained(start, config, len(weights))
        examples, cut = encode(start, pairs, strengths, list(weights) if predicts else [], config, context.seed)
        scales = standardize_targets([examples[place] for place in training]) if predicts else [(0.0, 1.0)]
        reward_model.reads_cut_off = not all(ended for place in training for ended in pairs[place].pair.ended)
        for example in examples:  # targets in standard deviations, so that one learning rate fits all
            scaled = [
                [(t - mean) / std for t, (mean, std) in zip(one, scales, strict=False)] for one in example["targets"]
            ]
            example["targets"] = scaled
        step = reward_model.train(examples, training, config, context)

        measured, held = [pairs[place] for place in training], [pairs[place] for place in held_out]
        metrics = {**counts, **dropped, "outputs_cut": float(cut)}
        if held:
            errors = partial(reward_model.measure_numbers, scales=dict(zip(weights, scales, strict=True)))
            metrics |= errors(held) if predicts else reward_model.measure_odds(held)
        reward_model.weights = [weight * std for weight, (_, std) in zip(weights.values(), scales, strict=True)]
        if config.uncertainty == "laplace":
            metrics["prior_precision"] = reward_model.become_unsure(measured, [examples[p] for p in training], config)
        offsets = [-mean / std for mean, std in scales]
        sample = measured[: math.ceil(config.standardize_outputs / 2)]
        reward_model.standardize(torch.cat(reward_model.both(sample or measured[:1000])), None if sample else offsets)
        metrics |= reward_model.measure_rewards(measured[:1000], held)
        context.log_metrics(step, {name: value for name, value in metrics.items() if math.isfinite(value)})
        return reward_model

    @classmethod
    def untrained(cls, start: CheckpointPolicy, config: HeadsConfig, count: int) -> HeadRewardModel:
        """Put fresh heads for `count` numbers of each member, and adapters if configured, on the policy's backbone."""
        members = config.members if config.uncertainty == "ensemble" else 1
        width = start.model.config.get_text_config().hidden_size
        deviation = 0.0 if members == 1 else 1 / math.sqrt(width + 1)  # equal members would differ by their data alone
        model: Any = cls.make_classifier(start, deviation, members * count, share_weights=config.lora is not None)
        if config.lora:
            model = add_adapter(model, config.lora, train_also=["score"])
        settings: dict[str, Any] = {
            "weights": [1.0] * count,
            "uncertainty": config.uncertainty,
            "conservatism": config.conservatism,
        }
        aggregate: Any = "mean" if config.uncertainty == "none" else "penalised"
        return cls(model, start.tokenizer, start.template, start.backend, aggregate=aggregate, **settings)

    def train(
        self,
        examples: Sequence[Mapping[str, Any]],
        training: Sequence[int],
        config: HeadsConfig,
        context: TrainContext,
    ) -> int:
        """Train the model in place. Returns the last step."""
        switch_off_dropout(self.model)
        trainer = HeadsTrainer(
            model=self.model,
            args=trainer_arguments(TrainingArguments, config, context),
            train_dataset=Dataset.from_list([dict(examples[place]) for place in training]),
            data_collator=partial(collate, self.pad_id),
            processing_class=self.tokenizer,
        )
        trainer.settings, trainer.accuracies = config, []
        run_trainer(trainer, context, config.section, config.section)
        self.model = trainer.model
        return trainer.state.global_step

    def become_unsure(
        self, pairs: Sequence[JudgedPair], examples: Sequence[Mapping[str, Any]], config: HeadsConfig
    ) -> float:
        """Add the directions of Laplace's uncertainty to the head. Returns the prior's precision."""
        if hasattr(self.model, "merge_and_unload"):
            self.model = plain_copy(self.model)  # so that the head is a plain layer
        head, self.model.score = self.model.score, torch.nn.Identity()
        self.uncertainty = "none"
        first, second = (hidden.double() for hidden in self.both(pairs))  # [N, H] each
        weight = head.weight.detach().double().cpu()  # [A, H]
        if config.loss == "regression":
            features = torch.cat([first, second])
            targets = torch.tensor([e["targets"][side] for side in (0, 1) for e in examples], dtype=torch.float64)
            residuals = (features @ weight.T - targets).square().mean(0).clamp_min(1e-6)  # [A]
            features = features - features.mean(0)  # a mean reward is not unsure: rewards are relative
            informations = [features.T @ features / residual for residual in residuals]
        else:
            chosen = torch.tensor([e["chosen_is_second"] for e in examples]).unsqueeze(-1)
            features = torch.where(chosen, second - first, first - second)
            p, strength = (torch.tensor([e[n] for e in examples], dtype=torch.float64) for n in ("p", "strength"))
            curved = curvature(config.loss, features @ weight[0], p, strength)
            informations = [features.T @ (features * curved.unsqueeze(-1))]
        precisions = [evidence_precision(i, w) for i, w in zip(informations, weight, strict=True)]
        scaled = zip(informations, precisions, self.weights, strict=True)
        covariances = [scale**2 * posterior_covariance(*of_number) for *of_number, scale in scaled]
        mean = torch.tensor(list(self.weights), dtype=torch.float64) @ weight
        self.model.score = head_with_directions(mean, torch.stack(covariances).sum(0)).to(head.weight.device)
        self.model.config.num_labels = self.model.num_labels = len(self.model.score.weight)
        self.weights, self.uncertainty = [1.0], "laplace"
        return precisions[0]

    def standardize(self, raw: Tensor, offsets: Sequence[float] | None) -> None:
        """Set the labels' means and deviations so that members' rewards over raw labels [N, L] get mean 0, std 1.

        With `offsets` of the A numbers, rewards stay as they are: numbers in their units, or log odds.
        """
        raw = raw.double()
        rewards, centre = self.members(raw), raw.mean(0)  # [N, K], [L]
        deviations = rewards.std(0, correction=0)
        if offsets is not None:
            deviations = torch.ones_like(deviations)
            if self.uncertainty == "laplace":  # its one number is the sum; directions are relative to the mean
                centre[0] = sum(offsets) if len(offsets) == 1 else 0.0
            else:
                centre = raw.new_tensor([*offsets] * rewards.shape[-1])
        # A model that learned nothing gives all outputs one reward: leave its scale.
        deviations = torch.where(deviations > 1e-8, deviations, 1.0)
        self.mean = centre.tolist()
        self.std = deviations.repeat_interleave(raw.shape[-1] // len(deviations)).tolist()

    def measure_rewards(self, training: Sequence[JudgedPair], held_out: Sequence[JudgedPair]) -> dict[str, float]:
        """Measure how often the preferred output has the higher reward, and the mean spread."""
        metrics = {}
        for name, pairs in {"train": training, "eval": held_out}.items():
            if pairs:
                first, second = self.both(pairs)
                values = [self.aggregated(labels).tolist() for labels in (first, second)]
                metrics[f"{name}_accuracy"] = pairwise_accuracy(pairs, *values)
        if held_out:
            metrics["eval_pairs"] = float(len(held_out))
            metrics |= {} if self.uncertainty == "none" else {"eval_spread": self.spread(first).mean().item()}
        return metrics

    def measure_odds(self, pairs: Sequence[JudgedPair]) -> dict[str, float]:
        """Measure raw rewards as log odds: cross-entropy in nats and Brier score, members' probabilities averaged."""
        first, second = (labels.double() for labels in self.both(pairs))
        p2 = torch.tensor([judged.p2 for judged in pairs], dtype=torch.float64)
        p = (second - first).sigmoid().mean(-1).clamp(1e-12, 1 - 1e-12)
        loss = torch.nn.functional.binary_cross_entropy(p, p2)
        return {"eval_loss": loss.item(), "eval_brier": (p - p2).square().mean().item()}

    def measure_numbers(
        self, pairs: Sequence[JudgedPair], scales: Mapping[str, tuple[float, float]]
    ) -> dict[str, float]:
        """Measure raw predictions, averaged over members: mean squared error in their units, and correlation."""
        raw = torch.cat(self.both(pairs)).unflatten(-1, (-1, len(scales))).mean(-2)  # [2N, A]
        metrics = {}
        for number, (name, (mean, std)) in enumerate(scales.items()):
            both = [numbers(judged, name) or (math.nan, math.nan) for judged in pairs]
            target = raw.new_tensor([one for one, _ in both] + [two for _, two in both])
            predicted = raw[:, number] * std + mean
            metrics[f"eval_mse_{name}"] = (predicted - target).square().mean().item()
            metrics[f"eval_correlation_{name}"] = torch.corrcoef(torch.stack([predicted, target]))[0, 1].item()
        return metrics


def encode(
    start: CheckpointPolicy,
    pairs: Sequence[JudgedPair],
    strengths: Sequence[float],
    names: Sequence[str],
    config: HeadsConfig,
    seed: int,
) -> tuple[list[dict[str, Any]], int]:
    """Encode one example per pair, and count how many outputs were cut.

    `chosen` and `rejected` are token ids, `p` the probability that the chosen one is better, `strength` the pair's,
    `targets` the numbers `names` of output 1 and 2, `weights` the pair's weight for each member.
    """
    first, second, cut = start.encode_pairs(pairs, config.max_length)
    members = config.members if config.uncertainty == "ensemble" else 1
    examples = list[dict[str, Any]]()
    for one, two, judged, strength in zip(first, second, pairs, strengths, strict=True):
        p2 = 0.5 if judged.p2 is None else judged.p2
        both = [numbers(judged, name) or (math.nan, math.nan) for name in names]
        ids = [[*prompt, *response] for prompt, response in (one, two)]
        draws = [-math.log1p(-seeding.uniform(seed, "bootstrap", m, judged.pair.id)) for m in range(members)]
        examples.append(
            {
                "chosen": ids[p2 >= 0.5],
                "rejected": ids[p2 < 0.5],
                "chosen_is_second": p2 >= 0.5,
                "p": max(p2, 1 - p2),
                "strength": strength,
                "targets": [[pair[side] for pair in both] for side in (0, 1)],
                "weights": draws if members > 1 else [1.0],
                "length": max(map(len, ids)),
            }
        )
    for member in range(members if members > 1 else 0):  # weights of mean 1: Rubin's Bayesian bootstrap
        mean = sum(example["weights"][member] for example in examples) / len(examples)
        for example in examples:
            example["weights"][member] /= mean
    return examples, cut


def standardize_targets(examples: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return the mean and the standard deviation of each target."""
    targets = torch.tensor([one for example in examples for one in example["targets"]], dtype=torch.float64)
    deviations = targets.std(0, correction=0)
    deviations = torch.where(deviations > 1e-8, deviations, 1.0)
    return list(zip(targets.mean(0).tolist(), deviations.tolist(), strict=True))


def collate(pad_id: int, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Batch B pairs as 2B rows, the chosen outputs first: `targets` is [2B, A], `weights` [B, K], the others [B]."""
    ids, mask = pad([example[side] for side in ("chosen", "rejected") for example in examples], pad_id)
    turned = [example["targets"][:: -1 if example["chosen_is_second"] else 1] for example in examples]
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "p": torch.tensor([example["p"] for example in examples]),
        "strength": torch.tensor([example["strength"] for example in examples]),
        "targets": torch.tensor([both[side] for side in (0, 1) for both in turned]),
        "weights": torch.tensor([example["weights"] for example in examples]),
    }


class HeadsTrainer(LengthSortedTrainer, Trainer):
    """Minimises the mean over a step's pairs of the config's loss, averaged over members, however the step is cut."""

    loss_is_scaled_for_ga = True
    settings: HeadsConfig
    accuracies: list[float]

    def _optimizer(self) -> torch.optim.Optimizer:
        config = self.settings
        trained = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        heads = [p for name, p in trained if "score" in name.split(".")]
        backbone = [p for name, p in trained if "score" not in name.split(".")]
        rates = [(backbone, config.learning_rate), (heads, config.head_learning_rate or config.learning_rate)]
        groups = [{"params": parameters, "lr": rate} for parameters, rate in rates]
        self.optimizer = torch.optim.AdamW(parameter_groups(groups), weight_decay=config.weight_decay)
        return self.optimizer

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> int:
        return sum(all_gather_object(sum(len(batch["p"]) for batch in batch_samples)))

    def compute_loss(
        self, model: Any, inputs: Mapping[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = last_token_scores(self.accelerator.unwrap_model(model), inputs["input_ids"], inputs["attention_mask"])
        p, weights = inputs["p"].unsqueeze(-1), inputs["weights"]
        if self.settings.loss == "regression":
            predicted = labels.unflatten(-1, (weights.shape[-1], -1))  # [2B, K, A]
            losses, rewards = squared_errors(predicted, inputs["targets"]), predicted.mean((-1, -2))
        else:
            chosen, rejected = labels.chunk(2)  # [B, K] each
            losses = pair_losses(self.settings.loss, chosen - rejected, p, inputs["strength"].unsqueeze(-1))
            rewards = labels.mean(-1)
        if self.settings.loss != "regression":
            better, worse = rewards.detach().chunk(2)
            right = (0.5 + 0.5 * (better - worse).sign())[inputs["p"] > 0.5]
            self.accuracies += [one for of_process in all_gather_object(right.tolist()) for one in of_process]
        # The mean over the pairs of a step in all processes, which average gradients
        loss = (weights * losses).mean(-1).sum() / num_items_in_batch * world_size()
        return (loss, {}) if return_outputs else loss

    def log(self, logs: dict[str, float], *arguments: Any) -> None:
        if self.accuracies:
            logs = {**logs, "accuracy": sum(self.accuracies) / len(self.accuracies)}
        super().log(logs, *arguments)
        self.accuracies.clear()
