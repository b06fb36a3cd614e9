"""Policy-gradient methods: rollouts, their minibatches, and the gradient of a loss on tokens.

A method subclasses `PolicyGradientTrainer` with two functions: `collect`, which samples, scores and estimates
advantages, and `policy_loss`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from afarm.backend.batching import TokenBatch, join_and_pad, length_sorted_batches
from afarm.backend.distributed import all_reduce_by_name, shard
from afarm.backend.logprobs import before_responses, read_responses, token_logprobs, token_loss
from afarm.backend.on_policy import OnPolicyTrainer
from afarm.backend.policy import CheckpointPolicy
from afarm.backend.sharding import all_reduce_gradients
from afarm.core.records import Sample

Tokens = Sequence[int]


@dataclass
class RolloutBatch:
    """B responses of the policy and what is known of them; a subclass may add tensors [B] or [B, R].

    `scores` is [B]; the other tensors are [B, R], R being the longest response, and 0 or False at pads. `mask` is True
    at response tokens; `logprobs` are those of the policy that sampled, `ref_logprobs` those of the start policy.
    """

    samples: Sequence[Sample]
    scores: Tensor
    mask: Tensor
    logprobs: Tensor
    ref_logprobs: Tensor
    advantages: Tensor

    @property
    def prompts(self) -> list[Tokens]:
        """The token ids of each prompt."""
        return [sample.prompt_ids for sample in self.samples]

    @property
    def responses(self) -> list[Tokens]:
        """The token ids of each response."""
        return [sample.token_ids for sample in self.samples]

    def part(self, rows: Sequence[int]) -> Self:
        """Select rows, without the columns in which all of them are pads."""
        index = torch.tensor(rows, device=self.mask.device)
        width = max(len(self.samples[row].token_ids) for row in rows)

        def select(values: Any) -> Any:
            if not isinstance(values, Tensor):
                return [values[row] for row in rows]
            return values[index] if values.dim() == 1 else values[index, :width]

        return type(self)(**{f.name: select(getattr(self, f.name)) for f in fields(self)})


B = TypeVar("B", bound=RolloutBatch)


@dataclass
class Chunk:
    """Some response tokens of a minibatch, flat and row after row, as a loss meets them.

    They are those at `where` among the response tokens of `rows`, m in all; the whole minibatch has `tokens`, by which
    its loss is divided. `sums` collects sums over tokens, for metrics.
    """

    rows: Any
    where: slice
    tokens: Tensor
    sums: dict[str, Tensor]

    @property
    def mask(self) -> Tensor:
        """True [m] for each of these tokens."""
        return self.flat(self.rows.mask)

    def flat(self, values: Tensor) -> Tensor:
        """The values [m] of these tokens, of a tensor [B, R] of `rows`."""
        return values[self.rows.mask][self.where]

    def add(self, name: str, total: Tensor) -> None:
        """Add a sum over these tokens to the metric `name`, which becomes a mean over all tokens learned from."""
        self.sums[name] = self.sums[name] + total if name in self.sums else total


class PolicyGradientTrainer(OnPolicyTrainer[B]):
    """An on-policy loop whose update follows the gradient of a loss on response tokens.

    A method gives `collect`, which returns a `RolloutBatch`, and `policy_loss`.
    """

    num_epochs: int = 1
    """Passes over each rollout."""

    @abstractmethod
    def policy_loss(self, logprobs: Tensor, chunk: Chunk) -> Tensor:
        """The share of a chunk in its minibatch's mean loss, from its log-probabilities [m].

        These are the policy's, to be differentiated. A sum over tokens divided by `chunk.tokens`: then it changes
        nothing how a minibatch is cut for memory.
        """

    def update(self, step: int, rollout: B) -> dict[str, float]:
        """The passes over the rollout. Returns means over the tokens of all passes."""
        return self.descend(step, self.minibatches(step, rollout), self.backward).metrics()

    def minibatches(self, step: int, rollout: B) -> Iterator[B]:
        """The part of the rollout that each optimiser step learns from."""
        return (rollout.part(rows) for rows in self.shuffled(len(rollout.samples), step, self.num_epochs))

    def backward(self, minibatch: B) -> Mapping[str, Tensor]:
        """Add the gradient of the minibatch's mean loss, over all processes. Returns sums over its tokens."""
        tokens = minibatch.mask.sum()
        rows = shard(range(len(minibatch.samples)))  # of the last minibatch, some processes may have none
        sums = self.learn(minibatch.part(rows), tokens) if rows else {}
        all_reduce_gradients(self.trained.values())
        return {"tokens": tokens, **all_reduce_by_name(sums)}

    def learn(self, rows: B, tokens: Tensor) -> Mapping[str, Tensor]:
        """Add the gradient of these rows' share in the loss of a minibatch of `tokens` response tokens."""
        sums: dict[str, Tensor] = {}
        for part, batch in self.micro_batches(rows):
            hidden, targets = states_before(self.policy.model, batch)
            loss_of = of_chunks(self.policy_loss, part, tokens, sums)
            token_loss(self.policy.model, hidden, targets, loss_of, temperature=self.config.temperature).backward()
        return sums

    def micro_batches(self, rows: B) -> Iterator[tuple[B, TokenBatch]]:
        """Rows of like length together, in pieces that fit in memory."""
        lengths = [len(sample.prompt_ids) + len(sample.token_ids) for sample in rows.samples]
        for picked in length_sorted_batches(lengths, self.config.per_device_train_batch_size):
            part = rows.part(picked)
            yield part, join_and_pad(part.prompts, part.responses, self.policy.pad_id, self.device)

    # ---------------------------------------------------------------------------------------------------- reading

    def sampled_logprobs(self, samples: Sequence[Sample]) -> Tensor:
        """The policy's log-probabilities [B, R] of its samples: the sampler's if they are exact, else read."""
        rows = [sample.logprobs for sample in samples]
        if self.config.temperature != 1 or any(row is None for row in rows):
            return self.read(self.logprobs, samples)
        return nn.utils.rnn.pad_sequence([torch.tensor(row, device=self.device) for row in rows], batch_first=True)

    def read(self, of: Callable[[TokenBatch], Tensor], samples: Sequence[Sample]) -> Tensor:
        """Read what `of` gives for each response token: [B, R], 0 at pads. No gradient."""
        return read_responses(
            of,
            [sample.prompt_ids for sample in samples],
            [sample.token_ids for sample in samples],
            batch_size=self.config.per_device_rollout_batch_size,
            pad_id=self.policy.pad_id,
            device=self.device,
        )

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """The policy's log-probabilities [n] of a batch's response tokens, row after row; for `read`."""
        return self._logprobs(self.policy, batch)

    def ref_logprobs(self, batch: TokenBatch) -> Tensor:
        """The start policy's log-probabilities [n] of a batch's response tokens; for `read`."""
        return self._logprobs(self.start, batch)

    def _logprobs(self, policy: CheckpointPolicy, batch: TokenBatch) -> Tensor:
        return token_logprobs(policy.model, *states_before(policy.model, batch), temperature=self.config.temperature)


def response_mask(samples: Sequence[Sample], device: torch.device | str = "cpu") -> Tensor:
    """Mask [B, R] of the response tokens of samples, R being the longest response."""
    lengths = torch.tensor([len(sample.token_ids) for sample in samples], device=device)
    return torch.arange(int(lengths.max()), device=device) < lengths.unsqueeze(1)


def of_chunks(
    loss: Callable[[Tensor, Chunk], Tensor], rows: Any, tokens: Tensor, sums: dict[str, Tensor]
) -> Callable[[Tensor, slice], Tensor]:
    """`loss` of predictions [m] and their chunk, as a function of predictions and their place in `rows`."""
    return lambda predictions, where: loss(predictions, Chunk(rows, where, tokens, sums))


def states_before(model: Any, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """(hidden states [n, H] from which the response tokens of a batch are predicted, those tokens [n])."""
    return before_responses(model, batch.input_ids, batch.attention_mask, batch.response_mask)
