"""Direct preference optimisation: preferences without a reward model."""

from __future__ import annotations

from typing import ClassVar, Literal

from afarm import (
    CheckpointChoice,
    Method,
    MethodInputs,
    Policy,
    Register,
    Scheduler,
    TrainContext,
    TrainerConfig,
    hookimpl,
    setting,
)


class DPOConfig(CheckpointChoice, TrainerConfig):
    """Direct preference optimisation. The defaults are the paper's (App. B, on LLaMA-7B)."""

    learns_pairs: ClassVar[bool] = True
    """An example is two responses: `afarm memory` counts both."""

    learning_rate: float = setting(1e-5, "peak learning rate of AdamW", gt=0)
    lr_scheduler_type: Scheduler = setting("linear", "how the learning rate falls after warm-up")
    num_train_epochs: float = setting(1.0, "passes over the preferences", gt=0)
    per_device_train_batch_size: int = setting(
        64, "pairs in one forward pass; times gradient_accumulation_steps it is the batch of one step", ge=1
    )
    beta: float = setting(0.1, "how strongly the policy is held to its reference; for ipo the paper's τ", gt=0)
    loss_type: Literal["sigmoid", "ipo", "hinge"] = setting(
        "sigmoid", "sigmoid is DPO's; ipo (Azar et al. 2023) and hinge (SLiC, Zhao et al. 2023) bound the margin"
    )
    label_smoothing: float = setting(
        0.0, "probability that a label is taken to be wrong (conservative DPO, Mitchell 2023)", ge=0, lt=0.5
    )
    keep_draws: bool = setting(False, "learn from draws as even preferences (p2 = 0.5) instead of dropping them")


class DPO(Method):
    """DPO from `inputs.start` on `inputs.preferences`, with `inputs.start` as the reference."""

    config: DPOConfig
    needs = frozenset({"preferences"})
    samples = False
    search_space = {"learning_rate": (1e-6, 1e-3), "beta": (0.03, 1.0), "num_train_epochs": [1, 2, 3]}

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        from afarm_plugins.dpo.dpo import train_dpo

        return train_dpo(self.config, inputs, context)


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "dpo",
        DPO,
        config=DPOConfig,
        summary="direct preference optimisation, with IPO and hinge losses",
    )
