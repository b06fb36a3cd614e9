"""A policy as its own judge: does it say that an answer is good?

P(True) of Kadavath et al. 2022 (arXiv 2207.05221, section 4): the model is shown task and answer and asked if it
is good. The reward is the log odds of its reply, log p(yes) − log p(no), so that P(True) = σ(reward) among the two.

`p_true:MODEL` is any model as it is. `self_reward` is the policy that training starts from; with `learn` it is first
fine-tuned to say yes of better and no of worse outputs, as Self-Rewarding's evaluation tuning (Yuan et al. 2024, arXiv
2401.10020, section 2.1) and generative verifiers (Zhang et al. 2024, arXiv 2408.15240) are. Torch is imported on use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from afarm import (
    BuildContext,
    ConfigError,
    Instruction,
    JudgedPair,
    ModelError,
    Policy,
    RewardModel,
    Score,
    TrainContext,
    local_path,
    model_identity,
    require_local,
    require_on_hub,
    seeding,
)
from afarm_neighbours import PTrueConfig, SelfRewardConfig

if TYPE_CHECKING:
    from afarm.backend import CheckpointPolicy

SETTINGS = "self_judging.json"


class SelfJudge(RewardModel):
    """Scores by the log odds that its policy says yes. A subclass says which policy that is."""

    config: PTrueConfig
    policy: CheckpointPolicy

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        """Return log p(yes) − log p(no) of each output. Raises `ConfigError` if both are the same tokens."""
        if not outputs:
            return []
        prompts = judge_prompts(self.config, self.policy, instructions, outputs)
        yes, no = word_ids(self.config, self.policy)
        odds = read_odds(self.policy, prompts, yes, no, self.config.per_device_batch_size)
        return [Score(value) for value in odds]

    def save(self, directory: Path) -> None:
        self.policy.save(directory)
        fields = PTrueConfig.model_fields
        own = {name: value for name, value in self.config.model_dump().items() if name in fields}
        (directory / SETTINGS).write_text(json.dumps(own) + "\n", "utf-8")

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> RewardModel:
        config = PTrueConfig.model_validate_json((directory / SETTINGS).read_text("utf-8"))
        return FittedSelfJudge(config, context.backend.load_policy(str(directory)))


class FittedSelfJudge(SelfJudge):
    """A self-judge with its policy."""

    def __init__(self, config: PTrueConfig, policy: CheckpointPolicy):
        self.config, self.policy = config, policy

    @property
    def model(self) -> Any:
        """The policy's model."""
        return self.policy.model


class PTrue(SelfJudge):
    """`p_true:MODEL`: a model of the Hub or in a directory, opened at its first score."""

    def __init__(self, config: PTrueConfig, spec: str, context: BuildContext):
        """Load nothing yet. Raises `ConfigError` without a spec, `ModelError` if there is no model."""
        if not spec:
            raise ConfigError("name the model after a colon: p_true:ORG/NAME of the Hub, or p_true:DIRECTORY")
        self.config, self._context = config, context
        try:
            path = local_path(spec)
            inside = path / "model" if path else None  # of an artifact
            self.place = str(inside) if inside and inside.is_dir() else spec
            require_local(self.place)
            require_on_hub(self.place)
        except ModelError as error:  # its advice is for the base model
            raise ModelError(str(error).replace("--model ", "p_true:").replace("--model", f"p_true:{spec}")) from error

    @property
    def identity(self) -> str:
        """The Hub's commit, or a digest of the files."""
        return model_identity(self.place)

    @cached_property
    def policy(self) -> CheckpointPolicy:  # type: ignore[override]
        """The opened model. Raises `ModelError` if it cannot be loaded, or has no chat template."""
        return self._context.backend().load_policy(self.place)


class SelfReward(SelfJudge):
    """`self_reward`, to be fitted from the policy that training starts from."""

    @classmethod
    def fit(
        cls, preferences: Sequence[JudgedPair], start: Policy, config: SelfRewardConfig, context: TrainContext
    ) -> RewardModel:
        """Take `start` as it is, or with `learn` a copy that learned to judge; measure it on preferences.

        Raises `DataError` if no pair has a better output.
        """
        from afarm.backend import fit_supervised, hold_out, pairwise_accuracy, require_checkpoint, usable_pairs

        policy = require_checkpoint(start, config.section)
        pairs, counts = usable_pairs(preferences, lambda judged: judged.chosen_rejected, config.section)
        held_out = pairs
        if config.learn:
            parts = hold_out(
                pairs, config.eval_fraction, lambda id: (seeding.uniform(context.seed, "held out", id), id)
            )
            learned, held_out = ([pairs[place] for place in part] for part in parts)
            policy = fit_supervised(
                policy, judgements_to_learn(config, policy, learned), config, context, config.section
            )
        fitted = FittedSelfJudge(config, policy)
        tasks = [judged.pair.instruction for judged in held_out]
        first, second = (
            [score.value for score in fitted.score(tasks, texts)]
            for texts in ([j.pair.output_1 for j in held_out], [j.pair.output_2 for j in held_out])
        )
        newest = context.checkpoints.latest()
        measured = {"eval_accuracy": pairwise_accuracy(held_out, first, second)} if held_out else {}
        context.log_metrics(newest[0] if newest else 0, {**counts, **measured, "eval_pairs": float(len(held_out))})
        return fitted


def judge_prompts(
    config: PTrueConfig, policy: CheckpointPolicy, instructions: Sequence[Instruction], outputs: Sequence[str]
) -> list[list[int]]:
    """Encode the question if each output is good, within `max_length`; a longer one loses its beginning."""
    asked = []
    for task, output in zip(instructions, outputs, strict=True):
        turns = [f"{message.role}: {message.content}" for message in task.messages]
        whole = "\n\n".join(filter(None, (*turns, task.instruction, task.input)))
        asked.append(Instruction(Template(config.judge_text).substitute(task=whole, answer=output)))
    longest = max(len(word) for word in word_ids(config, policy))
    return policy.prompt_ids(asked, policy.longest(config.max_length) - longest)


def word_ids(config: PTrueConfig, policy: CheckpointPolicy) -> tuple[list[int], list[int]]:
    """Encode the words for yes and no, closed. Raises `ConfigError` if the tokenizer reads them alike."""
    yes, no = policy.template.encode_responses([config.yes, config.no])
    if yes == no:
        raise ConfigError(
            f"the model's tokenizer reads {config.yes!r} and {config.no!r} as the same tokens: choose other words, "
            f"with --set {config.section}.yes and no"
        )
    return yes, no


def judgements_to_learn(
    config: PTrueConfig, policy: CheckpointPolicy, pairs: Sequence[JudgedPair]
) -> list[tuple[list[int], list[int]]]:
    """Make two examples of each pair: yes of the better output, no of the other."""
    from afarm.backend import chosen_and_rejected

    tasks, examples = [judged.pair.instruction for judged in pairs], []
    for side, word in zip(chosen_and_rejected(pairs), word_ids(config, policy), strict=True):
        examples += [(prompt, word) for prompt in judge_prompts(config, policy, tasks, side.texts)]
    return examples


def read_odds(
    policy: CheckpointPolicy, prompts: Sequence[Sequence[int]], yes: Sequence[int], no: Sequence[int], batch_size: int
) -> list[float]:
    """Compute log p(yes) − log p(no) after each prompt, in nats; a process reads its own prompts."""
    import torch

    from afarm.backend import evaluating, join_and_pad, length_sorted_batches, response_logprobs

    odds = [0.0] * len(prompts)
    for rows in length_sorted_batches([len(prompt) for prompt in prompts], batch_size):
        asked = [prompts[row] for row in rows] * 2
        batch = join_and_pad(asked, [yes] * len(rows) + [no] * len(rows), policy.pad_id, policy.backend.device)
        with torch.no_grad(), evaluating(policy.model):
            summed = response_logprobs(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask).sum(
                1
            )  # [2B]
        for row, value in zip(rows, (summed[: len(rows)] - summed[len(rows) :]).tolist(), strict=True):
            odds[row] = value
    return odds
