"""Best-of-n as a method, and its settings."""

from __future__ import annotations

from dataclasses import replace

from afarm import Config, Decoding, Method, MethodInputs, Policy, TrainContext, setting


class BestOfNConfig(Config):
    """Best-of-n sampling. The paper reports n up to 1024 and an optimum near 16 (section 4)."""

    n: int = setting(16, "samples per instruction, of which the one with the highest reward is kept", ge=1)
    temperature: float = setting(1.0, "temperature of those samples, also where evaluation asks for another", gt=0)
    keep_scores: bool = setting(
        False, "keep with each output the rewards of all n samples, and the winner of every smaller n"
    )


class BestOfN(Method):
    """Best-of-n as a method: wraps `inputs.start` in a `BestOfNPolicy`."""

    config: BestOfNConfig
    needs = frozenset({"reward_model"})
    samples = False

    def decoding(self, default: Decoding) -> Decoding:
        return replace(default, temperature=self.config.temperature)

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        from afarm_plugins.best_of_n.best_of_n import BestOfNPolicy
        from afarm_plugins.best_of_n.subsets import kl_bound

        assert inputs.reward_model is not None  # named in `needs`
        config = self.config
        context.log_metrics(0, {"objective/kl_bound": kl_bound(config.n)})
        return BestOfNPolicy(inputs.start, inputs.reward_model, config.n, config.temperature, config.keep_scores)
