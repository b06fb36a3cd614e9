"""The on-policy loop: its schedule, its draws, resuming and stopping."""

from __future__ import annotations

import pytest

from afarm.backend import linear_schedule


def test_learning_rate_warms_up_and_falls_to_zero() -> None:
    rates = [linear_schedule(s, 1.0, warmup_steps=3, total_steps=8) for s in range(9)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert linear_schedule(0, 1.0, 0, 4) == 1.0
