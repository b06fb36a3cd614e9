"""Group relative policy optimisation (Shao et al. 2024) as a stranger writes it, from afarm's doors alone."""

from typing import ClassVar

from afarm import Method, OnPolicyConfig, hookimpl, setting
from afarm.backend import PolicyGradientTrainer, RolloutBatch, clipped_policy_loss, kl_estimates, response_mask


class GRPOConfig(OnPolicyConfig):
    """As in the paper, several responses per prompt, one pass over each rollout, and the KL in the loss."""

    method_name: ClassVar[str] = "GRPO"

    num_generations: int = setting(8, "responses sampled per prompt, which are compared with each other", gt=1)
    cliprange: float = setting(0.2, "how far the ratio π/π_old may move before it is clipped", gt=0, lt=1)


class GRPO(Method):
    """Raises the probability of responses that score higher than others to their prompt. No value model."""

    needs = frozenset({"reward_model", "unlabeled"})
    measures_kl = True

    def train(self, inputs, context):
        return GRPOTrainer(self.config, inputs, context).train()


class GRPOTrainer(PolicyGradientTrainer):
    def collect(self, step):
        instructions, samples = self.sample(step)
        scores, mask = self.score(instructions, samples), response_mask(samples, self.device)
        logprobs, ref_logprobs = self.sampled_logprobs(samples), self.read(self.ref_logprobs, samples)
        kl = float(kl_estimates(logprobs, ref_logprobs, mask).k1.sum(1).mean())
        self.watch_kl(step, kl)
        groups = scores.view(-1, self.config.num_generations)
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        rollout = RolloutBatch(samples, scores, mask, logprobs, ref_logprobs, advantages.view(-1, 1) * mask)
        return rollout, {"objective/scores": float(scores.mean()), "objective/kl": kl}

    def policy_loss(self, logprobs, chunk):
        rows = chunk.rows
        old, reference, advantages = (chunk.flat(x) for x in (rows.logprobs, rows.ref_logprobs, rows.advantages))
        clipped = clipped_policy_loss(logprobs, old, advantages, chunk.mask, self.config.cliprange, chunk.tokens)
        kl = kl_estimates(logprobs, reference, chunk.mask).k3.sum()
        chunk.add("loss/kl", kl.detach())
        return clipped.loss + self.config.kl_coef * kl / chunk.tokens


@hookimpl
def register_methods(register):
    register("grpo", "grpo:GRPO", config=GRPOConfig, summary="policy optimisation relative to groups of responses")
