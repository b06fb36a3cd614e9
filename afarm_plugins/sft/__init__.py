"""Supervised fine-tuning on demonstrations: the first stage of a run, and the paper's baselines."""

from __future__ import annotations

from afarm import Method, MethodInputs, Policy, Register, TrainContext, TrainerConfig, hookimpl


class SFTConfig(TrainerConfig):
    """Supervised fine-tuning. The defaults are the paper's (App. B, on LLaMA-7B)."""


class SFT(Method):
    """Supervised fine-tuning of `inputs.start` on `inputs.demonstrations`."""

    config: SFTConfig
    name = "sft"
    needs = frozenset({"demonstrations"})
    samples = False
    begins_with = "base"

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        from afarm_plugins.sft.sft import fine_tune

        return fine_tune(self.config, inputs, context, self.name)


class SFTOnAllSplits(SFT):
    """Supervised fine-tuning on the other training splits' demonstrations too (the paper's SFT 52k)."""

    name = "sft_all"
    needs = frozenset({"all_demonstrations"})


class Untuned(Method):
    """The untrained base model, to be evaluated."""

    begins_with = "base"
    samples = False

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        return inputs.start


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "sft",
        SFT,
        config=SFTConfig,
        summary="supervised fine-tuning on demonstrations; the baseline alone",
    )
    register(
        "sft_all",
        SFTOnAllSplits,
        config=SFTConfig,
        summary="supervised fine-tuning on the demonstrations of all splits (the paper's SFT 52k)",
    )
    register("base", Untuned, summary="the base model as it is, trained on nothing")
