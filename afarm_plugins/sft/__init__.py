"""Supervised fine-tuning on demonstrations: the first stage of every run, and the baseline `--method sft`."""

from __future__ import annotations

from afarm.backend.config import TrainerConfig
from afarm.hookspecs import Register, hookimpl


class SFTConfig(TrainerConfig):
    """Supervised fine-tuning. The defaults are the paper's (App. B, on LLaMA-7B)."""


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "sft",
        "afarm_plugins.sft.sft:SFT",
        config=SFTConfig,
        summary="supervised fine-tuning on demonstrations; the baseline alone",
    )
