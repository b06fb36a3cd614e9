"""Bradley–Terry reward models (AlpacaFarm, section 3.2 and App. B) and ensembles, on TRL's trainer.

P(output 2 is better) = σ(reward 2 − reward 1), fitted by cross-entropy against the label p2, which may be soft. The
model is the SFT policy's backbone with a scalar head on the response's last token. TRL's trainer takes hard pairs only
and finds the last token by the pad token's id, which may be the end-of-sequence token's; the loss in `pair_trainer.py`
replaces both.

The members of an ensemble have their own heads, and their own weights of the same pairs by a Bayesian bootstrap (Rubin
1981). Heads on one backbone are fitted together, adapters one after the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import RewardConfig

from afarm import JudgedPair, Policy, TrainContext, seeding
from afarm.backend import (
    CheckpointPolicy,
    TorchRewardModel,
    add_adapter,
    continued_context,
    hold_out,
    pairwise_accuracy,
    require_checkpoint,
    run_trainer,
    switch_off_dropout,
    trainer_arguments,
    usable_pairs,
)
from afarm_plugins.reward_model import RewardModelConfig
from afarm_plugins.reward_model.calibration import calibration, margins
from afarm_plugins.reward_model.pair_trainer import HeldOut, SoftLabelTrainer, collate_reward_pairs, probabilities

MEASURED_PAIRS = 1000
"""The fewest training pairs that the training accuracy is measured on."""


class BradleyTerryRewardModel(TorchRewardModel):
    """A reward model fitted to preferences."""

    @classmethod
    def fit(
        cls, preferences: Sequence[JudgedPair], start: Policy, config: RewardModelConfig, context: TrainContext
    ) -> BradleyTerryRewardModel:
        """Fit a reward model to `preferences`, from the backbone of `start`.

        Draws (unless `keep_draws`) and unusable judgements are dropped and counted in the metrics. Writes
        `calibration.json` into the context's directory if pairs are held out. Raises `DataError` if no pair is left.
        """
        start = require_checkpoint(start, "bradley_terry")
        decided, counts = usable(preferences, config.keep_draws, start, config.max_length)
        draw = partial(seeding.digest, context.seed, "reward model's held-out split")
        parts = hold_out(decided, config.eval_fraction, draw)
        training, held_out = ([decided[place] for place in part] for part in parts)
        context.backend.seed(context.seed)
        reward_model = cls.untrained(start, config)
        examples, cut = tokenize(start, training, config.max_length)
        reward_model.reads_cut_off = not all(ended for j in training for ended in j.pair.ended)
        for example, weights in zip(examples, bootstrap_weights(training, config.ensemble, context.seed), strict=True):
            example["weights"] = weights
        step = 0
        for number in range(len(reward_model.adapters) or 1):
            step = fit_member(reward_model, number, examples, held_out, config, context)
        metrics = {
            **counts,
            "outputs_cut": float(cut),
            **reward_model.finish(training, held_out, config, context.directory),
        }
        context.log_metrics(step, {name: value for name, value in metrics.items() if not math.isnan(value)})
        return reward_model

    @classmethod
    def untrained(cls, start: CheckpointPolicy, config: RewardModelConfig) -> BradleyTerryRewardModel:
        """Put fresh heads, and adapters if configured, on the policy's backbone."""
        has_own_adapters = config.members == "adapters" and config.ensemble > 1
        deviation = config.head_init_std
        if deviation is None:  # equal members would differ by their data alone
            width = start.model.config.get_text_config().hidden_size
            deviation = 0.0 if config.ensemble == 1 else 1 / math.sqrt(width + 1)
        labels = 1 if has_own_adapters else config.ensemble
        model: Any = cls.make_classifier(start, deviation, labels, share_weights=config.lora is not None)
        if config.lora:
            model = add_adapter(model, config.lora, train_also=["score"])
        adapters = ["default", *(f"member_{m}" for m in range(1, config.ensemble))] if has_own_adapters else []
        for name in adapters[1:]:
            assert config.lora is not None  # members=adapters is refused without
            model = add_adapter(model, config.lora, train_also=["score"], name=name)
            with torch.no_grad():
                model.get_base_model().score.modules_to_save[name].weight.normal_(0.0, deviation)
        return cls(
            model,
            start.tokenizer,
            start.template,
            start.backend,
            aggregate=config.aggregate,
            spread_penalty=config.spread_penalty,
            adapters=adapters,
        )

    def finish(
        self,
        training: Sequence[JudgedPair],
        held_out: Sequence[JudgedPair],
        config: RewardModelConfig,
        directory: Path,
    ) -> dict[str, float]:
        """Standardise the raw rewards and measure them: as metrics, and in full in `calibration.json`."""
        # One pass for the scale and the accuracy: scoring costs a third of an epoch.
        half = math.ceil(config.standardize_outputs / 2)
        measured = training[: max(MEASURED_PAIRS, half)]
        first, second = self.both(measured)
        raw = self.both(held_out)
        self.standardize(torch.cat([first[:half], second[:half]]))
        metrics = {"train_accuracy": pairwise_accuracy(measured, self.rewards(first), self.rewards(second))}
        if not held_out:
            return metrics
        rewards_1, rewards_2 = self.rewards(raw[0]), self.rewards(raw[1])
        labels = [j.p2 for j in held_out if j.p2 is not None]
        measures = calibration(labels, probabilities(*raw))
        metrics["eval_accuracy"] = pairwise_accuracy(held_out, rewards_1, rewards_2)
        metrics |= {f"eval_{name}": measures[name] for name in ("loss", "brier", "ece")}
        metrics["eval_pairs"] = float(len(held_out))
        if config.ensemble > 1:
            metrics["eval_spread"] = self.standardised(torch.cat(raw)).std(-1, correction=0).mean().item()
        differences = [reward_2 - reward_1 for reward_1, reward_2 in zip(rewards_1, rewards_2, strict=True)]
        record = {"pairs": len(held_out), "accuracy": metrics["eval_accuracy"], **measures}
        record["margins"] = margins(labels, differences)
        (directory / "calibration.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
        return metrics

    def rewards(self, raw: torch.Tensor) -> list[float]:
        """Standardise and aggregate raw rewards [N, K]: one per row."""
        return self.aggregated(self.standardised(raw)).tolist()

    def standardize(self, raw: torch.Tensor) -> None:
        """Set each member's mean and std so that these raw rewards [N, K] get mean 0 and std 1."""
        if not len(raw):
            return
        raw = raw.double()
        deviations = raw.std(0, correction=0)
        # A model that learned nothing gives all outputs one reward: leave its scale.
        deviations = torch.where(deviations > 1e-8, deviations, 1.0)
        self.mean, self.std = raw.mean(0).squeeze().tolist(), deviations.squeeze().tolist()


def fit_member(
    reward_model: BradleyTerryRewardModel,
    number: int,
    examples: Sequence[dict[str, Any]],
    held_out: Sequence[JudgedPair],
    config: RewardModelConfig,
    context: TrainContext,
) -> int:
    """Fit one member, or all of them if they are heads, in place. Returns the last step.

    A member before the newest checkpoint's, which holds all adapters, is finished and not fitted again. `number` is the
    adapter's; `examples` have a weight per member; `held_out` pairs are for measuring.
    """
    model, adapter = reward_model.model, reward_model.adapters[number : number + 1]
    per_epoch = math.ceil(len(examples) / (config.per_device_train_batch_size * config.gradient_accumulation_steps))
    steps = math.ceil(per_epoch * config.num_train_epochs)
    begin, latest = number * steps, context.checkpoints.latest()
    if latest and latest[0] > begin + steps:
        return begin + steps
    if adapter:
        model.set_adapter(adapter[0])
        examples = [{**e, "weights": [e["weights"][number]]} for e in examples]
    tokenizer, template = reward_model.tokenizer, reward_model.template
    member_model = TorchRewardModel(
        model, tokenizer, template, context.backend, adapters=adapter, reads_cut_off=reward_model.reads_cut_off
    )
    member_context = continued_context(context, begin, seed=context.seed + number)
    callbacks = [HeldOut(member_model, held_out, config, member_context)] if config.eval_steps and held_out else []
    switch_off_dropout(model)
    labels, model.config.num_labels = model.config.num_labels, 1  # TRL takes no more; the loss here does
    trainer = SoftLabelTrainer(
        model=model,
        # TRL would switch off the adapters' dropout too
        args=trainer_arguments(RewardConfig, config, member_context, disable_dropout=False),
        train_dataset=Dataset.from_list(list(examples)),
        data_collator=partial(collate_reward_pairs, reward_model.pad_id),
        processing_class=reward_model.tokenizer,
        callbacks=callbacks,
    )
    model.config.num_labels = labels
    trainer.settings = config
    run_trainer(trainer, member_context, "reward model" + f" {number + 1}" * bool(adapter), "bradley_terry")
    reward_model.model = member_model.model = trainer.model
    for callback in callbacks:
        callback.keep_best(trainer.state.global_step)
    return begin + trainer.state.global_step


def bootstrap_weights(judged: Sequence[JudgedPair], members: int, seed: int) -> list[list[float]]:
    """Weigh each pair for each member, 1 on average, by the Bayesian bootstrap's keyed exponential draws."""
    if members == 1:
        return [[1.0]] * len(judged)
    draws = [[-math.log1p(-seeding.uniform(seed, "bootstrap", m, j.pair.id)) for m in range(members)] for j in judged]
    means = [sum(column) / len(judged) for column in zip(*draws, strict=True)]
    return [[weight / mean for weight, mean in zip(row, means, strict=True)] for row in draws]


def usable(
    preferences: Sequence[JudgedPair],
    keep_draws: bool = False,
    start: CheckpointPolicy | None = None,
    max_length: int = 0,
) -> tuple[list[JudgedPair], dict[str, float]]:
    """Select the pairs to learn from, each with a p2, and count all as metrics; see `usable_pairs`.

    Draws that are kept get the label ½. Raises `DataError` if no pair is left.
    """

    def is_even(judged: JudgedPair) -> bool:
        return keep_draws and judged.preference.outcome == "draw"

    def is_usable(judged: JudgedPair) -> bool:
        return judged.p2 is not None or is_even(judged)

    pairs, counts = usable_pairs(preferences, is_usable, "the reward model", start, max_length)
    kept = [replace(j, preference=replace(j.preference, p2=0.5, outcome="decided")) if is_even(j) else j for j in pairs]
    return kept, counts


def tokenize(
    start: CheckpointPolicy, judged: Sequence[JudgedPair], max_length: int
) -> tuple[list[dict[str, Any]], int]:
    """Encode one example per pair, with TRL's column names, and count the outputs cut to `max_length`."""
    instructions = [j.pair.instruction for j in judged]
    texts = [j.pair.output_1 for j in judged], [j.pair.output_2 for j in judged]
    ended = [j.pair.ended[0] for j in judged], [j.pair.ended[1] for j in judged]
    (first, cut_1), (second, cut_2) = (
        start.encode(instructions, outputs, max_length, closed) for outputs, closed in zip(texts, ended, strict=True)
    )
    examples = [
        # TRL takes data with these two columns as tokenised; p2 says which one is better.
        {
            "chosen_ids": [*p2, *r2],
            "rejected_ids": [*p1, *r1],
            "p_chosen": j.p2,
            "length": max(len(p1) + len(r1), len(p2) + len(r2)),
        }
        for (p1, r1), (p2, r2), j in zip(first, second, judged, strict=True)
    ]
    return examples, cut_1 + cut_2
