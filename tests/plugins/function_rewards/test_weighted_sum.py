"""Weighted sums of reward models: the arithmetic, the spec, and what is told about scales."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import pytest

from afarm import BuildContext, ConfigError, Instruction, Output, RewardModel, Score
from afarm.testing import check_reward_model
from afarm_plugins.function_rewards.weighted_sum import WeightedSum, parse_weights


class Length(RewardModel):
    """Characters times `scale`, with a spread of its own; an output that was cut off scores 1 less."""

    def __init__(self, scale: float, spread: float | None = None):
        self.scale, self.spread = scale, spread

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return self.score_outputs([Output(i, o) for i, o in zip(instructions, outputs, strict=True)])

    def score_outputs(self, outputs: Sequence[Output]) -> list[Score]:
        cut = [output.details.get("finish_reason") == "length" for output in outputs]
        return [
            Score(self.scale * len(o.output) - is_cut, spread=self.spread)
            for o, is_cut in zip(outputs, cut, strict=True)
        ]


PARTS = {"a": Length(1.0), "b:x": Length(10.0, 0.3), "c": Length(1.0, 0.4), "flat": Length(0.0)}
TASK = Instruction("p")


def weighted(spec: str) -> WeightedSum:
    return WeightedSum(None, spec, BuildContext(PARTS.__getitem__, identify=lambda name: f"<{name}>"))


def test_scores_are_added_with_their_weights_and_spreads_in_squares() -> None:
    model = weighted("a,b:x=0.5, c=-2")
    [score] = model.score([TASK], ["abc"])
    assert score.value == pytest.approx(3 + 15 - 6)
    assert score.spread == pytest.approx(math.hypot(0.5 * 0.3, 2 * 0.4))
    [cut] = model.score_outputs([Output(TASK, "abc", details={"finish_reason": "length"})])
    assert cut.value == pytest.approx((3 - 1) + 0.5 * (30 - 1) - 2 * (3 - 1)), "each part sees how an output ended"
    check_reward_model(model)
    assert weighted("a").score([TASK], ["ab"])[0].spread is None


def test_what_it_is_made_of_and_the_weights_are_its_identity() -> None:
    assert WeightedSum.parts("a,b:x=0.5") == ["a", "b:x"]
    assert weighted("a,b:x=0.5").identity == '[["<a>", 1.0], ["<b:x>", 0.5]]'
    assert parse_weights("sum=1") == {"sum": 1.0}
    assert parse_weights("function:r.py:f=1e-3,classifier:org/rm") == {
        "function:r.py:f": 1e-3,
        "classifier:org/rm": 1.0,
    }


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "'' must be NAME or NAME=WEIGHT, with a number"),
        ("a,", "'' must be NAME or NAME=WEIGHT"),
        ("a=x", "'a=x' must be NAME or NAME=WEIGHT"),
        ("a=nan", "'a=nan' must be"),
        ("a=inf", "'a=inf' must be"),
        ("=1", "'=1' must be"),
        ("a,a=2", "'a=2' is named twice"),
    ],
)
def test_a_spec_that_cannot_be_read_is_named(spec: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_weights(spec)


def test_parts_on_other_scales_and_parts_without_any_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    model = weighted("a=1,b:x=2,flat=3")
    texts = ["x" * n for n in range(40)]
    for _ in range(2):
        model.score([TASK] * 40, texts)
    assert caplog.messages == [
        "sum: flat gives the same reward to each of the first 40 outputs",
        "sum: over 40 outputs b:x varies by 2.3e+02 and a by 12, each times its weight: the sum is hardly more than "
        "b:x. With a=20 they vary alike",
    ]
    caplog.clear()
    weighted("a=1,b:x=0.2").score([TASK] * 40, texts)
    assert caplog.messages == []
