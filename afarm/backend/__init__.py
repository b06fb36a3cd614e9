"""The door for methods: models, sampling, log-probabilities, objectives, collectives, trainers.

The first name that is used loads torch.
"""

from typing import TYPE_CHECKING

from afarm.core import open_door

if TYPE_CHECKING:
    from afarm.backend.adapters import LowRankUpdate as LowRankUpdate
    from afarm.backend.adapters import add_adapter as add_adapter
    from afarm.backend.adapters import plain_copy as plain_copy
    from afarm.backend.adapters import switch_off_dropout as switch_off_dropout
    from afarm.backend.batching import TokenBatch as TokenBatch
    from afarm.backend.batching import chosen_and_rejected as chosen_and_rejected
    from afarm.backend.batching import hold_out as hold_out
    from afarm.backend.batching import join_and_pad as join_and_pad
    from afarm.backend.batching import length_sorted_batches as length_sorted_batches
    from afarm.backend.batching import pad as pad
    from afarm.backend.batching import usable_pairs as usable_pairs
    from afarm.backend.chat_templates import render_chat as render_chat
    from afarm.backend.checkpoint_selection import Candidate as Candidate
    from afarm.backend.checkpoint_selection import CheckpointSelection as CheckpointSelection
    from afarm.backend.checkpoint_selection import make_selection as make_selection
    from afarm.backend.device import Backend as Backend
    from afarm.backend.distributed import all_gather as all_gather
    from afarm.backend.distributed import all_gather_object as all_gather_object
    from afarm.backend.distributed import all_reduce_by_name as all_reduce_by_name
    from afarm.backend.distributed import all_reduce_sum as all_reduce_sum
    from afarm.backend.distributed import barrier as barrier
    from afarm.backend.distributed import rank as rank
    from afarm.backend.distributed import shard as shard
    from afarm.backend.distributed import shared_batch as shared_batch
    from afarm.backend.distributed import world_size as world_size
    from afarm.backend.engines import SamplingEngine as SamplingEngine
    from afarm.backend.engines import TorchEngine as TorchEngine
    from afarm.backend.logprobs import backbone as backbone
    from afarm.backend.logprobs import before_responses as before_responses
    from afarm.backend.logprobs import chunk_rows as chunk_rows
    from afarm.backend.logprobs import evaluating as evaluating
    from afarm.backend.logprobs import hidden_states as hidden_states
    from afarm.backend.logprobs import logits_at_once as logits_at_once
    from afarm.backend.logprobs import position_limit as position_limit
    from afarm.backend.logprobs import project as project
    from afarm.backend.logprobs import read_responses as read_responses
    from afarm.backend.logprobs import response_logprobs as response_logprobs
    from afarm.backend.logprobs import response_scatter as response_scatter
    from afarm.backend.logprobs import token_logprobs as token_logprobs
    from afarm.backend.logprobs import token_loss as token_loss
    from afarm.backend.model_config import read_model_config as read_model_config
    from afarm.backend.models import quiet_transformers as quiet_transformers
    from afarm.backend.models import saved_by_afarm as saved_by_afarm
    from afarm.backend.objectives import KLEstimates as KLEstimates
    from afarm.backend.objectives import PolicyLoss as PolicyLoss
    from afarm.backend.objectives import clipped_policy_loss as clipped_policy_loss
    from afarm.backend.objectives import kl_estimates as kl_estimates
    from afarm.backend.objectives import masked as masked
    from afarm.backend.on_policy import Diverged as Diverged
    from afarm.backend.on_policy import Training as Training
    from afarm.backend.on_policy import backward_in_chunks as backward_in_chunks
    from afarm.backend.on_policy import begin_update as begin_update
    from afarm.backend.on_policy import chosen_policy as chosen_policy
    from afarm.backend.on_policy import fall_back as fall_back
    from afarm.backend.on_policy import micro_batches as micro_batches
    from afarm.backend.on_policy import minibatches as minibatches
    from afarm.backend.on_policy import optimizer_step as optimizer_step
    from afarm.backend.on_policy import read_logprobs as read_logprobs
    from afarm.backend.on_policy import response_mask as response_mask
    from afarm.backend.on_policy import resume_training as resume_training
    from afarm.backend.on_policy import rollout as rollout
    from afarm.backend.on_policy import sampled_logprobs as sampled_logprobs
    from afarm.backend.on_policy import save_if_due as save_if_due
    from afarm.backend.on_policy import score as score
    from afarm.backend.on_policy import start_training as start_training
    from afarm.backend.on_policy import states_before as states_before
    from afarm.backend.on_policy import steps_left as steps_left
    from afarm.backend.on_policy import watch_kl as watch_kl
    from afarm.backend.policy import CheckpointPolicy as CheckpointPolicy
    from afarm.backend.policy import batched_logprobs as batched_logprobs
    from afarm.backend.policy import require_checkpoint as require_checkpoint
    from afarm.backend.policy import trainable_copy as trainable_copy
    from afarm.backend.prompts import PromptTemplate as PromptTemplate
    from afarm.backend.prompts import without_lone_surrogates as without_lone_surrogates
    from afarm.backend.resume import continued_context as continued_context
    from afarm.backend.resume import restore as restore
    from afarm.backend.resume import training_state as training_state
    from afarm.backend.reward_model import TorchRewardModel as TorchRewardModel
    from afarm.backend.reward_model import head_scores as head_scores
    from afarm.backend.reward_model import last_token_scores as last_token_scores
    from afarm.backend.reward_model import pairwise_accuracy as pairwise_accuracy
    from afarm.backend.reward_model import tokens_at_once as tokens_at_once
    from afarm.backend.rollouts import SampleScorer as SampleScorer
    from afarm.backend.rollouts import best_sample as best_sample
    from afarm.backend.rollouts import permutation as permutation
    from afarm.backend.rollouts import prompt_order as prompt_order
    from afarm.backend.rollouts import sample_scorer as sample_scorer
    from afarm.backend.rollouts import scored_samples as scored_samples
    from afarm.backend.rollouts import short_prompts as short_prompts
    from afarm.backend.sampling import Generation as Generation
    from afarm.backend.sampling import Sampler as Sampler
    from afarm.backend.sampling import TorchSampler as TorchSampler
    from afarm.backend.sft import fit_supervised as fit_supervised
    from afarm.backend.sharding import all_reduce_gradients as all_reduce_gradients
    from afarm.backend.sharding import clip_gradients as clip_gradients
    from afarm.backend.sharding import gathered_weights as gathered_weights
    from afarm.backend.sharding import is_sharded as is_sharded
    from afarm.backend.sharding import parameter_groups as parameter_groups
    from afarm.backend.sharding import shard_model as shard_model
    from afarm.backend.sharding import transformer_layers as transformer_layers
    from afarm.backend.trl_bridge import CandidatePolicies as CandidatePolicies
    from afarm.backend.trl_bridge import LengthSortedTrainer as LengthSortedTrainer
    from afarm.backend.trl_bridge import run_trainer as run_trainer
    from afarm.backend.trl_bridge import trained_model as trained_model
    from afarm.backend.trl_bridge import trainer_arguments as trainer_arguments
    from afarm.storage.checkpoints import wait_for as wait_for
else:
    __all__, __getattr__, __dir__ = open_door(__name__)
