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

The value head starts at zero: the trunk knows what is good, the scale of returns is learned. Prompts that are too long
are left out, since a cut prompt no longer asks for what is scored. Old log-probabilities come from the training
forward at collection, not from the sampler: its cache and left padding round differently in half precision, and the
ratio must start at exactly 1. Dropout is off throughout, for the same reason. The reference is the start policy
itself, since what is trained is a copy. Every draw is keyed by seed and step: resuming needs no generator state.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from afarm.backend import (
    CheckpointPolicy,
    TokenBatch,
    TorchRewardModel,
    add_adapter,
    join_and_pad,
    length_sorted_batches,
    merge_adapter,
    response_logprobs,
)
from afarm.errors import DataError, TrainingError
from afarm.interfaces import Decoding, Method, MethodInputs, Policy, TrainContext
from afarm.keyed import integer
from afarm.records import Instruction, Sample
from afarm_plugins.ppo import PPOConfig, objective
from afarm_plugins.ppo.order import minibatches, prompt_order
from afarm_plugins.ppo.value_model import same_tokens, start_value_model, values

Tokens = Sequence[int]

STATE = "trainer.pt"
"""In a checkpoint: the trained weights of policy and value model, and the optimiser's state."""


class PPO(Method):
    """Returns the policy after the last step. The start policy and the reward model are left as they were."""

    needs = frozenset({"reward_model", "unlabeled"})

    def __init__(self, config: PPOConfig | None = None):
        self.config: PPOConfig = config or PPOConfig()

    def check(self, start: type[Policy] | None = None) -> Sequence[str]:
        if start is None or issubclass(start, CheckpointPolicy):
            return ()
        return [
            f"ppo trains the weights of a checkpoint, and {start.__name__} is a sampler around one: "
            "start from what it samples from"
        ]

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises `TrainingError` where the loss diverges, `DataError` where no prompt is short enough."""
        config = self.config
        trainer = Trainer(config, inputs, context)
        first = trainer.resume()
        for step in context.progress(range(first, config.total_steps), "PPO", config.total_steps - first):
            rollout, collected = trainer.collect(step)
            updated = trainer.update(step, rollout)
            done = step + 1
            context.log_metrics(done, {**collected, **updated, "episode": done * config.rollout_batch_size})
            stopping = done < config.total_steps and context.should_stop()
            if stopping or done % config.save_steps == 0 or done == config.total_steps:
                trainer.save(done)
            if stopping:
                # An unfinished policy must not be taken for the result, so stopping ends as Ctrl-C does.
                raise KeyboardInterrupt(f"PPO stopped after step {done}; the same command goes on from there")
        return trainer.policy


@dataclass
class Rollout:
    """B prompts and their responses; `scores` is [B], the other tensors are [B, R] with R the longest response."""

    prompts: Sequence[Tokens]
    responses: Sequence[Tokens]
    scores: Tensor
    mask: Tensor
    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def part(self, rows: Sequence[int]) -> Rollout:
        """Some rows, without the columns in which all of them are pads."""
        responses = [self.responses[i] for i in rows]
        index, width = torch.tensor(rows, device=self.mask.device), max(map(len, responses))
        columns = (self.mask, self.logprobs, self.values, self.advantages, self.returns)
        return Rollout(
            [self.prompts[i] for i in rows], responses, self.scores[index], *(c[index, :width] for c in columns)
        )


class Trainer:
    """The four models of PPO (policy, reference, value, reward), the optimiser, and the two halves of a step."""

    def __init__(self, config: PPOConfig, inputs: MethodInputs, context: TrainContext):
        if not isinstance(inputs.start, CheckpointPolicy) or inputs.reward_model is None:
            raise TrainingError(
                "ppo needs a checkpoint to start from and a reward model: fit one with afarm fit-reward"
            )
        self.config, self.context = config, context
        self.device = context.backend.device
        context.backend.seed(context.seed)  # adapters start from random numbers
        self.reward_model = inputs.reward_model
        self.same_tokens = same_tokens(inputs.reward_model, inputs.start)
        self.reference = inputs.start.model.eval()  # never touched: what is trained is a copy
        self.policy = inputs.start.copy()
        self.policy.model = merge_adapter(self.policy.model).requires_grad_(True)
        if config.lora is not None:
            self.policy.model = add_adapter(self.policy.model, config.lora)
        self.value_model = start_value_model(inputs.start, inputs.reward_model, config)
        self.models = nn.ModuleDict({"policy": self.policy.model, "value": self.value_model}).eval()
        if config.gradient_checkpointing:
            enable_gradient_checkpointing(self.models)
        self.trained = {name: p for name, p in self.models.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.trained.values(), lr=config.learning_rate, eps=config.adam_epsilon, weight_decay=0.0
        )
        self.prompts = self.short_enough(inputs.unlabeled)
        self.left_out = len(inputs.unlabeled) - len(self.prompts)

    def short_enough(self, instructions: Sequence[Instruction]) -> list[Instruction]:
        lengths = [len(ids) for ids in self.policy.prompt_ids(instructions)]
        limit = getattr(self.policy.model.config, "max_position_embeddings", None) or math.inf
        longest = min(self.config.max_prompt_length, limit - self.config.response_length)
        kept = [i for i, length in zip(instructions, lengths, strict=True) if length <= longest]
        if not kept:
            raise DataError(
                f"none of the {len(lengths)} unlabeled instructions has a prompt of at most {longest} tokens "
                f"(the shortest has {min(lengths, default=0)}): raise ppo.max_prompt_length, or lower "
                f"ppo.response_length where both exceed the model's {limit} positions"
            )
        return kept

    # ------------------------------------------------------------------------------------------- collecting

    def collect(self, step: int) -> tuple[Rollout, dict[str, float]]:
        """Sample, score, and estimate advantages. Returns the rollout and its metrics."""
        config = self.config
        instructions, samples = self.sample(step)
        prompts, responses = [s.prompt_ids for s in samples], [s.token_ids for s in samples]
        lengths = torch.tensor([len(r) for r in responses], device=self.device)
        mask = torch.arange(int(lengths.max()), device=self.device) < lengths.unsqueeze(1)
        scores, logprobs, ref_logprobs, old_values = self.context.backend.together(
            lambda: self.score(instructions, samples),
            lambda: self.read(lambda batch: self.logprobs(self.policy.model, batch), prompts, responses),
            lambda: self.read(lambda batch: self.logprobs(self.reference, batch), prompts, responses),
            lambda: self.read(lambda batch: values(self.value_model, batch), prompts, responses),
        )
        if not (torch.isfinite(scores).all() and torch.isfinite(logprobs).all()):
            raise self.diverged(step, "a score or a log-probability is not a finite number")

        rewards, kl = objective.kl_penalised_rewards(scores, logprobs, ref_logprobs, mask, config.kl_coef)
        non_score = -config.kl_coef * kl.sum(1)
        if config.whiten_rewards == "scale":
            rewards = objective.scale_rewards(rewards, mask)
        elif config.whiten_rewards == "shift":
            rewards = objective.whiten(rewards, mask, shift_mean=False)
        advantages, returns = objective.generalised_advantages(rewards, old_values, mask, config.gamma, config.lam)
        _, unexplained = objective.masked_mean_variance(returns - old_values, mask)
        _, variance = objective.masked_mean_variance(returns, mask)
        if config.whiten_advantages == "rollout":
            advantages = objective.whiten(advantages, mask)

        metrics: dict[str, Tensor | int] = {
            "objective/kl": kl.sum(1).mean(),
            "objective/entropy": -logprobs.sum(1).mean(),
            "objective/scores": scores.mean(),
            "objective/non_score_reward": non_score.mean(),
            "objective/rlhf_reward": (scores + non_score).mean(),
            "objective/length": mask.sum(1).float().mean(),
            "val/num_eos_tokens": sum(s.finish_reason == "stop" for s in samples),
            "val/explained_variance": 1 - unexplained / variance.clamp(min=1e-8),
            "data/prompts_left_out": self.left_out,
        }
        rollout = Rollout(prompts, responses, scores, mask, logprobs, old_values, advantages, returns)
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
        for number, rows in prompt_order(len(self.prompts), step, config.rollout_batch_size, seed):
            part = [self.prompts[row] for row in rows]
            instructions += part
            samples += self.policy.sample(part, decoding, seed=integer(seed, "ppo", "rollout", step, number))
        return instructions, samples

    @torch.no_grad()
    def score(self, instructions: Sequence[Instruction], samples: Sequence[Sample]) -> Tensor:
        """The reward model's scores [B], of the very tokens that were sampled wherever it can read them."""
        config, model = self.config, self.reward_model
        if isinstance(model, TorchRewardModel) and self.same_tokens:
            found = model.score_samples(samples)
        else:
            found = [s.value for s in model.score(instructions, [s.text for s in samples])]
        scores = torch.tensor(found, device=self.device)
        if config.missing_eos_penalty is not None:
            cut_off = torch.tensor([s.finish_reason != "stop" for s in samples], device=self.device)
            scores -= config.missing_eos_penalty * cut_off
        return scores

    @torch.no_grad()
    def read(
        self, of: Callable[[TokenBatch], Tensor], prompts: Sequence[Tokens], responses: Sequence[Tokens]
    ) -> Tensor:
        """What `of` gives for each response token, [B, R] and 0 at pads, in batches of like length."""
        found = torch.zeros(len(responses), max(map(len, responses)), device=self.device)
        lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
        for rows in length_sorted_batches(lengths, self.config.per_device_rollout_batch_size):
            part = of(self.batch([prompts[i] for i in rows], [responses[i] for i in rows]))
            found[rows, : part.shape[1]] = part
        return found

    def batch(self, prompts: Sequence[Tokens], responses: Sequence[Tokens]) -> TokenBatch:
        return join_and_pad(prompts, responses, self.policy.pad_id, self.device)

    def logprobs(self, model: nn.Module, batch: TokenBatch) -> Tensor:
        """Log-probabilities [b, r] of the response tokens, at the temperature they were sampled at."""
        return response_logprobs(
            model, batch.input_ids, batch.attention_mask, batch.response_mask, temperature=self.config.temperature
        )

    # --------------------------------------------------------------------------------------------- learning

    def update(self, step: int, rollout: Rollout) -> dict[str, float]:
        """The passes over the rollout. Returns metrics, each the mean over all tokens trained on."""
        config = self.config
        learning_rate = objective.learning_rate_at(step, config.learning_rate, config.warmup_steps, config.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if config.gradient_checkpointing:
            set_checkpointing_layers_to_train(self.models)
        totals: dict[str, float] = defaultdict(float)
        norms = []
        for rows in minibatches(len(rollout.prompts), step, config, self.context.seed):
            minibatch = rollout.part(rows)
            if config.whiten_advantages == "minibatch":
                minibatch.advantages = objective.whiten(minibatch.advantages, minibatch.mask)
            self.optimizer.zero_grad()  # once an optimiser step: the gradients of its micro-batches add up
            sums = self.backward(minibatch)
            norm = float(nn.utils.clip_grad_norm_(self.trained.values(), config.max_grad_norm))
            if not math.isfinite(norm):
                raise self.diverged(step, f"the norm of the gradient is {norm}")
            self.optimizer.step()
            for name, value in sums.items():
                totals[name] += float(value)
            norms.append(norm)
        tokens = totals.pop("tokens")
        means = {name: total / tokens for name, total in totals.items()}
        return {**means, "policy/grad_norm": sum(norms) / len(norms), "lr": learning_rate}

    def backward(self, minibatch: Rollout) -> Mapping[str, Tensor]:
        """Add the gradient of the minibatch's mean loss. Returns sums over its tokens."""
        tokens = minibatch.mask.sum()
        policy, value = self.context.backend.together(
            lambda: self.policy_backward(minibatch, tokens), lambda: self.value_backward(minibatch, tokens)
        )
        return {"tokens": tokens, **policy, **value}

    def policy_backward(self, minibatch: Rollout, tokens: Tensor) -> Mapping[str, Tensor]:
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.device))
        for micro, batch in self.micro_batches(minibatch):
            found = objective.policy_loss(
                self.logprobs(self.policy.model, batch),
                micro.logprobs,
                micro.advantages,
                micro.mask,
                self.config.cliprange,
                tokens,
            )
            found.loss.backward()
            sums["loss/policy_avg"] += found.loss.detach() * tokens
            sums["policy/approxkl_avg"] += found.approx_kl
            sums["policy/clipfrac_avg"] += found.clipped
            sums["val/ratio"] += found.ratio
        return sums

    def value_backward(self, minibatch: Rollout, tokens: Tensor) -> Mapping[str, Tensor]:
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.device))
        for micro, batch in self.micro_batches(minibatch):
            found = objective.value_loss(
                values(self.value_model, batch),
                micro.values,
                micro.returns,
                micro.mask,
                self.config.cliprange_value,
                tokens,
            )
            (self.config.vf_coef * found.loss).backward()
            sums["loss/value_avg"] += found.loss.detach() * tokens
            sums["val/clipfrac_avg"] += found.clipped
        return sums

    def micro_batches(self, minibatch: Rollout) -> Iterator[tuple[Rollout, TokenBatch]]:
        """The minibatch in pieces that fit in memory, rows of like length together."""
        lengths = [len(p) + len(r) for p, r in zip(minibatch.prompts, minibatch.responses, strict=True)]
        for rows in length_sorted_batches(lengths, self.config.per_device_train_batch_size):
            micro = minibatch.part(rows)
            yield micro, self.batch(micro.prompts, micro.responses)

    # ------------------------------------------------------------------------------------------- going on

    def save(self, done: int) -> None:
        """Keep all that step `done` + 1 needs. The draws are keyed by seed and step: there is no generator to keep."""
        if not all(torch.isfinite(p).all() for p in self.trained.values()):
            raise self.diverged(done - 1, "a weight is not a finite number")
        state = {
            "weights": {name: p.data for name, p in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
        }
        self.context.checkpoints.save(done, lambda directory: torch.save(state, directory / STATE))

    def resume(self) -> int:
        """Take up the newest checkpoint, if there is one. Returns the number of steps done."""
        latest = self.context.checkpoints.latest()
        if latest is None:
            return 0
        done, directory = latest
        state = torch.load(directory / STATE, map_location=self.device, weights_only=True)
        if state["weights"].keys() != self.trained.keys():
            raise TrainingError(f"{directory} holds a checkpoint of another model or of other settings: remove it")
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        return done

    def diverged(self, step: int, what: str) -> TrainingError:
        latest = self.context.checkpoints.latest()
        kept = (
            f"the last good checkpoint, of step {latest[0]}, is {latest[1]}" if latest else "no checkpoint was kept yet"
        )
        return TrainingError(
            f"PPO diverged at step {step + 1}: {what}; {kept}. "
            f"Try --set ppo.learning_rate={self.config.learning_rate / 2:g}, "
            f"a larger ppo.kl_coef (now {self.config.kl_coef:g}), or --set backend.dtype=float32"
        )


def enable_gradient_checkpointing(models: nn.Module) -> None:
    """Have every transformer recompute its layers' activations in the backward pass."""
    for module in models.modules():
        if isinstance(module, PreTrainedModel):
            # transformers is renaming it, and warns of the older name
            enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
            enable({"use_reentrant": False})


def set_checkpointing_layers_to_train(models: nn.Module) -> None:
    """Layers recompute in training mode only, and sampling leaves eval mode behind. Dropout, inside them, stays off."""
    for module in models.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True
