"""Binary reward conditioning (AlpacaFarm, section 3.2 and App. A).

SFT on both outputs of each pair, the preferred one behind a positive control in its prompt and the other behind a
negative one; the policy samples behind the positive one. Decisions that the paper leaves open:
`docs/methods/reward_conditioning.md`.
"""

from __future__ import annotations

from operator import attrgetter

from afarm import ConfigError, MethodInputs, TrainContext
from afarm.backend import (
    CheckpointPolicy,
    chosen_and_rejected,
    fit_supervised,
    make_selection,
    require_checkpoint,
    usable_pairs,
)
from afarm_plugins.reward_conditioning import RewardConditioningConfig

POSITIVE, NEGATIVE = "<|positive|>", "<|negative|>"


def train_with_controls(
    config: RewardConditioningConfig, inputs: MethodInputs, context: TrainContext
) -> CheckpointPolicy:
    """Train a copy of `inputs.start`, and return it behind the positive control.

    Raises `DataError` if no pair has a preferred output.
    """
    start = require_checkpoint(inputs.start, "reward_conditioning")
    has_better = attrgetter("chosen_rejected")
    pairs, counts = usable_pairs(inputs.preferences, has_better, "reward_conditioning", start, config.max_length)
    policy, positive, negative = with_controls(config, start)
    instructions = [judged.pair.instruction for judged in pairs]
    examples, cut = [], 0
    for control, side in zip((positive, negative), chosen_and_rejected(pairs), strict=True):
        rows, too_long = policy.controlled(control).encode(instructions, side.texts, config.max_length, side.ended)
        examples += rows
        cut += too_long
    counts["examples_cut"] = cut
    selection, behind = make_selection(config, inputs, context), policy.controlled(positive)
    return fit_supervised(behind, examples, config, context, "reward_conditioning", counts, selection)


def with_controls(config: RewardConditioningConfig, start: CheckpointPolicy) -> tuple[CheckpointPolicy, str, str]:
    """Return the policy to start from, the positive control and the negative one."""
    if config.control == "token":
        return start.copy_with_tokens([POSITIVE, NEGATIVE]), POSITIVE, NEGATIVE
    positive, negative = config.positive_text, config.negative_text
    if start.template.with_control(positive).control_ids == start.template.with_control(negative).control_ids:
        raise ConfigError(
            f"the model's tokenizer reads {positive!r} and {negative!r} as the same tokens: nothing tells good "
            "from bad outputs; choose others with --set reward_conditioning.positive_text and negative_text"
        )
    return start, positive, negative
