"""A reward model learned from preferences."""

from __future__ import annotations

from afarm.backend.config import Scheduler, TrainerConfig
from afarm.config import setting
from afarm.hookspecs import Register, hookimpl


class RewardModelConfig(TrainerConfig):
    """A Bradley–Terry reward model. The defaults are the paper's (App. B, on LLaMA-7B)."""

    learning_rate: float = setting(3e-6, "peak learning rate of AdamW", gt=0)
    head_learning_rate: float | None = setting(None, "peak learning rate of the new head (unset: learning_rate)", gt=0)
    lr_scheduler_type: Scheduler = setting("cosine", "how the learning rates fall after warm-up")
    num_train_epochs: float = setting(1.0, "passes over the preferences", gt=0)
    per_device_train_batch_size: int = setting(
        64, "pairs in one forward pass; times gradient_accumulation_steps it is the batch of one step", ge=1
    )
    head_init_std: float = setting(0.0, "standard deviation of the new head's weights at the start; 0 is zeros", ge=0)
    keep_draws: bool = setting(False, "learn from draws as even preferences (p2 = 0.5) instead of dropping them")
    eval_fraction: float = setting(0.05, "share of the instructions held out to measure accuracy on", ge=0, lt=1)
    standardize_outputs: int = setting(
        2000, "outputs of the preferences whose rewards are made mean 0, std 1; 0 leaves rewards as they are", ge=0
    )


@hookimpl
def register_reward_models(register: Register) -> None:
    register(
        "bradley_terry",
        "afarm_plugins.reward_model.bradley_terry:BradleyTerryRewardModel",
        config=RewardModelConfig,
        summary="Bradley–Terry on preferences, from the SFT model with a scalar head",
    )
