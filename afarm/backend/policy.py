"""The policy of a checkpoint: a causal LM, its tokenizer and its prompt template."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from afarm.backend import cpu
from afarm.backend.adapters import LowRankUpdate, add_adapter, plain_copy, save_merged, sharing_copy
from afarm.backend.batching import TokenBatch
from afarm.backend.logprobs import before_responses, evaluating, position_limit, read_responses, token_logprobs
from afarm.backend.models import describe_model, quiet_transformers
from afarm.backend.product_attention import use_product_attention
from afarm.backend.prompts import PromptTemplate, Rows
from afarm.backend.sampling import Sampler
from afarm.backend.sharding import is_sharded, on_device, outside_layers, unsharded_weights
from afarm.core.config import LoraConfig
from afarm.core.errors import ModelError, TrainingError
from afarm.core.interfaces import Decoding, ModelBackend, Policy, TrainContext
from afarm.core.records import Instruction, JudgedPair, Sample

logger = logging.getLogger(__name__)

UPDATES = "updates"
"""The folder of a checkpoint with the low-rank updates that were merged into its weights, in numbered folders."""


@dataclass(eq=False, repr=False)
class CheckpointPolicy(Policy):
    """A transformers causal LM (with LoRA adapters or without), its tokenizer and its prompt template.

    `control_tokens` were added to its vocabulary to steer it: they stand in prompts and are never sampled. `truncated`
    counts the prompts that were too long and lost their beginning. `merged` are the known low-rank updates in its
    weights, oldest first: an engine that holds earlier weights can add them.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    template: PromptTemplate
    backend: ModelBackend
    control_tokens: Sequence[str] = ()
    truncated: int = field(default=0, init=False)
    merged: tuple[LowRankUpdate, ...] = field(default=(), init=False)
    _sampler: Sampler | None = field(default=None, init=False)
    _told: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        cpu.use_onednn(self.model)
        use_product_attention(self.model)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({describe_model(self.model)}, prompts {self.template.name})"

    def _repr_html_(self) -> str:
        decoding = self.default_decoding
        longest = f"temperature {decoding.temperature:g}, at most {decoding.max_new_tokens} tokens"
        return f"<code>{escape(repr(self))}</code><br>answers at {longest}: <code>policy.generate(&quot;…&quot;)</code>"

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id

    @property
    def eos_ids(self) -> list[int]:
        """The tokens that end a response: the tokenizer's and the generation config's."""
        config = getattr(self.model, "generation_config", None)
        configured = getattr(config, "eos_token_id", None) or []
        configured = [configured] if isinstance(configured, int) else configured
        return list(dict.fromkeys([self.tokenizer.eos_token_id, *configured]))

    def prompt_ids(self, instructions: Sequence[Instruction], max_length: int | None = None) -> list[list[int]]:
        """Encode prompts as token ids; longer ones than `max_length` keep their end and count as `truncated`."""
        prompts = self.template.encode_prompts(instructions)
        if max_length is None:
            return prompts
        cut = sum(len(p) > max_length for p in prompts)
        if cut:
            self.truncated += cut
            logger.warning(
                "%d of %d prompts were longer than %d tokens: their beginning is cut", cut, len(prompts), max_length
            )
        return [self.template.shorten(p, max_length) for p in prompts]

    def encode(
        self,
        instructions: Sequence[Instruction],
        responses: Sequence[str],
        max_length: int,
        ended: Sequence[bool] | bool = True,
    ) -> tuple[Rows, int]:
        """Encode (prompt, response) by `PromptTemplate.encode`, within the model's positions."""
        return self.template.encode(instructions, responses, self.longest(max_length), ended)

    def encode_pairs(self, judged: Sequence[JudgedPair], max_length: int) -> tuple[Rows, Rows, int]:
        """Encode both outputs of pairs by `PromptTemplate.encode_pairs`, within the model's positions."""
        return self.template.encode_pairs(judged, self.longest(max_length))

    def longest(self, max_length: int) -> int:
        """Return `max_length`, or the model's positions if these are fewer, with a warning the first time."""
        limit = position_limit(self.model)
        if limit is None or limit >= max_length:
            return max_length
        if not self._told:
            logger.warning("max_length is %d and the model has %d positions: what is longer is cut", max_length, limit)
        self._told = True
        return limit

    @property
    def updates(self) -> tuple[LowRankUpdate, ...]:
        """`merged` and the model's adapters; empty if the adapters are more than low-rank updates."""
        if not hasattr(self.model, "peft_config"):
            return self.merged
        own = LowRankUpdate.of(self.model)
        return () if own is None else (*self.merged, own)

    def sampler(self) -> Sampler:
        """Make a sampler of the current weights by the backend's engine.

        A collective if the weights are sharded, except while it is `ready_to_sample`.
        """
        return self._sampler or self.backend.engine.sampler(self)

    @contextmanager
    def ready_to_sample(self) -> Iterator[None]:
        """Let each process sample on its own in the block, even if the weights are sharded.

        A collective. An engine that runs here needs all weights in every process; another gets them once.
        """
        if self.backend.engine.runs_here or not is_sharded(self.model):
            with unsharded_weights(self.model):
                yield
            return
        self._sampler = self.backend.engine.sampler(self)
        try:
            yield
        finally:
            self._sampler = None

    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        limit = position_limit(self.model)
        with on_device(self.model, self.backend) if self.backend.engine.runs_here else nullcontext():
            sampler = self.sampler()
            if not decoding.clipped or limit is None:
                yield from self._sample(sampler, instructions, decoding, seed)
                return
            limits = [min(decoding.max_new_tokens, self._room(instruction, limit)) for instruction in instructions]
            alike: dict[int, Iterator[Sample]] = {}  # a response does not depend on its companions
            for most in dict.fromkeys(limits):
                rows = [row for row, own in zip(instructions, limits, strict=True) if own == most]
                alike[most] = self._sample(sampler, rows, replace(decoding, max_new_tokens=most), seed)
            for most in limits:
                yield from islice(alike[most], decoding.n)

    def _room(self, instruction: Instruction, limit: int) -> int:
        """Count the positions that a prompt leaves for a response. Raises `ModelError` if there are none."""
        length = len(self.template.encode_prompts([instruction])[0])
        if length >= limit:
            raise ModelError(
                f"the prompt has {length} tokens and the model {limit} positions, which leaves none for a response: "
                "shorten it, or give max_new_tokens to have its beginning cut"
            )
        return limit - length

    def _sample(
        self, sampler: Sampler, instructions: Sequence[Instruction], decoding: Decoding, seed: int
    ) -> Iterator[Sample]:
        prompts = self.prompt_ids(instructions, self._longest_prompt(decoding))
        keys = [i.id for i in instructions]
        generations = sampler.generate(prompts, keys, decoding, seed=seed)
        for prompt in prompts:
            prompt_ids = tuple(prompt)
            for _ in range(decoding.n):
                generation = next(generations)
                yield Sample(
                    self.tokenizer.decode(generation.token_ids, skip_special_tokens=True),
                    prompt_ids,
                    tuple(generation.token_ids),
                    None if generation.logprobs is None else tuple(generation.logprobs),
                    generation.finish_reason,
                )

    def _longest_prompt(self, decoding: Decoding) -> int | None:
        """Count the positions that a response leaves for a prompt; None if the model has no limit.

        Raises `ModelError` if there are fewer than the template alone takes.
        """
        limit = position_limit(self.model)
        if limit is None:
            return None
        room = limit - decoding.max_new_tokens
        needed = len(self.template.encode_prompts([Instruction("")])[0]) + 1
        if room < needed:
            raise ModelError(
                f"a response of {decoding.max_new_tokens} tokens and a prompt of {needed} at least do not fit the "
                f"model's {limit} positions: lower max_new_tokens (or response_length) to {max(0, limit - needed)} "
                "at most"
            )
        return room

    def copy(self) -> CheckpointPolicy:
        """Copy the policy and its model; the tokenizer is shared."""
        return self._replace(model=copy.deepcopy(self.model))

    def controlled(self, control: str) -> CheckpointPolicy:
        """Make a policy of the same model with `control` in front of prompts; see `PromptTemplate`."""
        return self._replace(template=self.template.with_control(control))

    def copy_with_tokens(self, tokens: Sequence[str]) -> CheckpointPolicy:
        """Copy the policy and add control tokens to its vocabulary, embedded as the mean of all tokens.

        The copy has its own embeddings and output head; other weights are shared and frozen (see `trainable_copy`).
        """
        embeddings = {self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight}
        model, tokenizer = sharing_copy(self.model, copied=embeddings), copy.deepcopy(self.tokenizer)
        tokenizer.add_tokens(list(tokens), special_tokens=True)
        if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
            with quiet_transformers():
                model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        added = tokenizer.convert_tokens_to_ids(list(tokens))
        vocabulary = len(self.tokenizer)  # the rows of padding after it were never trained
        with torch.no_grad():
            for embedding in {model.get_input_embeddings(), model.get_output_embeddings()}:
                embedding.weight[added] = embedding.weight[:vocabulary].mean(0)
        template = PromptTemplate(self.template.source, tokenizer, self.template.model, self.template.control)
        return CheckpointPolicy(model, tokenizer, template, self.backend, (*self.control_tokens, *tokens))

    def _replace(self, **changes: Any) -> CheckpointPolicy:
        policy = replace(self, **changes)
        policy.merged = self.merged
        return policy

    def save(self, directory: Path) -> None:
        """Save weights (adapters merged), tokenizer, template and low-rank updates, for transformers too.

        Raises `TrainingError` if a weight is not finite.
        """
        self._save(Path(directory))
        for number, update in enumerate(self.updates):
            update.save(Path(directory) / UPDATES / str(number))

    def _save(self, directory: Path) -> None:
        card: dict[str, Any] = {"prompt_template": self.template.source}
        if self.template.control or self.control_tokens:
            card |= {"control": self.template.control, "control_tokens": self.control_tokens}
        save_merged(self.model, self.tokenizer, card, directory)

    def export(self, directory: Path) -> None:
        """Save so that transformers prompts and samples like this policy.

        The control goes into the chat template, and control tokens are never sampled.
        """
        exported = copy.copy(self)
        if self.template.control and self.template.name == "chat":
            exported.tokenizer = copy.deepcopy(self.tokenizer)
            exported.tokenizer.chat_template = self.template.controlled_chat_template()
        exported._save(Path(directory))
        if self.control_tokens:
            path = directory / "generation_config.json"
            config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
            config["suppress_tokens"] = self.tokenizer.convert_tokens_to_ids(list(self.control_tokens))
            path.write_text(json.dumps(config, indent=2) + "\n", "utf-8")

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> CheckpointPolicy:
        return context.backend.load_policy(str(directory))


def require_checkpoint(start: Policy, learner: str) -> CheckpointPolicy:
    """Return `start` if it is a checkpoint that `learner` can train. Raises `TrainingError`."""
    if not isinstance(start, CheckpointPolicy):
        raise TrainingError(
            f"{learner} trains the weights of a checkpoint; it cannot start from a {type(start).__name__}"
        )
    return start


def trainable_copy(
    start: CheckpointPolicy, lora: LoraConfig | None, *, train_tokens: Sequence[int] = ()
) -> CheckpointPolicy:
    """Copy `start` into a policy to train: all of its weights, or with `lora` fresh adapters only.

    Adapters of `start` are merged first. With `lora` the frozen weights are shared with `start`, which costs no memory;
    embeddings of `train_tokens` (new control tokens, say) are trained too. Adapters start from random numbers: seed the
    backend before. `start` does not change. On a CPU the process keeps freed memory from here on. If the launch shards,
    layers share the weights of `start` until `shard_model`.
    """
    if start.backend.device.type == "cpu":
        cpu.keep_freed_memory()
    policy = copy.copy(start)
    policy.merged = start.updates if lora is not None else ()
    if start.backend.sharded and lora is None and not hasattr(start.model, "merge_and_unload"):
        policy.model = sharing_copy(start.model, copied=outside_layers(start.model)).requires_grad_(True)
    else:
        policy.model = plain_copy(start.model, share_weights=lora is not None)
    if lora is not None:
        policy.model = add_adapter(policy.model, lora, train_tokens=train_tokens)
    return policy


def batched_logprobs(
    policy: CheckpointPolicy,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    *,
    batch_size: int,
    temperature: float = 1.0,
    shared: bool = True,
) -> Tensor:
    """Compute log-probabilities [N, R] of N responses to their prompts under `policy`.

    R is the longest response; 0 after each row's end. Without gradient. The processes share the rows, unless `shared`
    is false; see `read_responses`.
    """

    def read(batch: TokenBatch) -> Tensor:
        hidden, targets = before_responses(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)
        return token_logprobs(policy.model, hidden, targets, temperature=temperature)

    pad_id, device, progress = policy.pad_id, policy.backend.device, policy.backend.progress
    with evaluating(policy.model), on_device(policy.model, policy.backend):
        return read_responses(
            read,
            prompts,
            responses,
            batch_size=batch_size,
            pad_id=pad_id,
            device=device,
            progress=progress,
            shared=shared,
        )
