"""How often labels and reward models of the toy world order two answers as the gold reward does."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from afarm import Decoding, Farm, Output
from afarm.core.records import JudgedPair

HELD_OUT = 2000
"""Preference instructions, the last ones, that no reward model is fitted on."""


def mean_gold(farm: Farm, outputs: Sequence[Output]) -> float:
    model = farm.workspace.components.fixed_reward_model("gold")
    return statistics.fmean(s.value for s in model.score([o.instruction for o in outputs], [o.output for o in outputs]))


def label_accuracy(farm: Farm, judged: Sequence[JudgedPair]) -> float:
    """Share of decided labels that agree with gold, pairs of equal gold left out."""
    model = farm.workspace.components.fixed_reward_model("gold")
    right = []
    for row in judged:
        if row.p2 is None:
            continue
        first, second = model.score([row.pair.instruction] * 2, [row.pair.output_1, row.pair.output_2])
        if first.value != second.value:
            right.append((row.p2 > 0.5) == (second.value > first.value))
    return 100 * statistics.fmean(right)


def reward_accuracy(farm: Farm) -> float:
    """Share of pairs of SFT samples (T = 1) ranked as gold ranks them, pairs of equal gold left out.

    On the last preference instructions, which the run leaves unused: nothing was trained on them.
    """
    data = farm.workspace.data
    rows = data.load("preference")[len(data.rows("preference")) :][-HELD_OUT:]
    instructions = [row.instruction for row in rows]
    decoding = Decoding(temperature=1.0, max_new_tokens=48, n=2, per_device_batch_size=512)
    texts = [s.text for s in farm.sft().sample(instructions, decoding, seed=farm.workspace.seed("reward accuracy"))]
    repeated = [i for i in instructions for _ in range(2)]
    truth = [s.value for s in farm.workspace.components.fixed_reward_model("gold").score(repeated, texts)]
    guess = [s.value for s in farm.fit_reward().score(repeated, texts)]
    right = [
        (guess[k] < guess[k + 1]) == (truth[k] < truth[k + 1])
        for k in range(0, len(texts), 2)
        if truth[k] != truth[k + 1]
    ]
    return 100 * statistics.fmean(right)
