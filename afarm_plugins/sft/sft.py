"""Supervised fine-tuning (AlpacaFarm, section 3.1 and App. B), and the untuned base model beside it.

The loss is the negative log-likelihood of the response and of the end-of-sequence token after it; the prompt is masked.
"""

from __future__ import annotations

from afarm import DataError, MethodInputs, TrainContext
from afarm.backend import CheckpointPolicy, fit_supervised, require_checkpoint
from afarm_plugins.sft import SFTConfig


def fine_tune(config: SFTConfig, inputs: MethodInputs, context: TrainContext, name: str) -> CheckpointPolicy:
    """Train a copy. Raises `DataError` without demonstrations, `TrainingError` if the loss is not finite."""
    start = require_checkpoint(inputs.start, name)
    usable = [d for d in inputs.demonstrations if d.output]
    if not usable:
        raise DataError(
            f"SFT needs demonstrations, and none of the {len(inputs.demonstrations)} rows has an output; "
            "choose another data set with --dataset, or a recipe that skips SFT"
        )
    instructions, outputs = [d.instruction for d in usable], [d.output for d in usable]
    examples, cut = start.encode(instructions, outputs, config.max_length)
    return fit_supervised(start, examples, config, context, name, {"examples_cut": cut})
