"""The on-policy loop: its schedule, its draws, resuming and stopping."""

from __future__ import annotations

import pytest

from afarm.backend import linear_schedule


def test_a_trainer_that_went_is_answered_with_what_came_instead() -> None:
    for name in ("OnPolicyTrainer", "PolicyGradientTrainer"):
        with pytest.raises(ImportError, match=f"no {name} any more: .* call rollout, score"):
            exec(f"from afarm.backend import {name}")
    with pytest.raises(ImportError, match="cannot import name 'OnPolicyTrainr'"):
        exec("from afarm.backend import OnPolicyTrainr")


def test_learning_rate_warms_up_and_falls_to_zero() -> None:
    rates = [linear_schedule(s, 1.0, warmup_steps=3, total_steps=8) for s in range(9)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert linear_schedule(0, 1.0, 0, 4) == 1.0
