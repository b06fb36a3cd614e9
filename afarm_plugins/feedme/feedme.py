"""Binary FeedME (AlpacaFarm, section 3.2 and App. A): SFT on the preferred output of each pair.

Each pair is one example, so an output that won twice is learned from twice. Decisions that the paper leaves open:
`docs/methods/feedme.md`.
"""

from __future__ import annotations

from operator import attrgetter

from afarm import MethodInputs, TrainContext
from afarm.backend import (
    CheckpointPolicy,
    chosen_and_rejected,
    fit_supervised,
    make_selection,
    require_checkpoint,
    usable_pairs,
)
from afarm_plugins.feedme import FeedMEConfig


def train_feedme(config: FeedMEConfig, inputs: MethodInputs, context: TrainContext) -> CheckpointPolicy:
    """Train a copy of `inputs.start`. Raises `DataError` if no pair has a preferred output."""
    start = require_checkpoint(inputs.start, "feedme")
    has_better = attrgetter("chosen_rejected")
    pairs, counts = usable_pairs(inputs.preferences, has_better, "feedme", start, config.max_length)
    instructions = [judged.pair.instruction for judged in pairs]
    chosen, _ = chosen_and_rejected(pairs)
    examples, cut = start.encode(instructions, chosen.texts, config.max_length, chosen.ended)
    counts |= {"examples_cut": cut}
    selection = make_selection(config, inputs, context)
    return fit_supervised(start, examples, config, context, "feedme", counts, selection)
