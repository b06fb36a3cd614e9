"""Supervised fine-tuning on demonstrations: the first stage of a run, and the paper's baselines."""

from __future__ import annotations

from afarm import Register, TrainerConfig, hookimpl


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
    register(
        "sft_all",
        "afarm_plugins.sft.sft:SFTOnAllSplits",
        config=SFTConfig,
        summary="supervised fine-tuning on the demonstrations of all splits (the paper's SFT 52k)",
    )
    register("base", "afarm_plugins.sft.sft:Untuned", summary="the base model as it is, trained on nothing")
