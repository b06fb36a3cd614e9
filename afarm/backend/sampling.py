"""Sampling: token ids in, token ids and log-probabilities out.

A `SamplingEngine` makes a `Sampler` of a policy (see `engines`). `TorchSampler` is a loop over the model's forward pass
that is faster than `generate` on small models and ragged batches: rows leave the batch as they finish, the samples of
one prompt share its prefill, and prompts of similar length are batched together.

Each row inverts the cumulative distribution at uniforms keyed by prompt and sample number, so a sample does not depend
on its batch (up to the last bits, which batch shapes change in matrix products).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from afarm.backend.batching import pad
from afarm.backend.growing_cache import growing_cache
from afarm.backend.logprobs import backbone, evaluating, log_normaliser, positions, project
from afarm.backend.product_attention import is_half_on_cpu
from afarm.core.errors import ModelError
from afarm.core.interfaces import Decoding, Progress, no_progress
from afarm.core.seeding import integer

VOCABULARY_BLOCK = 256
"""Neighbouring tokens whose probabilities are summed before one of them is chosen."""

WINDOW_BATCHES = 8
"""Prompts are sorted by length within this many batches, which bounds what waits to be yielded in order."""

MOST_PADS = 65_536
"""The most pads in one batch's prompts: a batch of 128 short ones stays below it."""

WORTH_SHARING = 8
"""Tokens of a common beginning from which it is worth reading once."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled response, its `finish_reason` "stop" or "length".

    `logprobs` are natural, at temperature 1, or None if they would not be exact.
    """

    token_ids: list[int]
    logprobs: list[float] | None
    finish_reason: str


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Prompts that the models have read: a cache of each, the next token's logits [B, V], the mask [B, T].

    The first batch uses up the caches, unless they are `shared` by all batches of one prompt's samples.
    """

    prompts: list[int]
    shared: bool
    caches: list[DynamicCache]
    logits: torch.Tensor
    mask: torch.Tensor
    padded: bool


class Sampler(Protocol):
    """An engine that continues token ids."""

    def generate(
        self, prompts: Sequence[Sequence[int]], keys: Sequence[str], decoding: Decoding, *, seed: int
    ) -> Iterator[Generation]:
        """Yield `decoding.n` consecutive generations for each prompt, in order, as they are ready.

        Sample j of a prompt with key k depends on (seed, k, j), the prompt and the model only.
        """
        ...


@dataclass(eq=False)
class TorchSampler:
    """A sampler on a transformers causal LM (adapters included) with its key-value cache.

    `eos_ids` end a response and belong to it. `logit_bias` is added to these tokens' logits for the choice, but not for
    the log-probabilities. `progress` wraps the batches of a `generate` that has several.

    With `mixed_with`, another model of the same vocabulary and its share c, it samples from their geometric mixture:
    logits, and so log-probabilities, are those of (1 − c) · `model` + c · the other's.
    """

    model: PreTrainedModel
    eos_ids: Sequence[int]
    pad_id: int
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    progress: Progress = no_progress
    mixed_with: tuple[PreTrainedModel, float] | None = None

    @property
    def models(self) -> list[PreTrainedModel]:
        """The models whose logits count, each with a cache of its own."""
        return [self.model] if self.mixed_with is None else [self.model, self.mixed_with[0]]

    def generate(
        self, prompts: Sequence[Sequence[int]], keys: Sequence[str], decoding: Decoding, *, seed: int
    ) -> Iterator[Generation]:
        n, size = decoding.n, decoding.per_device_batch_size
        ready: dict[tuple[int, int], Generation] = {}
        due = ((i, sample) for i in range(len(prompts)) for sample in range(n))
        awaited = next(due, None)
        prefix: _Prefix | None = None
        lengths = [len(prompt) for prompt in prompts]
        window = max(1, WINDOW_BATCHES * size // n)
        windows = [
            sorted(range(start, min(start + window, len(lengths))), key=lambda i: (lengths[i], i))
            for start in range(0, len(lengths), window)
        ]
        total = -(-n // size) * sum(1 for window in windows for _ in _groups(window, lengths, max(1, size // n)))
        work = (batch for window in windows for batch in batches(window, lengths, n, size))
        # Little of a window can be yielded before its end, so progress counts batches drawn.
        for batch in self.progress(work, "batches drawn", total) if total > 1 else work:
            uniforms = None if decoding.temperature == 0 else _uniforms(batch, keys, decoding.max_new_tokens, seed)
            distinct = list(dict.fromkeys(i for i, _ in batch))
            # The mode is restored before anything is yielded, since the consumer may train in between.
            with torch.inference_mode(), evaluating(self.model), evaluating(self.models[-1]):
                if prefix is None or prefix.prompts != distinct:
                    prefix = None  # its caches are freed before others are filled
                    prefix = self._prefill(distinct, prompts, n > len(batch))
                ready.update(zip(batch, self._generate_batch(batch, prefix, decoding, uniforms), strict=True))
                if not prefix.shared:
                    prefix = None
            while awaited in ready:
                yield ready.pop(awaited)
                awaited = next(due, None)

    def _prefill(self, distinct: list[int], prompts: Sequence[Sequence[int]], shared: bool) -> _Prefix:
        device = next(self.model.parameters()).device
        caches, read = [growing_cache(model) for model in self.models], 0
        if is_half_on_cpu(self.model):
            read = common_beginning([prompts[i] for i in distinct])
            if read:  # once for all; each row gets a copy
                ids = torch.tensor([list(prompts[distinct[0]][:read])], device=device)
                position = torch.arange(read, device=device).unsqueeze(0)
                for model, cache in zip(self.models, caches, strict=True):
                    backbone(model)(input_ids=ids, position_ids=position, past_key_values=cache, use_cache=True)
                    cache.batch_select_indices(torch.zeros(len(distinct), dtype=torch.long, device=device))
        ids, mask = pad([prompts[i][read:] for i in distinct], self.pad_id, "left", device)
        padded = bool((mask == 0).any())  # without pads no mask is needed, which is faster
        mask = torch.cat([mask.new_ones(len(mask), read), mask], dim=-1)
        position = positions(mask)[:, read:]
        logits = self._forward(ids, position, mask if padded or read else None, caches)
        return _Prefix(distinct, shared, caches, logits, mask, padded)

    def _generate_batch(
        self, rows: Sequence[tuple[int, int]], prefix: _Prefix, decoding: Decoding, uniforms: torch.Tensor | None
    ) -> list[Generation]:
        """Continue `prefix` for all `rows` (prompt, sample number)."""
        device, padded = prefix.logits.device, prefix.padded
        row_prompt = torch.tensor([prefix.prompts.index(i) for i, _ in rows], device=device)
        eos = torch.tensor(self.eos_ids, device=device)
        caches = copy.deepcopy(prefix.caches) if prefix.shared else prefix.caches
        logits, mask = prefix.logits, prefix.mask
        if len(prefix.prompts) < len(rows):
            for cache in caches:
                cache.batch_select_indices(row_prompt)
            logits, mask = logits[row_prompt], mask[row_prompt]
        position = mask.sum(-1, keepdim=True)

        limit = decoding.max_new_tokens
        tokens = torch.full((len(rows), limit), self.pad_id, device=device)
        logprobs = torch.zeros((len(rows), limit), device=device)
        lengths = torch.full((len(rows),), limit, device=device)
        stopped = torch.zeros(len(rows), dtype=torch.bool, device=device)
        uniforms = uniforms.to(device) if uniforms is not None else None
        active = torch.arange(len(rows), device=device)
        bias = None
        if self.logit_bias:
            bias = logits.new_zeros(logits.shape[-1])
            bias[list(self.logit_bias)] = logits.new_tensor(list(self.logit_bias.values()))
        weights = next(self.model.parameters())
        exact = weights.dtype == torch.float32 and not torch.is_autocast_enabled(weights.device.type)
        for step in range(limit):
            probabilities = logits.softmax(-1) if exact else None
            biased, softmax = (logits, probabilities) if bias is None else (logits + bias, None)
            token = choose(biased, decoding, None if uniforms is None else uniforms[active, step], softmax)
            tokens[active, step] = token
            if probabilities is not None:
                normaliser = log_normaliser(logits.amax(-1), probabilities)
                logprobs[active, step] = logits.gather(-1, token.unsqueeze(-1)).squeeze(-1) - normaliser
            done = torch.isin(token, eos)
            if done.any():
                lengths[active[done]] = step + 1
                stopped[active[done]] = True
                running = (~done).nonzero().squeeze(-1)
                if not len(running):
                    break
                for cache in caches:
                    cache.batch_select_indices(running)
                active, token, mask, position = active[running], token[running], mask[running], position[running]
            if step + 1 == limit:
                break
            if padded:
                mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=-1)
            logits = self._forward(token.unsqueeze(-1), position, mask if padded else None, caches)
            position = position + 1
        kept_logprobs = logprobs.tolist() if exact else [None] * len(rows)
        return [
            Generation(ids[:n], lp[:n] if lp is not None else None, "stop" if stop else "length")
            for ids, lp, n, stop in zip(tokens.tolist(), kept_logprobs, lengths.tolist(), stopped.tolist(), strict=True)
        ]

    def _forward(
        self, ids: torch.Tensor, position: torch.Tensor, mask: torch.Tensor | None, caches: Sequence[DynamicCache]
    ) -> torch.Tensor:
        """Compute next-token logits [B, V] in float32."""
        logits = []
        for model, cache in zip(self.models, caches, strict=True):
            output = backbone(model)(
                input_ids=ids, position_ids=position, attention_mask=mask, past_key_values=cache, use_cache=True
            )
            # As [B, H]: given [B, 1, H], the head would multiply each row separately
            logits.append(project(model, output.last_hidden_state[:, -1]))
        return logits[0] if self.mixed_with is None else logits[0].lerp(logits[1], self.mixed_with[1])


def choose(
    logits: torch.Tensor, decoding: Decoding, uniforms: torch.Tensor | None, softmax: torch.Tensor | None = None
) -> torch.Tensor:
    """Choose the next token [B] by `logits` [B, V]: the likeliest, or by each row's uniform [B].

    `softmax` is the softmax of `logits`, if known. Cumulative sums are in float64, since float32 loses too much over a
    large vocabulary, and over blocks first, so that only the chosen block is summed token by token.
    """
    if uniforms is None:
        highest, likeliest = logits.max(-1)
        _require_finite(highest, decoding)
        return likeliest
    if decoding.temperature == 1 and softmax is not None:
        probabilities = softmax
    else:
        probabilities = (logits / decoding.temperature).softmax(-1)
    if decoding.top_p < 1:
        probabilities = nucleus(probabilities.double(), decoding.top_p)
    if short := -logits.shape[-1] % VOCABULARY_BLOCK:
        probabilities = torch.nn.functional.pad(probabilities, (0, short))
    blocks = probabilities.unflatten(-1, (-1, VOCABULARY_BLOCK))
    sums = blocks.sum(-1).double()
    total = sums.sum(-1)
    _require_finite(total, decoding)
    block, remainder = _fall(sums, uniforms.double() * total)
    token, _ = _fall(blocks[torch.arange(len(block), device=block.device), block].double(), remainder)
    return block * VOCABULARY_BLOCK + token


def _require_finite(numbers: torch.Tensor, decoding: Decoding) -> None:
    """Raise `ModelError` if logits, or logits divided by the temperature, are not finite."""
    if not numbers.isfinite().all():
        raise ModelError(
            f"the model's logits are not finite numbers at temperature {decoding.temperature:g}: its weights are "
            "damaged, its dtype is too narrow (--set backend.dtype=float32), or the temperature is near 0 (0 is greedy)"
        )


def _fall(weights: torch.Tensor, threshold: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find where the cumulative sum of `weights` [B, N] exceeds `threshold` [B], and the remainder there."""
    cumulative = weights.cumsum(-1)
    # Sums in another order differ in their last bits; staying below the end, the entry has a weight.
    threshold = torch.minimum(threshold, cumulative[:, -1] * (1 - 2**-52)).unsqueeze(-1)
    entry = torch.searchsorted(cumulative, threshold, right=True)
    before = cumulative.gather(-1, entry) - weights.gather(-1, entry)
    return entry.squeeze(-1), (threshold - before).squeeze(-1)


def nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero `probabilities` [B, V] outside the smallest set of likeliest tokens that reaches `top_p`."""
    ordered, order = probabilities.sort(stable=True, dim=-1, descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return probabilities.scatter(-1, order, ordered.masked_fill(outside, 0.0))


def common_beginning(prompts: Sequence[Sequence[int]]) -> int:
    """Count the tokens, but the last, that all prompts begin with; 0 if too few to be worth a pass."""
    shortest = min(len(prompt) for prompt in prompts) - 1
    first = prompts[0]
    shared = next((i for i in range(shortest) if any(p[i] != first[i] for p in prompts)), shortest)
    return shared if len(prompts) > 1 and shared >= WORTH_SHARING else 0


def batches(prompts: Sequence[int], lengths: Sequence[int], n: int, size: int) -> Iterator[list[tuple[int, int]]]:
    """Cut the rows (prompt, sample number) into batches of at most `size` that share a prefill.

    A batch has all samples of several prompts, or an even part of one prompt's. `prompts` are in the order of their
    `lengths` in tokens. A prompt that would bring the pads above `MOST_PADS` begins a batch.
    """
    parts = -(-n // size)
    for group in _groups(prompts, lengths, max(1, size // n)):
        for part in range(parts):
            yield [(i, sample) for i in group for sample in range(part * n // parts, (part + 1) * n // parts)]


def _groups(prompts: Sequence[int], lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield groups of at most `most` prompts to read together, with at most `MOST_PADS` pads."""
    group: list[int] = []
    pads = 0
    for i in prompts:
        pads += (lengths[i] - lengths[group[-1]]) * len(group) if group else 0
        if len(group) == most or pads > MOST_PADS:
            yield group
            group, pads = [], 0
        group.append(i)
    if group:
        yield group


def _uniforms(rows: Sequence[tuple[int, int]], keys: Sequence[str], length: int, seed: int) -> torch.Tensor:
    """Draw [B, length] numbers in [0, 1), each row for (seed, prompt's key, sample number), of 24 bits."""
    uniforms = np.empty((len(rows), length), dtype=np.float32)
    for row, (prompt, sample) in enumerate(rows):
        generator = np.random.Generator(np.random.SFC64(integer(seed, "sample", keys[prompt], sample)))
        generator.random(out=uniforms[row], dtype=np.float32)
    return torch.from_numpy(uniforms)
