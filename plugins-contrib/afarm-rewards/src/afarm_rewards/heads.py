"""Reward models with heads on the policy's backbone, fitted to pairs with strengths or to numbers.

While it is fitted, a sequence classifier has a label for each of A numbers (attributes; 1 for pairs) of each of K
members of an ensemble, member by member. Then a member's numbers are added up into one label, so that what is stored is
an ensemble as any other `TorchRewardModel`: its reward is the members' mean, less k times their standard deviation.
Laplace's uncertainty is such an ensemble too; see `uncertainty.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import Trainer, TrainingArguments

from afarm import JudgedPair, Policy, TrainContext, seeding
from afarm.backend import (
    CheckpointPolicy,
    LengthSortedTrainer,
    TorchRewardModel,
    add_adapter,
    all_gather_object,
    hold_out,
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
from afarm_rewards.targets import numbers, with_numbers, with_strengths
from afarm_rewards.uncertainty import evidence_precision, posterior_covariance, sigma_points


class HeadRewardModel(TorchRewardModel):
    """A reward model fitted by `HeadsConfig`."""

    @classmethod
    def fit(
        cls, preferences: Sequence[JudgedPair], start: Policy, config: HeadsConfig, context: TrainContext
    ) -> HeadRewardModel:
        """Fit to `preferences`, from the backbone of `start`. Raises `DataError` for what `targets` names."""
        start, predicts = require_checkpoint(start, config.section), config.loss == "regression"

        def is_usable(judged: JudgedPair) -> bool:
            return judged.win is not None if predicts else judged.p2 is not None

        pairs, counts = usable_pairs(preferences, is_usable, config.section, start, config.max_length)
        if predicts:
            pairs, weights, dropped = with_numbers(pairs, config)
            strengths = [1.0] * len(pairs)
        else:
            pairs, strengths, dropped = with_strengths(pairs, config)
            weights = {"": 1.0}
        training, held_out = hold_out(pairs, config.eval_fraction, partial(seeding.digest, context.seed, "held out"))
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
        added = torch.tensor([weight * std for weight, (_, std) in zip(weights.values(), scales, strict=True)])
        if config.uncertainty == "laplace":
            learned = [examples[place] for place in training]
            metrics["prior_precision"] = reward_model.become_unsure(measured, learned, added.double(), config)
        elif predicts:
            heads = reward_model.head.unflatten(0, (-1, len(weights)))  # [K, A, H]
            reward_model.set_head(torch.einsum("kah,a->kh", heads, added.to(heads)))
        offset = sum(weight * mean for weight, (mean, _) in zip(weights.values(), scales, strict=True))
        sample = measured[: math.ceil(config.standardize_outputs / 2)]
        raw = torch.cat(reward_model.both(sample or measured[:1000]))
        reward_model.standardize(raw, config.uncertainty == "laplace", None if sample else offset)
        metrics |= reward_model.measure_rewards(measured[:1000], held)
        context.log_metrics(step, {name: value for name, value in metrics.items() if math.isfinite(value)})
        return reward_model

    @classmethod
    def untrained(cls, start: CheckpointPolicy, config: HeadsConfig, count: int) -> HeadRewardModel:
        """Put fresh heads for `count` numbers of each member, and adapters, on the policy's backbone."""
        members = config.members if config.uncertainty == "ensemble" else 1
        width = start.model.config.get_text_config().hidden_size
        deviation = 0.0 if members == 1 else 1 / math.sqrt(width + 1)  # equal members would differ by their data alone
        model: Any = cls.make_classifier(start, deviation, members * count, share_weights=config.lora is not None)
        if config.lora:
            model = add_adapter(model, config.lora, train_also=["score"])
        policy, penalty = (start.tokenizer, start.template, start.backend), config.conservatism
        return cls(model, *policy, aggregate="penalised" if penalty else "mean", spread_penalty=penalty)

    @property
    def head(self) -> Tensor:
        """The weights [L, H] of the heads, without gradient."""
        base = getattr(self.model, "get_base_model", lambda: self.model)()
        weight: Tensor = base.score.weight.detach()
        return weight

    def set_head(self, weight: Tensor | None) -> None:
        """Replace the heads by weights [L, H], adapters merged; None shows hidden states in their place."""
        if hasattr(self.model, "merge_and_unload"):
            self.model = plain_copy(self.model)
        if weight is None:
            self.model.score = torch.nn.Identity()
            return
        device = next(self.model.parameters()).device
        self.model.score = torch.nn.Linear(weight.shape[1], len(weight), bias=False, device=device)
        self.model.score.weight.data.copy_(weight)
        self.model.config.num_labels = self.model.num_labels = len(weight)

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
        self, pairs: Sequence[JudgedPair], examples: Sequence[Mapping[str, Any]], added: Tensor, config: HeadsConfig
    ) -> float:
        """Put Laplace's ensemble in the place of the heads of A numbers, weighed by `added` [A].

        Returns the prior's precision, that of the first number.
        """
        weight = self.head.double().cpu()  # [A, H]
        self.set_head(None)
        first, second = (hidden.double() for hidden in self.both(pairs))  # [N, H] each
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
        covariances = [posterior_covariance(*of_number) for of_number in zip(informations, precisions, strict=True)]
        covariance = torch.einsum("ahg,a->hg", torch.stack(covariances), added.square())
        self.set_head(sigma_points(added @ weight, covariance))
        return precisions[0]

    def standardize(self, raw: Tensor, is_unsure: bool, offset: float | None) -> None:
        """Set the members' means and deviations so that rewards over raw labels [N, K] get mean 0, std 1.

        Members of Laplace's ensemble (`is_unsure`) have the deviation of their mean. With an `offset`, which is added,
        rewards stay as they are: numbers in their units, or log odds.
        """
        raw = raw.double()
        deviations = (raw.mean(-1, keepdim=True).expand_as(raw) if is_unsure else raw).std(0, correction=0)
        centre = raw.mean(0)
        if offset is not None:
            deviations = torch.ones_like(deviations)
            centre = (centre - centre.mean() if is_unsure else torch.zeros_like(centre)) - offset
        # A model that learned nothing gives all outputs one reward: leave its scale.
        deviations = torch.where(deviations > 1e-8, deviations, 1.0)
        one = len(centre) == 1
        self.mean, self.std = (x.squeeze().tolist() if one else x.tolist() for x in (centre, deviations))

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
            metrics |= {"eval_spread": first.std(-1, correction=0).mean().item()} if first.shape[-1] > 1 else {}
        return metrics

    def measure_odds(self, pairs: Sequence[JudgedPair]) -> dict[str, float]:
        """Measure raw rewards as log odds, members averaged: cross-entropy in nats and Brier score."""
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
    """Batch B pairs as 2B rows, chosen first: `targets` is [2B, A], `weights` [B, K], others [B]."""
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
    """Minimises the mean over a step's pairs of the config's loss, averaged over members."""

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
