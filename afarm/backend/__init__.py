"""The door for methods: models, sampling, log-probabilities, objectives, collectives, trainers.

Importing it loads torch.
"""

from typing import TYPE_CHECKING, Any

from afarm.backend.adapters import (
    LowRankUpdate,
    active_adapter,
    add_adapter,
    merge_adapter,
    merged_copy,
    plain_copy,
    sharing_copy,
    switch_off_dropout,
)
from afarm.backend.batching import (
    TokenBatch,
    chosen_and_rejected,
    join_and_pad,
    length_sorted_batches,
    pad,
    usable_pairs,
)
from afarm.backend.checkpoint_selection import Candidate, CheckpointSelection, selection_of
from afarm.backend.device import Backend
from afarm.backend.distributed import (
    all_gather,
    all_gather_object,
    all_reduce_by_name,
    all_reduce_mean,
    all_reduce_sum,
    barrier,
    broadcast,
    rank,
    shard,
    world_size,
)
from afarm.backend.engines import SamplingEngine, TorchEngine
from afarm.backend.kl import Divergence, KLEstimates, kl_estimates, kl_penalised_rewards, response_divergence
from afarm.backend.logprobs import (
    backbone,
    before_responses,
    evaluating,
    hidden_states,
    position_limit,
    project,
    read_responses,
    response_logprobs,
    response_scatter,
    token_logprobs,
    token_loss,
)
from afarm.backend.memory import PARTS, Held, Workload
from afarm.backend.model_configs import count_parameters, read_model_config
from afarm.backend.models import (
    enable_gradient_checkpointing,
    quiet_transformers,
    saved_by_afarm,
    set_checkpointing_layers_to_train,
)
from afarm.backend.objectives import (
    PolicyLoss,
    ValueLoss,
    bradley_terry_loss,
    clipped_policy_loss,
    clipped_value_loss,
    generalised_advantages,
    masked,
    masked_mean,
    masked_mean_variance,
    preference_losses,
    whiten,
)
from afarm.backend.on_policy import (
    Diverged,
    Training,
    backward_in_chunks,
    begin_update,
    chosen_policy,
    fall_back,
    linear_schedule,
    micro_batches,
    minibatches,
    optimizer_step,
    read_logprobs,
    response_mask,
    resume_training,
    rollout,
    sampled_logprobs,
    save_if_due,
    score,
    start_training,
    states_before,
    steps_left,
    watch_kl,
)
from afarm.backend.policy import CheckpointPolicy, batched_logprobs, require_checkpoint, trainable_copy
from afarm.backend.prompts import PromptTemplate, without_lone_surrogates
from afarm.backend.resume import continued_context, restore, training_state, write_training_state
from afarm.backend.reward_model import TorchRewardModel, head_scores, last_token_scores, pair_rewards, pairwise_accuracy
from afarm.backend.rollouts import (
    SampleScorer,
    best_sample,
    permutation,
    prompt_order,
    sample_scorer,
    scored_samples,
    short_prompts,
)
from afarm.backend.sampling import Generation, Sampler, TorchSampler
from afarm.backend.sft import fit_supervised
from afarm.backend.sharding import (
    all_finite,
    all_reduce_gradients,
    clip_gradients,
    full_tensor,
    gathered_weights,
    is_sharded,
    parameter_groups,
    shard_model,
    unsharded_weights,
)
from afarm.backend.trl_bridge import (
    CandidatePolicies,
    LengthSortedTrainer,
    TrainerBridge,
    run_trainer,
    trained_model,
    trainer_arguments,
)
from afarm.storage.checkpoints import wait_for

__all__ = [
    "PARTS",
    "Backend",
    "Candidate",
    "CandidatePolicies",
    "CheckpointPolicy",
    "CheckpointSelection",
    "Diverged",
    "Divergence",
    "Generation",
    "Held",
    "KLEstimates",
    "LengthSortedTrainer",
    "LowRankUpdate",
    "PolicyLoss",
    "PromptTemplate",
    "SampleScorer",
    "Sampler",
    "SamplingEngine",
    "TokenBatch",
    "TorchEngine",
    "TorchRewardModel",
    "TorchSampler",
    "TrainerBridge",
    "Training",
    "ValueLoss",
    "Workload",
    "active_adapter",
    "add_adapter",
    "all_finite",
    "all_gather",
    "all_gather_object",
    "all_reduce_by_name",
    "all_reduce_gradients",
    "all_reduce_mean",
    "all_reduce_sum",
    "backbone",
    "backward_in_chunks",
    "barrier",
    "batched_logprobs",
    "before_responses",
    "begin_update",
    "best_sample",
    "bradley_terry_loss",
    "broadcast",
    "chosen_and_rejected",
    "chosen_policy",
    "clip_gradients",
    "clipped_policy_loss",
    "clipped_value_loss",
    "continued_context",
    "count_parameters",
    "enable_gradient_checkpointing",
    "evaluating",
    "fall_back",
    "fit_supervised",
    "full_tensor",
    "gathered_weights",
    "generalised_advantages",
    "head_scores",
    "hidden_states",
    "is_sharded",
    "join_and_pad",
    "kl_estimates",
    "kl_penalised_rewards",
    "last_token_scores",
    "length_sorted_batches",
    "linear_schedule",
    "masked",
    "masked_mean",
    "masked_mean_variance",
    "merge_adapter",
    "merged_copy",
    "micro_batches",
    "minibatches",
    "optimizer_step",
    "pad",
    "pair_rewards",
    "pairwise_accuracy",
    "parameter_groups",
    "permutation",
    "plain_copy",
    "position_limit",
    "preference_losses",
    "project",
    "prompt_order",
    "quiet_transformers",
    "rank",
    "read_logprobs",
    "read_model_config",
    "read_responses",
    "require_checkpoint",
    "response_divergence",
    "response_logprobs",
    "response_mask",
    "response_scatter",
    "restore",
    "resume_training",
    "rollout",
    "run_trainer",
    "sample_scorer",
    "sampled_logprobs",
    "save_if_due",
    "saved_by_afarm",
    "score",
    "scored_samples",
    "selection_of",
    "set_checkpointing_layers_to_train",
    "shard",
    "shard_model",
    "sharing_copy",
    "short_prompts",
    "start_training",
    "states_before",
    "steps_left",
    "switch_off_dropout",
    "token_logprobs",
    "token_loss",
    "trainable_copy",
    "trained_model",
    "trainer_arguments",
    "training_state",
    "unsharded_weights",
    "usable_pairs",
    "wait_for",
    "watch_kl",
    "whiten",
    "without_lone_surrogates",
    "world_size",
    "write_training_state",
]

_TRAINERS = ("OnPolicyTrainer", "PolicyGradientTrainer", "Passes", "RolloutBatch", "Chunk", "of_chunks")

if not TYPE_CHECKING:  # a type checker would take every name then

    def __getattr__(name: str) -> Any:
        if name in _TRAINERS:  # an ImportError, since `from … import` drops the text of an AttributeError
            raise ImportError(
                f"afarm.backend has no {name} any more: on-policy methods write their own loop and call rollout, "
                "score, backward_in_chunks, optimizer_step, save_if_due …: docs/guides/write-a-plugin.md"
            )
        raise AttributeError(f"module 'afarm.backend' has no attribute {name!r}")
