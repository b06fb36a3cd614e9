"""Binary FeedME: supervised fine-tuning on the preferred outputs."""

from __future__ import annotations

from afarm import CheckpointChoice, Method, MethodInputs, Policy, Register, TrainContext, TrainerConfig, hookimpl


class FeedMEConfig(CheckpointChoice, TrainerConfig):
    """Binary FeedME. The defaults are the paper's for SFT (App. B, on LLaMA-7B): it gives no others."""


class FeedME(Method):
    """SFT from `inputs.start` on the preferred outputs of `inputs.preferences`."""

    config: FeedMEConfig
    needs = frozenset({"preferences"})
    samples = False
    search_space = {"learning_rate": (1e-6, 1e-3), "num_train_epochs": [1, 2, 3]}

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        from afarm_plugins.feedme.feedme import train_feedme

        return train_feedme(self.config, inputs, context)


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "feedme",
        FeedME,
        config=FeedMEConfig,
        summary="supervised fine-tuning on the preferred output of each pair (binary FeedME)",
    )
