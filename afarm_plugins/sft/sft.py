"""Supervised fine-tuning (AlpacaFarm, section 3.1 and App. B) on TRL's SFTTrainer.

The loss is the negative log-likelihood of the response and of the end-of-sequence token after it; the prompt is masked.
Tokenising is ours, so that a prompt is encoded here exactly as it is when the policy samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from afarm.backend import (
    CheckpointPolicy,
    LengthSortedTrainer,
    add_adapter,
    merge_adapter,
    train,
    trainer_arguments,
)
from afarm.errors import DataError
from afarm.interfaces import Method, MethodInputs, Policy, TrainContext
from afarm.records import Output

if TYPE_CHECKING:
    from afarm_plugins.sft import SFTConfig

IGNORED = -100
"""The label of tokens that carry no loss."""


class SFT(Method):
    """Trains a copy of `inputs.start` on `inputs.demonstrations`."""

    needs = frozenset({"demonstrations"})
    begins_with = "base"

    def __init__(self, config: SFTConfig):
        self.config = config

    def check(self, start: type[Policy] | None = None) -> Sequence[str]:
        if start is None or issubclass(start, CheckpointPolicy):
            return ()
        return (f"sft trains a language model's weights; it cannot start from a {start.__name__}",)

    def train(self, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
        """Raises `DataError` without demonstrations and `TrainingError` where the loss is not finite."""
        from datasets import Dataset
        from trl import SFTConfig as TRLConfig
        from trl import SFTTrainer

        class Trainer(LengthSortedTrainer, SFTTrainer):
            pass

        start = inputs.start
        assert isinstance(start, CheckpointPolicy)  # `check` has refused anything else
        examples, cut = tokenize(start, inputs.demonstrations, self.config.max_length)
        context.backend.seed(context.seed)
        policy = start.copy()
        model = add_adapter(policy.model, self.config.lora) if self.config.lora else policy.model
        trainer = Trainer(
            model=model,
            args=trainer_arguments(TRLConfig, self.config, context, dataset_kwargs={"skip_prepare_dataset": True}),
            train_dataset=Dataset.from_list(examples),
            processing_class=policy.tokenizer,
        )
        train(trainer, context, "SFT", "sft")
        context.log_metrics(trainer.state.global_step, {"examples": len(examples), "examples_cut": cut})
        policy.model = merge_adapter(model)
        # TRL puts a forward of its own on the instance, bound to this very object: a copy would run the original.
        policy.model.__dict__.pop("forward", None)
        return policy


class SFTOnAllSplits(SFT):
    """Learns from the demonstrations of the other training splits as well: what preferences are weighed against."""

    needs = frozenset({"all_demonstrations"})


class Untuned(Method):
    """Learns nothing. afarm evaluates the base model in place of what this would copy."""

    begins_with = "base"

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        return inputs.start


def tokenize(
    policy: CheckpointPolicy, demonstrations: Sequence[Output], max_length: int
) -> tuple[list[dict[str, Any]], int]:
    """(examples of `input_ids`, `labels` and `length`, how many were cut to `max_length`); prompt labels are `IGNORED`.

    Raises `DataError` where there are no demonstrations, or none has an output.
    """
    usable = [d for d in demonstrations if d.output]
    if not usable:
        raise DataError(
            f"SFT needs demonstrations, and none of the {len(demonstrations)} rows has an output; "
            "choose another data set with --dataset, or a recipe that skips SFT"
        )
    rows, cut = policy.template.encode([d.instruction for d in usable], [d.output for d in usable], max_length)
    examples = [{"input_ids": [*p, *r], "labels": [IGNORED] * len(p) + r, "length": len(p) + len(r)} for p, r in rows]
    return examples, cut
