"""On-policy training: functions that a method's loop calls to sample, score, learn, save and resume.

The method writes the loop: `plugins-contrib/afarm-grpo` has the shortest, `afarm_plugins/ppo/ppo.py` the longest.
Shapes: B responses in a rollout, R tokens in the longest, n response tokens in a batch, m in a chunk. If several
processes train, all of them call each function. Draws are keyed by seed and step: resuming needs no generator's state.
"""

from __future__ import annotations

import copy
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from afarm.backend.batching import TokenBatch, join_and_pad, length_sorted_batches
from afarm.backend.checkpoint_selection import CheckpointSelection, make_selection
from afarm.backend.distributed import all_gather, barrier, shard, uneven_sizes, world_size
from afarm.backend.logprobs import ChunkLoss, before_responses, token_loss
from afarm.backend.models import enable_gradient_checkpointing, set_checkpointing_layers_to_train
from afarm.backend.policy import CheckpointPolicy, batched_logprobs, require_checkpoint, trainable_copy
from afarm.backend.resume import move_into, restore, write_checkpoint
from afarm.backend.reward_model import TorchRewardModel
from afarm.backend.rollouts import SampleScorer, permutation, prompt_order, sample_scorer, short_prompts
from afarm.backend.sharding import (
    all_finite,
    all_reduce_gradients,
    clip_gradients,
    empty_copy,
    gathered_weights,
    parameter_groups,
    shard_model,
    whole_model,
)
from afarm.core.config import OnPolicyConfig
from afarm.core.errors import ConfigError, TrainingError
from afarm.core.interfaces import Decoding, MethodInputs, TrainContext
from afarm.core.records import Instruction, Sample
from afarm.core.seeding import integer

logger = logging.getLogger(__name__)


class Diverged(TrainingError):
    """Training cannot go on from `step` (from 1); `reason` is "max_kl" or "not_finite", as in the log."""

    def __init__(self, config: OnPolicyConfig, step: int, what: str, reason: str = "not_finite"):
        self.step, self.reason = step, reason
        super().__init__(
            f"{config.method_name} diverged at step {step}: {what}. "
            f"Try --set {config.section}.learning_rate={config.learning_rate / 2:g}, "
            f"a larger {config.section}.kl_coef (now {config.kl_coef:g}), or --set backend.dtype=float32"
        )


# ------------------------------------------------------------------------------------------------- beginning and end


@dataclass
class Training:
    """The models of an on-policy training, its optimiser and its prompts.

    Dropout is off in all models. If the launch shards, this process holds its shard of each layer.

    Attributes:
        start: the policy that training starts from, and the KL's reference. Never changed.
        policy: the policy that is trained, samples and is returned.
        models: the trained models: "policy", and further networks by name.
        trained: the trained parameters by name, which begins with the model's ("policy.").
        prompts: the unlabeled instructions that are short enough.
        scorer: scores samples; `score` calls it. None for a method that needs no reward model.
        selection: the candidates for the best checkpoint; None if the last one counts.
        whole: the policy's model without weights, if the launch shards.
        kl: the policy's KL to `start` in nats per response, from the last `watch_kl`.
    """

    config: Any
    inputs: MethodInputs
    context: TrainContext
    start: CheckpointPolicy
    policy: CheckpointPolicy
    models: nn.ModuleDict
    trained: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer
    prompts: list[Instruction]
    scorer: SampleScorer | None
    selection: CheckpointSelection | None
    whole: Any = None
    kl: float | None = None

    @property
    def section(self) -> str:
        """The method's name in lower case, which is part of every seed."""
        return str(self.config.method_name.lower())


def start_training(
    config: Any,
    inputs: MethodInputs,
    context: TrainContext,
    policy: CheckpointPolicy | None = None,
    networks: Mapping[str, nn.Module] | None = None,
    *,
    peak_rate: Callable[[str], float] | None = None,
    fused: bool = True,
) -> Training:
    """Set up a training: models, an AdamW without weight decay, the prompts that fit.

    Raises `TrainingError` for a start without weights, `DataError` if no prompt is short enough, and `ConfigError` if
    the launch shards and its processes do not divide a batch.

    Args:
        config: an `OnPolicyConfig`.
        inputs: with `start` and `unlabeled`, and with `reward_model` if `score` is called.
        context: of the training stage.
        policy: what to train (default: a `trainable_copy` of the start). Call `context.backend.seed(context.seed)`
            before you make it.
        networks: what is trained beside the policy, by name; checkpoints use these names.
        peak_rate: the peak learning rate of a parameter, by its name in `Training.trained` (default: the config's).
            All follow one schedule.
        fused: use the fused AdamW, which rounds differently.
    """
    section, reward_model = config.section, inputs.reward_model
    start = require_checkpoint(inputs.start, section)
    start.model.eval()
    if policy is None:
        context.backend.seed(context.seed)  # adapters start from random numbers
        policy = trainable_copy(start, config.lora)
    models, whole = nn.ModuleDict({"policy": policy.model, **(networks or {})}), None
    if context.backend.sharded:
        whole = empty_copy(policy.model)
        if uneven := uneven_sizes(section, config, world_size(), sharded=True):
            raise ConfigError(uneven)
        shard_model(models, context.backend)
        frozen = [start.model]
        if isinstance(reward_model, TorchRewardModel) and reward_model.reads_tokens_of(start):
            frozen.append(reward_model.model)
        shard_model(nn.ModuleList(frozen), context.backend)
    models.eval()
    if config.gradient_checkpointing:
        enable_gradient_checkpointing(models)
    trained = {name: p for name, p in models.named_parameters() if p.requires_grad}
    by_peak: dict[float, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in trained.items():
        by_peak[peak_rate(name) if peak_rate else config.learning_rate].append(parameter)
    optimizer = torch.optim.AdamW(
        parameter_groups({"params": group, "factor": peak / config.learning_rate} for peak, group in by_peak.items()),
        lr=config.learning_rate,
        eps=config.adam_epsilon,
        weight_decay=0.0,
        fused=fused,
    )
    setting = f"{section}.max_prompt_length"
    prompts = short_prompts(policy, inputs.unlabeled, config.max_prompt_length, config.response_length, setting)
    scorer = sample_scorer(reward_model, start) if reward_model else None
    selection = make_selection(config, inputs, context)
    return Training(
        config, inputs, context, start, policy, models, trained, optimizer, prompts, scorer, selection, whole
    )


def resume_training(training: Training) -> tuple[int, dict[str, Any]]:
    """Restore the newest checkpoint, if there is one.

    Returns the steps done and the state that `save_if_due` was given; 0 and no state without a checkpoint.
    """
    training.kl = None
    restored = restore(training.context.checkpoints, training.trained, training.optimizer)
    if restored is None:
        return 0, {}
    done, directory, state = restored
    training.kl = state.get("kl")
    if training.selection:
        training.selection.load(directory)
    return done, state


def steps_left(training: Training, done: int) -> Iterator[int]:
    """Yield the steps (from 0) after the first `done`, then `total_steps` for a last rollout.

    It measures the last step's policy, so that `save_if_due` keeps none unmeasured. Yields nothing if all steps are
    done.
    """
    total = training.config.total_steps
    yield from training.context.progress(range(done, total), training.config.method_name, total)
    if done < total:
        yield total


def fall_back(training: Training, error: Diverged) -> None:
    """Go back to the checkpoint before training diverged, and log why. Raises `error` if there is none."""
    if not resume_training(training)[0]:
        raise error
    kl = {} if training.kl is None else {"last/kl": training.kl}
    training.context.log_metrics(error.step, {f"stopped/{error.reason}": error.step, **kl})
    logger.warning("%s. The %s checkpoint before is kept", error, "best" if training.selection else "last")


@torch.no_grad()
def chosen_policy(training: Training) -> CheckpointPolicy:
    """Return the policy with the best checkpoint's weights if there is a selection, else the last ones."""
    policy = training.policy
    if training.whole is not None:
        policy = copy.copy(policy)
        policy.model = whole_model(training.whole, gathered_weights(dict(policy.model.named_parameters())))
    if training.selection and training.selection.best:
        weights = training.selection.best_weights()
        for name, parameter in policy.model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(weights[name])
    return policy


# ---------------------------------------------------------------------------------------------- sampling and reading


def rollout(
    training: Training, step: int, policy: CheckpointPolicy | None = None, draws: str = "rollout"
) -> tuple[list[int], list[Sample]]:
    """Sample the B = `rollout_batch_size` responses of `step` (from 0): (prompts, samples).

    Prompts are indices into `training.prompts`. The `num_generations` responses to one prompt are consecutive. Each
    pass over the prompts has its own order and seeds, so a prompt gets new draws. Each process samples a share; all get
    all. `policy` samples (default: `training.policy`, whose weights are trained). Other `draws` answer the same prompts
    independently.
    """
    config, seed, prompts = training.config, training.context.seed, training.prompts
    policy, n = policy or training.policy, config.num_generations
    decoding = Decoding(
        temperature=config.temperature,
        max_new_tokens=config.response_length,
        n=n,
        per_device_batch_size=config.per_device_rollout_batch_size,
    )
    answered: list[int] = []
    samples: list[Sample] = []
    for number, rows in prompt_order(len(prompts), step, config.rollout_batch_size // n, seed, training.section):
        key = integer(seed, training.section, draws, step, number)
        with policy.ready_to_sample():
            own = list(policy.sample([prompts[row] for row in shard(rows)], decoding, seed=key))
        for group in all_gather([own[first : first + n] for first in range(0, len(own), n)]):
            samples += group
        answered += [row for row in rows for _ in range(n)]
    return answered, samples


@torch.no_grad()
def score(training: Training, prompts: Sequence[int], samples: Sequence[Sample]) -> list[float]:
    """Score B samples with the reward model: the sampled tokens if it shares the vocabulary, else text.

    `prompts` are indices, as from `rollout`. Each process scores a share; all get all. Raises `TrainingError` if the
    inputs have no reward model.
    """
    if training.scorer is None:
        raise TrainingError(f"{training.config.method_name} scores samples: name 'reward_model' in its needs")
    own, instructions = shard(samples), [training.prompts[number] for number in shard(prompts)]
    return all_gather(training.scorer(instructions, own))


def read_logprobs(training: Training, policy: CheckpointPolicy, samples: Sequence[Sample]) -> Tensor:
    """Compute log-probabilities [B, R] of samples under `policy` at the rollouts' temperature, 0 at pads.

    Without gradient. Each process reads a share, and the shares are summed.
    """
    return batched_logprobs(
        policy,
        [sample.prompt_ids for sample in samples],
        [sample.token_ids for sample in samples],
        batch_size=training.config.per_device_rollout_batch_size,
        temperature=training.config.temperature,
    )


def sampled_logprobs(training: Training, samples: Sequence[Sample]) -> Tensor:
    """Return the policy's log-probabilities [B, R] of its samples: the sampler's, or read if inexact."""
    rows = [sample.logprobs for sample in samples]
    if training.config.temperature != 1 or any(row is None for row in rows):
        return read_logprobs(training, training.policy, samples)
    device = training.context.backend.device
    return nn.utils.rnn.pad_sequence([torch.tensor(row, device=device) for row in rows], batch_first=True)


def response_mask(samples: Sequence[Sample], device: torch.device | str = "cpu") -> Tensor:
    """Mask [B, R] of the response tokens of samples, R being the longest response."""
    lengths = torch.tensor([len(sample.token_ids) for sample in samples], device=device)
    return torch.arange(int(lengths.max()), device=device) < lengths.unsqueeze(1)


def states_before(model: Any, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Compute the hidden states [n, H] that predict the response tokens of a batch, and the tokens [n]."""
    return before_responses(model, batch.input_ids, batch.attention_mask, batch.response_mask)


def watch_kl(training: Training, step: int, kl: float) -> None:
    """Keep the policy's KL to its start, in nats per response.

    Raises `Diverged` naming `step` (from 0) if it is not finite or exceeds `max_kl`.
    """
    config = training.config
    if not math.isfinite(kl):
        raise Diverged(config, step + 1, "the KL is not a finite number")
    if config.max_kl is not None and kl > config.max_kl:
        limit = f"more than {config.section}.max_kl ({config.max_kl:g})"
        raise Diverged(config, step + 1, f"the KL to the start policy is {kl:.3g} nats, {limit}", "max_kl")
    training.kl = kl


# ---------------------------------------------------------------------------------------------------------- learning


def linear_schedule(step: int, peak: float, warmup_steps: int, total_steps: int) -> float:
    """Learning rate of `step` (from 0): linear, up to `peak` over `warmup_steps`, then down towards 0.

    Above 0 at the first step, so that no rollout is wasted.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    return peak * (total_steps - step) / (total_steps - warmup_steps)


def begin_update(training: Training, step: int) -> float:
    """Set and return the learning rate of `step` (from 0); turn on gradient checkpointing if configured.

    Call it after sampling and reading, before the passes over a rollout.
    """
    config = training.config
    rate = linear_schedule(step, config.learning_rate, config.warmup_steps, config.total_steps)
    for group in training.optimizer.param_groups:
        group["lr"] = rate * group["factor"]
    if config.gradient_checkpointing:
        set_checkpointing_layers_to_train(training.models)
    return rate


def minibatches(training: Training, step: int, epoch: int, count: int) -> list[list[int]]:
    """Cut one pass over `count` rows, in random order, into the rows of each optimiser step.

    A pass has at most `rollout_batch_size` rows, a step `mini_batch_size`. The same in all processes.
    """
    config = training.config
    order = permutation(count, training.context.seed, training.section, "minibatches", step, epoch)
    order = order[: config.rollout_batch_size]
    return [order[start : start + config.mini_batch_size] for start in range(0, len(order), config.mini_batch_size)]


def micro_batches(
    training: Training, samples: Sequence[Sample], rows: Sequence[int], *tensors: Tensor
) -> Iterator[tuple[TokenBatch, list[Tensor]]]:
    """Cut this process's share of a minibatch into batches that fit in memory, the longest rows first.

    `rows` are the minibatch's, in all processes; `tensors` are [B, R], of all samples. Yields each batch with the
    tensors' values [n] at its response tokens, row by row. Gradients and sums of them are this process's own:
    `optimizer_step` sums gradients over the processes, `all_reduce_by_name` sums for metrics.
    """
    own = shard(rows)
    lengths = [len(samples[row].prompt_ids) + len(samples[row].token_ids) for row in own]
    batches = length_sorted_batches(lengths, training.config.per_device_train_batch_size)
    description = f"{training.config.method_name}, micro-batches of a step"
    for places in training.context.progress(batches, description) if len(batches) > 1 else batches:
        picked = [own[place] for place in places]
        prompts, responses = [samples[row].prompt_ids for row in picked], [samples[row].token_ids for row in picked]
        device = training.context.backend.device
        mask = response_mask([samples[row] for row in picked], device)
        flat = [tensor[picked, : mask.shape[1]][mask] for tensor in tensors]
        yield join_and_pad(prompts, responses, training.policy.pad_id, device), flat


def backward_in_chunks(
    training: Training, samples: Sequence[Sample], rows: Sequence[int], loss_of: ChunkLoss, *tensors: Tensor
) -> None:
    """Add the gradient of a loss on the policy's log-probabilities of a minibatch's response tokens.

    Each process adds its share of the rows; `optimizer_step` sums gradients over processes. Only a chunk's logits exist
    at once.

    Args:
        training: whose policy learns.
        samples: the B samples of the rollout.
        rows: the rows of the minibatch, in all processes.
        loss_of: takes log-probabilities [m] of a chunk of response tokens and the values [m] of `tensors` there.
            Returns a sum over tokens divided by the response tokens of the whole minibatch, so that no result depends
            on how a minibatch is cut.
        tensors: [B, R], of all samples.
    """
    model, temperature = training.policy.model, training.config.temperature
    for batch, flat in micro_batches(training, samples, rows, *tensors):
        hidden, targets = states_before(model, batch)
        token_loss(model, hidden, targets, loss_of, *flat, temperature=temperature).backward()


def optimizer_step(training: Training, step: int) -> float:
    """Sum gradients over the processes, clip them to `max_grad_norm`, take a step and clear them.

    Returns their L2 norm before clipping. Raises `Diverged` naming `step` (from 0), with all weights as they were, if
    the norm is not finite.
    """
    all_reduce_gradients(training.trained.values())
    norm = clip_gradients(training.trained.values(), training.config.max_grad_norm)
    if not math.isfinite(norm):
        raise Diverged(training.config, step + 1, f"the norm of the gradient is {norm}")
    training.optimizer.step()
    training.optimizer.zero_grad()  # also so that gradients take no memory while the next step samples
    return norm


# ------------------------------------------------------------------------------------------------------------ keeping


def save_if_due(training: Training, done: int, **state: Any) -> None:
    """Judge and save the policy after `done` steps if it is a candidate, and stop if the context says so.

    Every `save_steps`-th step and the last are candidates. A checkpoint holds weights, optimiser, selection and
    `state`. Raises `Diverged` if a weight is not finite, and `KeyboardInterrupt`, after a checkpoint, if training is to
    stop. Call it after `watch_kl`, but not for the step that training went on from.
    """
    config, context, selection = training.config, training.context, training.selection
    is_last = done == config.total_steps
    is_candidate = is_last or done % config.save_steps == 0
    if is_last and training.kl is not None:
        context.log_metrics(done, {"last/kl": training.kl})
    if is_candidate and selection:
        _require_finite_weights(training, done)
        if not selection.knows_start:  # separately, so that no process holds both models whole
            with training.start.ready_to_sample():
                selection.answer_start()
        with training.policy.ready_to_sample():
            judged = selection.compare(done, training.policy, training.kl)
        if judged:
            context.log_metrics(done, judged)
    stopping = not is_last and context.should_stop()
    if stopping or is_candidate:
        _require_finite_weights(training, done)
        unpublished, trained = context.directory / ".checkpoint", training.trained
        write_checkpoint(unpublished, trained, training.optimizer, **state)
        of_policy: dict[str, Tensor] = {}
        if selection:
            named = {n.removeprefix("policy."): p for n, p in trained.items() if n.startswith("policy.")}
            of_policy = gathered_weights(named, by_all=False)
        barrier()  # each process has written its part

        def write(directory: Any) -> None:
            move_into(directory, unpublished)
            if selection:
                selection.save(done, of_policy, directory)

        context.checkpoints.save(done, write)
    if stopping:
        # An unfinished policy must not be mistaken for the result, so this ends like Ctrl-C.
        name = config.method_name
        raise KeyboardInterrupt(f"{name} stopped after step {done}; the same command goes on from there")


def _require_finite_weights(training: Training, done: int) -> None:
    if not all_finite(training.trained.values()):
        raise Diverged(training.config, done, "a weight is not a finite number")
