"""Binary FeedME (AlpacaFarm, section 3.2 and App. A): SFT on the preferred output of each pair.

The loss is SFT's: the negative log-likelihood of the preferred output and of its end-of-sequence token, from the SFT
policy on. An output that the length limit cut off has none: nothing is taught to stop there. Each pair is one example,
so an output that won twice is learned from twice.

Not said in the paper, and so decided here:
- A weighted judge's label counts by its side only: p2 above ½ prefers output 2, below ½ output 1. Draws, even labels
  and answers that could not be read are left out and counted.
- The hyperparameters are those of SFT, which the paper names for SFT-like methods; the reference code has no FeedME.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afarm import MethodInputs, TrainContext
from afarm.backend import (
    CheckpointPolicy,
    chosen_and_rejected,
    fit_supervised,
    require_checkpoint,
    selection_of,
    usable_pairs,
)

if TYPE_CHECKING:
    from afarm_plugins.feedme import FeedMEConfig


def train_feedme(config: FeedMEConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`.

    Raises `DataError` if no pair has a preferred output and `TrainingError` if the loss is not finite.
    """
    start = require_checkpoint(inputs.start, "feedme")
    pairs, counts = usable_pairs(inputs.preferences, lambda judged: judged.chosen_rejected, "feedme")
    instructions = [judged.pair.instruction for judged in pairs]
    chosen, _ = chosen_and_rejected(pairs)
    examples, cut = start.encode(instructions, chosen.texts, config.max_length, chosen.ended)
    counts |= {"examples_cut": cut}
    selection = selection_of(config, inputs, context)
    return fit_supervised(start, examples, config, context, "feedme", counts, selection)
