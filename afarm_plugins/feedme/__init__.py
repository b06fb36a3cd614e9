"""Binary FeedME: supervised fine-tuning on the preferred outputs."""

from __future__ import annotations

from afarm import Register, TrainerConfig, hookimpl


class FeedMEConfig(TrainerConfig):
    """Binary FeedME.

    The defaults are the paper's for SFT (App. B, on LLaMA-7B); it gives no others for FeedME.
    """


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "feedme",
        "afarm_plugins.feedme.feedme:FeedME",
        config=FeedMEConfig,
        summary="supervised fine-tuning on the preferred output of each pair (binary FeedME)",
    )
