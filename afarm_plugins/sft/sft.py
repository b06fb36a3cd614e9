"""Supervised fine-tuning (AlpacaFarm, section 3.1 and App. B), and the untuned base model beside it.

The loss is the negative log-likelihood of the response and of the end-of-sequence token after it; the prompt is masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afarm import DataError, Method, MethodInputs, Policy, TrainContext
from afarm.backend import CheckpointPolicy, fit_supervised, require_checkpoint

if TYPE_CHECKING:
    from afarm_plugins.sft import SFTConfig


class SFT(Method):
    """Supervised fine-tuning of `inputs.start` on `inputs.demonstrations`."""

    name = "sft"
    needs = frozenset({"demonstrations"})
    begins_with = "base"

    def __init__(self, config: SFTConfig):
        self.config = config

    def train(self, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
        """Train a copy. Raises `DataError` without demonstrations, `TrainingError` if the loss is not finite."""
        start = require_checkpoint(inputs.start, self.name)
        usable = [d for d in inputs.demonstrations if d.output]
        if not usable:
            raise DataError(
                f"SFT needs demonstrations, and none of the {len(inputs.demonstrations)} rows has an output; "
                "choose another data set with --dataset, or a recipe that skips SFT"
            )
        instructions, outputs = [d.instruction for d in usable], [d.output for d in usable]
        examples, cut = start.template.encode(instructions, outputs, self.config.max_length)
        return fit_supervised(start, examples, self.config, context, self.name, {"examples_cut": cut})


class SFTOnAllSplits(SFT):
    """Supervised fine-tuning on the demonstrations of the other training splits as well.

    The paper weighs preferences against it (SFT 52k).
    """

    name = "sft_all"
    needs = frozenset({"all_demonstrations"})


class Untuned(Method):
    """The base model as it is: nothing is learned.

    afarm evaluates the base model in place of what this would copy.
    """

    begins_with = "base"

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        return inputs.start
