"""Proximal policy optimisation against a reward model, read from top to bottom.

A step: sample a response to each of `rollout_batch_size` prompts; score it; take the KL to the start policy off the
reward, token by token; estimate advantages with the value model; then `num_ppo_epochs` passes of the clipped update.

As in the paper (Dubois et al. 2023, section 4 and appendix B), and unlike PPO elsewhere: advantages are standardised
over the whole rollout, not each minibatch; the value model starts from the reward model; the KL coefficient is fixed.

Not as in the paper or its reference implementation, and why:

- Pads enter no statistic, loss, value or KL, and each minibatch's loss is divided by its response tokens, so results
  depend neither on padding nor on how a minibatch is cut for memory. (There: no masks, statistics per device.)
- The KL of a token is not clamped at 0: clamped, its mean is no longer the KL divergence but something larger.
- Rewards are scaled, not shifted: adding the mean back unscaled pays each token a constant, a hidden length bonus.
- The reward model reads the tokens that were sampled, not text decoded and tokenised again.
- The learning rate rises from a first step above 0, so that no rollout is collected for nothing.
- What is kept is the checkpoint with the highest win rate on the validation split: the reward rises to the very end.

The value head starts at zero: the backbone knows what is good, the scale of returns is learned. Overlong prompts
are left out, since a cut prompt no longer asks for what is scored. Old log-probabilities come from the training
forward at collection, except in float32: elsewhere the sampler's cache and left padding round differently, and the
ratio must start at 1. Dropout is off throughout, for the same reason. The reference is the start policy
itself, since what is trained is a copy. Every draw is keyed by seed and step: resuming needs no generator state.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from afarm import Decoding, Instruction, Method, MethodInputs, Policy, RewardModel, Sample, TrainContext, seeding
from afarm.backend import (
    CheckpointPolicy,
    CheckpointSelection,
    Diverged,
    TokenBatch,
    TorchRewardModel,
    all_finite,
    all_gather,
    all_reduce_by_name,
    all_reduce_gradients,
    all_reduce_sum,
    clip_gradients,
    full_tensor,
    generalised_advantages,
    join_and_pad,
    kl_estimates,
    kl_penalised_rewards,
    length_sorted_batches,
    linear_schedule,
    masked_mean_variance,
    prompt_order,
    read_responses,
    require_checkpoint,
    restore,
    sample_scorer,
    set_checkpointing_layers_to_train,
    shard,
    shard_model,
    short_prompts,
    trainable_copy,
    training_state,
    unsharded_weights,
    whiten,
    world_size,
    write_training_state,
)
from afarm_plugins.ppo import PPOConfig, objective
from afarm_plugins.ppo.networks import Learner, build_networks
from afarm_plugins.ppo.rollout import Losses, Rollout, Tokens, minibatches

T = TypeVar("T")

logger = logging.getLogger(__name__)


class PPO(Method):
    """Returns the policy of the best or the last step. The start policy and the reward model are left as they were."""

    needs = frozenset({"reward_model", "unlabeled"})

    def __init__(self, config: PPOConfig | None = None):
        self.config: PPOConfig = config or PPOConfig()
        if self.config.checkpoint == "best":
            self.needs = PPO.needs | {"validation", "annotator"}

    def check(self, reward_model: type[RewardModel] | None = None) -> Sequence[str]:
        if reward_model is None or issubclass(reward_model, TorchRewardModel) or self.config.value_init == "sft":
            return ()
        return (f"{reward_model.__name__} has no backbone for a value model to start from: --set ppo.value_init=sft",)

    def plan_pairs(self, instructions: Mapping[str, Sequence[Instruction]]) -> Sequence[Instruction]:
        if self.config.checkpoint == "last":
            return ()
        return [*instructions["validation"]] * math.ceil(self.config.total_steps / self.config.save_steps)

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises `TrainingError` where it diverges before a checkpoint, `DataError` where no prompt is short enough."""
        trainer = Trainer(self.config, inputs, context)
        try:
            self.learn(trainer, context)
        except Diverged as error:
            if not trainer.resume():  # from before: what has diverged is never saved
                raise
            context.log_metrics(error.step, {f"stopped/{error.reason}": error.step})
            logger.warning("%s. The %s checkpoint before is kept", error, self.config.checkpoint)
        return trainer.chosen()

    def learn(self, trainer: Trainer, context: TrainContext) -> None:
        config, first = self.config, trainer.resume()
        for step in context.progress(range(first, config.total_steps), "PPO", config.total_steps - first):
            rollout, collected = trainer.collect(step)
            if step > first:
                self.keep(trainer, step, rollout.kl, context)
            updated = trainer.update(step, rollout)
            context.log_metrics(step + 1, {**collected, **updated, "episode": (step + 1) * config.rollout_batch_size})
        if first < config.total_steps:
            final, _ = trainer.collect(config.total_steps)
            context.log_metrics(config.total_steps, {"last/kl": final.kl})
            self.keep(trainer, config.total_steps, final.kl, context)

    def keep(self, trainer: Trainer, done: int, kl: float, context: TrainContext) -> None:
        """Judge and save the policy of step `done` where it is a candidate. Its own samples came first: their KL is
        `kl`, and what has diverged never gets here."""
        config = self.config
        is_candidate = done % config.save_steps == 0 or done == config.total_steps
        if is_candidate and (judged := trainer.judge(done, kl)):
            context.log_metrics(done, judged)
        stopping = done < config.total_steps and context.should_stop()
        if stopping or is_candidate:
            trainer.save(done)
        if stopping:
            # An unfinished policy must not be taken for the result, so stopping ends as Ctrl-C does.
            raise KeyboardInterrupt(f"PPO stopped after step {done}; the same command goes on from there")


class Trainer:
    """The four models of PPO (policy, reference, value, reward), the optimiser, and the two halves of a step."""

    def __init__(self, config: PPOConfig, inputs: MethodInputs, context: TrainContext):
        assert inputs.reward_model is not None  # named in `needs`
        self.config, self.context = config, context
        self.device = context.backend.device
        context.backend.seed(context.seed)  # adapters start from random numbers
        self.start = require_checkpoint(inputs.start, "ppo")
        self.rewards = sample_scorer(inputs.reward_model, self.start)
        self.networks = build_networks(self.start, inputs.reward_model, config)
        self.policy = self.networks.policy
        if context.backend.sharded:
            sizes = {"rollout_batch_size": config.rollout_batch_size, "mini_batch_size": config.mini_batch_size}
            shard_model(self.networks.models, even={f"ppo.{name}": size for name, size in sizes.items()})
        self.trained = self.networks.ready()
        self.optimizer = torch.optim.AdamW(
            self.trained.values(),
            lr=config.learning_rate,
            eps=config.adam_epsilon,
            weight_decay=0.0,
            fused=not context.backend.sharded,  # it cannot take shards and whole weights together
        )
        self.prompts = short_prompts(
            self.policy, inputs.unlabeled, config.max_prompt_length, config.response_length, "ppo.max_prompt_length"
        )
        self.left_out = len(inputs.unlabeled) - len(self.prompts)
        self.kl_coef = config.kl_coef
        self.selection = CheckpointSelection(inputs, context) if config.checkpoint == "best" else None

    # ------------------------------------------------------------------------------------------- collecting

    def collect(self, step: int) -> tuple[Rollout, dict[str, float]]:
        """Sample, score, and estimate advantages. Returns the rollout and its metrics."""
        config = self.config
        instructions, samples = self.sample(step)
        prompts, responses = [s.prompt_ids for s in samples], [s.token_ids for s in samples]
        lengths = torch.tensor([len(r) for r in responses], device=self.device)
        mask = torch.arange(int(lengths.max()), device=self.device) < lengths.unsqueeze(1)
        scores, logprobs, ref_logprobs, old_values = self.together(
            lambda: self.score(instructions, samples),
            lambda: self.sampled_logprobs(samples),
            lambda: self.read(self.networks.ref_logprobs, prompts, responses),
            lambda: self.read(self.networks.values, prompts, responses),
        )
        kl, kl_k2, kl_k3 = kl_estimates(logprobs, ref_logprobs, mask)
        mean_kl = float(kl.sum(1).mean())
        if not (torch.isfinite(scores).all() and math.isfinite(mean_kl)):
            raise self.diverged(step, "a score or a log-probability is not a finite number")
        if config.max_kl is not None and mean_kl > config.max_kl:
            what = f"the KL to the start policy is {mean_kl:.3g} nats, more than ppo.max_kl ({config.max_kl:g})"
            raise self.diverged(step, what, "max_kl")

        rewards = kl_penalised_rewards(scores, kl, mask, self.kl_coef)
        non_score = -self.kl_coef * kl.sum(1)
        if config.whiten_rewards == "scale":
            rewards = objective.scale_rewards(rewards, mask)
        elif config.whiten_rewards == "shift":
            rewards = whiten(rewards, mask, shift_mean=False)
        advantages, returns = generalised_advantages(rewards, old_values, mask, config.gamma, config.lam)
        _, unexplained = masked_mean_variance(returns - old_values, mask)
        _, variance = masked_mean_variance(returns, mask)
        if config.whiten_advantages == "rollout":
            advantages = whiten(advantages, mask)

        metrics: dict[str, Tensor | float] = {
            "objective/kl": mean_kl,
            "objective/kl_k2": kl_k2.sum(1).mean(),
            "objective/kl_k3": kl_k3.sum(1).mean(),
            "objective/kl_coef": self.kl_coef,
            "objective/entropy": -logprobs.sum(1).mean(),
            "objective/scores": scores.mean(),
            "objective/scores_std": scores.std(correction=0),
            "objective/non_score_reward": non_score.mean(),
            "objective/rlhf_reward": (scores + non_score).mean(),
            "objective/length": mask.sum(1).float().mean(),
            "val/num_eos_tokens": sum(s.finish_reason == "stop" for s in samples),
            "val/explained_variance": 1 - unexplained / variance.clamp(min=1e-8),
            "data/prompts_left_out": self.left_out,
        }
        rollout = Rollout(prompts, responses, scores, mask, logprobs, old_values, advantages, returns, mean_kl)
        return rollout, {name: float(value) for name, value in metrics.items()}

    def sample(self, step: int) -> tuple[list[Instruction], list[Sample]]:
        """The prompts of `step` and a response to each. Seeds differ by pass, so a repeated prompt is a new draw."""
        config, seed = self.config, self.context.seed
        decoding = Decoding(
            temperature=config.temperature,
            max_new_tokens=config.response_length,
            per_device_batch_size=config.per_device_rollout_batch_size,
        )
        instructions: list[Instruction] = []
        samples: list[Sample] = []
        for number, rows in prompt_order(len(self.prompts), step, config.rollout_batch_size, seed, "ppo"):
            part = [self.prompts[row] for row in rows]
            instructions += part
            with unsharded_weights(self.policy.model):
                drawn = self.policy.sample(
                    shard(part), decoding, seed=seeding.integer(seed, "ppo", "rollout", step, number)
                )
                samples += all_gather(list(drawn))
        return instructions, samples

    @torch.no_grad()
    def score(self, instructions: Sequence[Instruction], samples: Sequence[Sample]) -> Tensor:
        """The reward model's scores [B], of the very tokens that were sampled wherever it can read them."""
        config, mine = self.config, shard(range(len(samples)))
        found = self.rewards([instructions[i] for i in mine], [samples[i] for i in mine])
        scores = torch.zeros(len(samples), device=self.device)
        scores[list(mine)] = torch.tensor(found, device=self.device)
        all_reduce_sum([scores])
        if config.missing_eos_penalty is not None:
            cut_off = torch.tensor([s.finish_reason != "stop" for s in samples], device=self.device)
            scores -= config.missing_eos_penalty * cut_off
        return scores

    def sampled_logprobs(self, samples: Sequence[Sample]) -> Tensor:
        """The policy's log-probabilities [B, R] of what it sampled: the sampler's where they are exact, else read."""
        rows = [s.logprobs for s in samples]
        if self.config.temperature != 1 or any(row is None for row in rows):
            return self.read(self.networks.logprobs, [s.prompt_ids for s in samples], [s.token_ids for s in samples])
        tensors = [torch.tensor(row, device=self.device) for row in rows]
        return nn.utils.rnn.pad_sequence(tensors, batch_first=True)

    def read(
        self, of: Callable[[TokenBatch], Tensor], prompts: Sequence[Tokens], responses: Sequence[Tokens]
    ) -> Tensor:
        """What `of` gives for each response token, [B, R] and 0 at pads, in batches of like length."""
        size, pad_id = self.config.per_device_rollout_batch_size, self.policy.pad_id
        return read_responses(of, prompts, responses, batch_size=size, pad_id=pad_id, device=self.device)

    def batch(self, prompts: Sequence[Tokens], responses: Sequence[Tokens]) -> TokenBatch:
        return join_and_pad(prompts, responses, self.policy.pad_id, self.device)

    def together(self, *calls: Callable[[], T]) -> list[T]:
        """The results of `calls`, side by side where the networks allow it. Never where processes add up in between."""
        side_by_side = self.networks.independent and world_size() == 1
        return self.context.backend.together(*calls) if side_by_side else [call() for call in calls]

    # --------------------------------------------------------------------------------------------- learning

    def update(self, step: int, rollout: Rollout) -> dict[str, float]:
        """The passes over the rollout. Returns metrics, each the mean over all tokens trained on."""
        config = self.config
        if config.kl_controller == "adaptive":  # from the next rollout on
            self.kl_coef = objective.next_kl_coef(
                self.kl_coef, rollout.kl, config.kl_target, config.kl_horizon, len(rollout.responses)
            )
        learning_rate = linear_schedule(step, config.learning_rate, config.warmup_steps, config.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if config.gradient_checkpointing:
            set_checkpointing_layers_to_train(self.networks.models)
        totals: dict[str, float] = defaultdict(float)
        norms: list[float] = []
        batches = list(minibatches(len(rollout.prompts), step, config, self.context.seed))
        for rows in batches:
            minibatch = rollout.part(rows)
            if config.whiten_advantages == "minibatch":
                minibatch.advantages = whiten(minibatch.advantages, minibatch.mask)
            self.optimizer.zero_grad()  # once an optimiser step: the gradients of its micro-batches add up
            sums = self.backward(minibatch)
            approx_kl = sums["policy/approxkl_avg"] / sums["tokens"]
            if norms and config.target_approx_kl is not None and approx_kl > config.target_approx_kl:
                break  # before this step: the ones behind it went far enough
            norm = clip_gradients(self.trained.values(), config.max_grad_norm)
            if not math.isfinite(norm):
                raise self.diverged(step, f"the norm of the gradient is {norm}")
            self.optimizer.step()
            for name, value in sums.items():
                totals[name] += float(value)
            norms.append(norm)
        tokens = totals.pop("tokens")
        means = {name: total / tokens for name, total in totals.items()}
        return {
            **means,
            "policy/grad_norm": sum(norms) / len(norms),
            "policy/skipped_minibatches": len(batches) - len(norms),
            "lr": learning_rate,
        }

    def backward(self, minibatch: Rollout) -> Mapping[str, Tensor]:
        """Add the gradient of the minibatch's mean loss. Returns sums over its tokens."""
        tokens = minibatch.mask.sum()
        # The last minibatch may have fewer rows than there are processes.
        shares = [minibatch.part(rows)] if (rows := shard(range(len(minibatch.prompts)))) else []
        calls = [partial(self.learn, one, share, tokens) for share in shares for one in self.networks.learners()]
        sums = self.together(*calls)
        all_reduce_gradients(self.trained.values())
        return {"tokens": tokens, **all_reduce_by_name({name: total for part in sums for name, total in part.items()})}

    def learn(self, learner: Learner, minibatch: Rollout, tokens: Tensor) -> Mapping[str, Tensor]:
        sums: dict[str, Tensor] = {}
        for micro, batch in self.micro_batches(minibatch):
            learner(batch, Losses(micro, tokens, self.config, sums))
        return sums

    def micro_batches(self, minibatch: Rollout) -> Iterator[tuple[Rollout, TokenBatch]]:
        """The minibatch in pieces that fit in memory, rows of like length together."""
        lengths = [len(p) + len(r) for p, r in zip(minibatch.prompts, minibatch.responses, strict=True)]
        for rows in length_sorted_batches(lengths, self.config.per_device_train_batch_size):
            micro = minibatch.part(rows)
            yield micro, self.batch(micro.prompts, micro.responses)

    # ------------------------------------------------------------------------------------------- going on

    def judge(self, done: int, kl: float) -> dict[str, float]:
        """The win rate of the policy after step `done`, where it counts for something."""
        self.require_finite_weights(done)
        if self.selection is None:
            return {}
        with unsharded_weights(self.policy.model):
            return self.selection.compare(done, self.policy, kl)

    def require_finite_weights(self, done: int) -> None:
        if not all_finite(self.trained.values()):
            raise self.diverged(done - 1, "a weight is not a finite number")

    def diverged(self, step: int, what: str, reason: str = "not_finite") -> Diverged:
        return Diverged("PPO", self.config, step + 1, what, reason)

    def save(self, done: int) -> None:
        """Keep all that step `done` + 1 needs. The draws are keyed by seed and step: there is no generator to keep."""
        self.require_finite_weights(done)
        state = training_state(self.trained, self.optimizer, kl_coef=self.kl_coef)

        def write(directory: Path) -> None:
            write_training_state(state, directory)
            if self.selection:
                weights = state["weights"].items()
                of_policy = {n.removeprefix("policy."): w for n, w in weights if n.startswith("policy.")}
                self.selection.save(done, of_policy, directory)

        self.context.checkpoints.save(done, write)

    @torch.no_grad()
    def chosen(self) -> CheckpointPolicy:
        """The policy that counts: of the best step, or as it is."""
        trained = {name: p for name, p in self.policy.model.named_parameters() if p.requires_grad}
        weights: Mapping[str, Tensor] = {name: full_tensor(p.data) for name, p in trained.items()}
        if self.selection and self.selection.best:
            weights = self.selection.best_weights()
        chosen = trainable_copy(self.start, self.config.lora) if self.context.backend.sharded else self.policy
        for name, parameter in chosen.model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(weights[name])
        return chosen

    def resume(self) -> int:
        """Take up the newest checkpoint, if there is one. Returns the number of steps done."""
        found = restore(self.context.checkpoints, self.trained, self.optimizer)
        if found is None:
            return 0
        done, directory, state = found
        self.kl_coef = state["kl_coef"]
        if self.selection:
            self.selection.load(directory)
        return done
