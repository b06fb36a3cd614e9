"""When a step can no longer be learned from."""

from __future__ import annotations

from typing import Literal

from afarm.errors import TrainingError
from afarm_plugins.ppo import PPOConfig


class Diverged(TrainingError):
    """Step `step` (from 0) cannot be learned from. `reason` names why in the log."""

    def __init__(self, step: int, what: str, config: PPOConfig, reason: Literal["max_kl", "not_finite"] = "not_finite"):
        self.step = step
        self.reason = reason
        super().__init__(
            f"PPO diverged at step {step + 1}: {what}. Try --set ppo.learning_rate={config.learning_rate / 2:g}, "
            f"a larger ppo.kl_coef (now {config.kl_coef:g}), or --set backend.dtype=float32"
        )
