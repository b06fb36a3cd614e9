"""Supervised fine-tuning (AlpacaFarm, section 3.1 and App. B), and the untuned base model beside it.

The loss is the negative log-likelihood of the response and of the end-of-sequence token after it; the prompt is masked.
"""

from __future__ import annotations

import logging

from afarm import DataError, MethodInputs, TrainContext
from afarm.backend import CheckpointPolicy, fit_supervised, require_checkpoint
from afarm_plugins.sft import SFTConfig

logger = logging.getLogger(__name__)


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
    special = start.tokenizer.all_special_tokens
    texts = [f"{d.instruction.instruction}\n{d.output}" for d in usable]
    if rendered := sum(any(token in text for token in special) for text in texts):
        said = "%d of %d demonstrations hold special tokens of the model, as rendered texts do: they are rendered again"
        logger.warning(said, rendered, len(usable))
    examples, cut = start.encode(instructions, outputs, config.max_length)
    return fit_supervised(start, examples, config, context, name, {"examples_cut": cut})
