"""Settings that the training methods share, under the names that Hugging Face and TRL give them. No torch here."""

from __future__ import annotations

from typing import Literal

from afarm.experiment.settings import Config, setting

Scheduler = Literal["linear", "cosine", "constant", "constant_with_warmup"]


class LoraConfig(Config):
    """Low-rank adapters (Hu et al. 2021) instead of training every weight."""

    r: int = setting(16, "rank of the adapters", ge=1)
    alpha: float = setting(32, "the adapters' output is scaled by alpha / r", gt=0)
    dropout: float = setting(0.0, "dropout on the adapters' input", ge=0, lt=1)
    target_modules: str | list[str] = setting(
        "all-linear", "modules that get an adapter: all-linear (all but the output head), or a list of names"
    )


class TrainerConfig(Config):
    """What SFT-like training by epochs is told; the defaults are the paper's for SFT (App. B)."""

    learning_rate: float = setting(2e-5, "peak learning rate of AdamW", gt=0)
    lr_scheduler_type: Scheduler = setting("cosine", "how the learning rate falls after warm-up")
    warmup_ratio: float = setting(0.03, "share of the steps over which the learning rate rises", ge=0, lt=1)
    num_train_epochs: float = setting(3.0, "passes over the data", gt=0)
    per_device_train_batch_size: int = setting(
        128, "examples in one forward pass; times gradient_accumulation_steps it is the batch of one step", ge=1
    )
    gradient_accumulation_steps: int = setting(1, "forward passes a step: raise it where memory is short", ge=1)
    weight_decay: float = setting(0.0, "AdamW's weight decay", ge=0)
    max_grad_norm: float = setting(1.0, "gradients are scaled down to this L2 norm", gt=0)
    max_length: int = setting(512, "tokens of prompt and response together; the excess is cut and counted", ge=2)
    gradient_checkpointing: bool = setting(
        False, "recompute activations in the backward pass: less memory, slower", changes_result=False
    )
    save_steps: int = setting(200, "steps between checkpoints to resume from; 0 keeps none", ge=0, changes_result=False)
    lora: LoraConfig | None = setting(None, "train adapters instead of all weights (unset: all weights)")
