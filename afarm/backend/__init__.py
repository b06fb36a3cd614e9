"""The door for methods: load, sample, log-probabilities, rewards, checkpoints, trainers. Importing it loads torch."""

from afarm.backend.adapters import active_adapter, add_adapter, merge_adapter, merged_copy, sharing_copy
from afarm.backend.allocator import keep_freed_memory
from afarm.backend.batching import TokenBatch, join_and_pad, length_sorted_batches, pad
from afarm.backend.checkpoint_selection import Candidate, CheckpointSelection
from afarm.backend.device import Backend
from afarm.backend.logprobs import (
    before_responses,
    hidden_states,
    project,
    response_logprobs,
    response_scatter,
    token_logprobs,
    token_loss,
)
from afarm.backend.objectives import (
    PREFERENCE_LOSSES,
    KLEstimates,
    PolicyLoss,
    ValueLoss,
    bradley_terry_loss,
    clipped_policy_loss,
    clipped_value_loss,
    generalised_advantages,
    kl_estimates,
    kl_penalised_rewards,
    masked,
    masked_mean,
    masked_mean_variance,
    preference_losses,
    whiten,
)
from afarm.backend.policy import CheckpointPolicy, require_checkpoint
from afarm.backend.preferences import usable_pairs
from afarm.backend.prompts import PromptTemplate
from afarm.backend.reward_model import TorchRewardModel, agreement, head_scores, pair_rewards
from afarm.backend.sampling import Generation, Sampler, TorchSampler
from afarm.backend.sft import fit_supervised
from afarm.backend.trl_bridge import LengthSortedTrainer, TrainerBridge, train, trained_model, trainer_arguments
from afarm.core.config import LoraConfig, TrainerConfig
from afarm.storage.model_files import model_identity

__all__ = [
    "PREFERENCE_LOSSES",
    "Backend",
    "Candidate",
    "CheckpointPolicy",
    "CheckpointSelection",
    "Generation",
    "KLEstimates",
    "LengthSortedTrainer",
    "LoraConfig",
    "PolicyLoss",
    "PromptTemplate",
    "Sampler",
    "TokenBatch",
    "TorchRewardModel",
    "TorchSampler",
    "TrainerBridge",
    "TrainerConfig",
    "ValueLoss",
    "active_adapter",
    "add_adapter",
    "agreement",
    "before_responses",
    "bradley_terry_loss",
    "clipped_policy_loss",
    "clipped_value_loss",
    "fit_supervised",
    "generalised_advantages",
    "head_scores",
    "hidden_states",
    "join_and_pad",
    "keep_freed_memory",
    "kl_estimates",
    "kl_penalised_rewards",
    "length_sorted_batches",
    "masked",
    "masked_mean",
    "masked_mean_variance",
    "merge_adapter",
    "merged_copy",
    "model_identity",
    "pad",
    "pair_rewards",
    "preference_losses",
    "project",
    "require_checkpoint",
    "response_logprobs",
    "response_scatter",
    "sharing_copy",
    "token_logprobs",
    "token_loss",
    "train",
    "trained_model",
    "trainer_arguments",
    "usable_pairs",
    "whiten",
]
