"""Memory of each stage on one device, by arithmetic from models without weights.

Models of the real classes are built on the meta device, and layers run on fake tensors to count what autograd keeps for
the backward pass. No weights are loaded, and no GPU is needed. Not counted: the device's libraries (about 1 GB of
CUDA's context), fragmentation, and control tokens added to the vocabulary.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields, replace
from math import ceil
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from afarm import BackendConfig, LoraConfig, OnPolicyConfig, TrainerConfig
from afarm.backend import backbone, logits_at_once, shared_batch, tokens_at_once, transformer_layers

MOMENTS = 2
"""Numbers that AdamW keeps per weight, in the weights' precision."""

BUFFERS = 3
"""Copies of one layer while its gradient is reduced: gathered weights, gradient, and the buffer that is sent."""

READING = 6
"""Hidden and intermediate states per token that a layer without gradient holds at once, at most."""

PROOF_ROWS, PROOF_TOKENS = 32, 1024
"""Distributions that the proof of a server's weights compares, and tokens that it reads, at most."""


@dataclass(frozen=True)
class Held:
    """Bytes on one device at a stage's fullest moment.

    `host` is what the process holds on the host if shards are offloaded, the gathered model included.
    """

    moment: str
    weights: int = 0
    gathered: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    logits: int = 0
    cache: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(getattr(self, name) for name in PARTS)


PARTS = tuple(f.name for f in fields(Held) if f.name not in ("moment", "host"))
"""The fields of `Held` that count memory on a GPU."""


@dataclass(frozen=True)
class Network:
    """Counts of the weights of a policy or a reward model; `bytes` is per weight.

    `layers` are in the transformer's layers, `ends` outside, of which `head` make logits. Adapters are in float32, as
    PEFT makes them. `shapes` and `adapter_shapes` are the (rows, width) in layers.
    """

    depth: int
    layers: int
    ends: int
    head: int
    bytes: int
    adapters: int = 0
    shapes: tuple[tuple[int, int], ...] = ()
    adapter_shapes: tuple[tuple[int, int], ...] = ()

    @property
    def layer(self) -> int:
        return self.layers // self.depth

    def share(self, processes: int) -> int:
        """Weights that each process holds."""
        return ceil(self.layers / processes) + self.ends

    def learned(self, processes: int) -> int:
        """Bytes of the weights that each process trains: all that it holds, or its part of the adapters."""
        return 4 * ceil(self.adapters / processes) if self.adapters else self.bytes * self.share(processes)

    def pinned(self, processes: int) -> tuple[int, int]:
        """Bytes of a process's pinned memory on the host: (shards of weights, shards of gradients)."""
        weights, adapters = (
            sum(_pinned(ceil(rows / processes) * width * size) for rows, width in shapes)
            for shapes, size in ((self.shapes, self.bytes), (self.adapter_shapes, 4))
        )
        return weights + adapters, adapters if self.adapters else weights


@dataclass(frozen=True)
class Workload:
    """A model's config, the precision, and the processes of a stage; several of them shard the model."""

    config: Any
    backend: BackendConfig
    processes: int = 1
    counted: dict[Any, Any] = field(default_factory=dict)
    """A cache of counts, which workloads of the same config may share."""
    offloads: bool = False
    """True if shards are offloaded to the host."""

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.backend.dtype)

    def network(self, lora: LoraConfig | None = None, *, scores: bool = False) -> Network:
        """Count the weights of the policy, or of a reward or value model that `scores`."""
        key = lora and lora.model_dump_json(), scores, self.dtype
        if key not in self.counted:
            self.counted[key] = self._network(lora, scores)
        return self.counted[key]

    def _network(self, lora: LoraConfig | None, scores: bool) -> Network:
        from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

        kind = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
        config = copy.deepcopy(self.config)
        config.num_labels = 1
        with torch.device("meta"):
            model: Any = kind.from_config(config, dtype=self.dtype)
        layers = list(transformer_layers(model))
        shapes = tuple((len(p), p.numel() // len(p)) for layer in layers for p in layer.parameters())
        inside = sum(rows * width for rows, width in shapes)
        head = None if scores else model.get_output_embeddings()
        whole = sum(p.numel() for p in model.parameters())
        names = lora.target_modules if lora else []
        adapted = [
            module
            for layer in layers
            for name, module in layer.named_modules()
            if isinstance(module, nn.Linear) and (names == "all-linear" or name.rpartition(".")[2] in names)
        ]
        down = [(lora.r, module.in_features) for module in adapted] if lora else []
        low_rank = (*down, *((module.out_features, rank) for module, (rank, _) in zip(adapted, down, strict=False)))
        adapters = sum(rows * width for rows, width in low_rank)
        logits = head.weight.numel() if head else 0
        return Network(
            len(layers), inside, whole - inside, logits, self.dtype.itemsize, adapters, shapes, tuple(low_rank)
        )

    def _count_resident_bytes(self, network: Network) -> int:
        """Count the weights of a network that stay in GPU memory between its uses."""
        return network.ends if self.offloads else network.share(self.processes)

    def _learned_here(self, network: Network) -> int:
        """Bytes of a network's trained weights in GPU memory."""
        if not self.offloads:
            return network.learned(self.processes)
        return 0 if network.adapters else network.bytes * network.ends

    def _host(self, trained: list[Network], frozen: list[Network]) -> int:
        """Bytes on the host with the optimiser's state: while learning or gathering, whichever is more."""
        if not self.offloads:
            return 0
        weights = sum(network.pinned(self.processes)[0] for network in (*trained, *frozen))
        gradients = sum(network.pinned(self.processes)[1] for network in trained)
        moments = MOMENTS * sum(network.learned(self.processes) - self._learned_here(network) for network in trained)
        gathered = trained[0].bytes * trained[0].share(1) + 4 * trained[0].adapters
        return weights + moments + max(gradients, gathered)

    @property
    def _computed(self) -> int:
        """Bytes per number of a matrix product's result."""
        return 2 if self.backend.mixed_precision == "bf16" else self.dtype.itemsize

    @property
    def _scored(self) -> int:
        """Tokens that a reward model reads at once."""
        return tokens_at_once(self.backend.device)

    # ------------------------------------------------------------------------------------------------ moments

    def training(
        self, config: TrainerConfig, *, scores: bool = False, pairs: bool = False, scored: bool = False
    ) -> list[Held]:
        """List the moments of training by epochs.

        `scores` is for a reward model, `pairs` for DPO, `scored` for expert iteration, whose reward model stays loaded.
        Raises `ConfigError` if the batch does not divide among the processes.
        """
        network = self.network(config.lora, scores=scores)
        rows, passes = shared_batch(config, self.processes)
        shape = (rows * (2 if pairs or scores else 1), config.max_length)
        start = 0 if config.lora or self.processes > 1 else network.share(1)  # the start policy; on the host if sharded
        if scored and self.processes == 1:
            start += self.network(scores=True).share(1)
        learning = self._learning([network], shape, passes, config.gradient_checkpointing, config.lora, start)
        return [replace(held, host=self._host([network], [])) for held in learning]

    def on_policy(self, config: OnPolicyConfig, *, served: bool = False) -> list[Held]:
        """List the moments of PPO or Quark: learning, sampling (unless `served`), reading log-probabilities."""
        values, shared = getattr(type(config), "has_values", False), getattr(config, "layout", "") == "shared"
        policy, scorer = self.network(config.lora), self.network(config.lora, scores=True)
        trained = [policy, scorer] if values and not shared else [policy]
        frozen = [self.network(scores=True)] if config.lora and self.processes == 1 else [policy, scorer]
        still = sum(map(self._count_resident_bytes, frozen))
        if config.lora and self.processes == 1 and values and not shared:
            still -= trained[1].share(1)  # the value model's frozen weights are the reward model's
        length = config.max_prompt_length + config.response_length
        rows = min(config.per_device_train_batch_size, ceil(config.mini_batch_size / self.processes))
        passes = ceil(config.mini_batch_size / self.processes / rows)
        shape, checkpointing, prompt = (rows, length), config.gradient_checkpointing, config.max_prompt_length
        learning = self._learning(trained, shape, passes, checkpointing, config.lora, still, apart=prompt)
        resting = replace(learning[0], gradients=0)
        [decoding] = self.sampling(config.per_device_rollout_batch_size, prompt, config.response_length)
        whole = policy.layers * policy.bytes if self.processes > 1 else 0
        sampling = replace(decoding, weights=resting.weights, gathered=whole, optimizer=resting.optimizer)
        own = ceil(config.rollout_batch_size / self.processes) * length
        tokens = min(own, max(self._scored, config.per_device_rollout_batch_size * length))
        logits = self._logits(rows * config.response_length)
        reading = replace(resting, moment="reading", activations=self._read(tokens), logits=logits)
        moments = [*learning, reading] if served else [*learning, sampling, reading]
        host = self._host(trained, [self.network(), self.network(scores=True)])
        return [replace(held, host=host) for held in moments]

    def sampling(self, rows: int, prompt: int, response: int, *, scored: bool = False) -> list[Held]:
        """List the moments of sampling in one process, with a reward model loaded if samples are `scored`."""
        policy, text = self.network(), self.config.get_text_config()
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        cache = 2 * policy.depth * heads * width * rows * (prompt + response) * self._computed
        logits = 3 * rows * text.vocab_size * 4
        rewards = self.network(scores=True).share(1) * policy.bytes if scored else 0
        weights = policy.share(1) * policy.bytes + rewards
        moments = [Held("sampling", weights, activations=self._read(rows * prompt), logits=logits, cache=cache)]
        if scored:  # while the next batch waits to be sampled
            moments.append(Held("scoring", weights, activations=self._read(self._scored)))
        return moments

    def evaluation(self) -> list[Held]:
        """List the moment in which the first process scores outputs with its whole reward model."""
        network = self.network(scores=True)
        return [
            Held(
                "evaluation",
                network.share(1) * network.bytes,
                activations=self._read(self._scored),
            )
        ]

    def served(self, *, scored: bool = False) -> list[Held]:
        """List the moments of a stage whose sampling server is proved by this process's copy of the policy.

        A launch that shards has that copy on the host.
        """
        policy, text = self.network(), self.config.get_text_config()
        own = policy.share(1) * policy.bytes if self.processes == 1 else 0
        rewards = self.network(scores=True).share(1) * policy.bytes if scored else 0
        read, logits = (self._read(PROOF_TOKENS), 2 * 4 * PROOF_ROWS * text.vocab_size) if own else (0, 0)
        proof = Held("proof", own + rewards, activations=read, logits=logits)
        return [proof, Held("scoring", own + rewards, activations=self._read(self._scored))] if scored else [proof]

    def _learning(
        self,
        networks: list[Network],
        shape: tuple[int, int],
        passes: int,
        checkpointing: bool,
        lora: LoraConfig | None,
        still: int,
        apart: int = 0,
    ) -> list[Held]:
        """Find the fullest moment while `networks` learn in turn, with `still` weights of others loaded.

        A pass is fullest at its logits, with all activations, or at its end, with all gradients. In the first of a
        step's passes a network has no gradients yet.
        """
        n, size = self.processes, networks[0].bytes
        held = size * (sum(map(self._count_resident_bytes, networks)) + still)
        learned = [self._learned_here(network) for network in networks]
        held += sum(learned) if lora else 0
        predicted = shape[0] * (shape[1] - apart) * (size + 4) * self.config.get_text_config().hidden_size
        kept = self.activations(shape, checkpointing) + predicted
        gathered = BUFFERS * networks[0].layer * size if n > 1 else 0
        gathered += 2 * ceil(networks[0].layer / n) * size if self.offloads else 0  # one shard arriving, one leaving
        moments = []
        for number, network in enumerate(networks):
            before, after = sum(learned[:number]), sum(learned[: number + 1])
            head = 0 if lora else network.head * size  # its gradient, from logits and, if tied, from embeddings
            logits = self._logits(shape[0] * (shape[1] - apart), learns=True) if network.head else 0
            gradients = before if passes == 1 else after
            first = Held("learning", held, gathered, gradients, MOMENTS * sum(learned), kept, logits + head)
            moments += [first, replace(first, gradients=after, activations=0, logits=head)]
        return [max(moments, key=lambda moment: moment.total)]

    def _logits(self, tokens: int, *, learns: bool = False) -> int:
        """Bytes of a chunk of the logits of `tokens` tokens."""
        chunk = min(logits_at_once(self.backend.device), tokens * self.config.get_text_config().vocab_size)
        halves = 0 if self._computed == 4 else self._computed * (2 if learns else 1)
        return chunk * (4 + halves)

    def _read(self, tokens: int) -> int:
        """Bytes of a layer that reads `tokens` tokens without gradient."""
        text = self.config.get_text_config()
        inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
        return READING // 2 * tokens * (text.hidden_size + inner) * self.dtype.itemsize

    # -------------------------------------------------------------------------------------------- activations

    def activations(self, shape: tuple[int, int], checkpointing: bool) -> int:
        """Bytes that the backbone keeps for the backward pass of `shape` (rows, tokens).

        With `checkpointing` layers keep their inputs, and one at a time all else. Adapters keep what weights would.
        """
        key = shape, self.dtype, self.backend.mixed_precision
        if key not in self.counted:
            one, two = (self._count_saved_bytes(depth, shape) for depth in (1, 2))
            self.counted[key] = one, two - one
        one, per_layer = self.counted[key]
        depth = self.config.get_text_config().num_hidden_layers
        if not checkpointing:
            return one + (depth - 1) * per_layer
        width = self.dtype.itemsize
        return one + depth * shape[0] * shape[1] * self.config.get_text_config().hidden_size * width

    def _count_saved_bytes(self, depth: int, shape: tuple[int, int]) -> int:
        from transformers import AutoModelForCausalLM

        config = copy.deepcopy(self.config)
        text = config.get_text_config()
        text.num_hidden_layers = depth
        if getattr(text, "layer_types", None):  # an entry per layer
            text.layer_types = text.layer_types[:depth]
        rows, length = shape
        with FakeTensorMode(allow_non_fake_inputs=True):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=self.dtype).train()
            weights = {p.untyped_storage()._cdata for p in model.parameters()}
            kept: dict[int, torch.UntypedStorage] = {}

            def keep(tensor: torch.Tensor) -> torch.Tensor:
                kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
                return tensor

            mixed = self.backend.mixed_precision == "bf16"
            with (
                saved_tensors_hooks(keep, lambda tensor: tensor),
                torch.autocast("cpu", torch.bfloat16, enabled=mixed, cache_enabled=False),
            ):
                mask = torch.ones(rows, 1, length, length, dtype=torch.bool)
                hidden = backbone(model)(
                    input_ids=torch.zeros(rows, length, dtype=torch.long),
                    attention_mask=mask,
                    position_ids=torch.arange(length).expand(rows, length),
                    use_cache=False,
                ).last_hidden_state
            total = sum(storage.nbytes() for number, storage in kept.items() if number not in weights)
            return total + hidden.untyped_storage().nbytes()


def _pinned(size: int) -> int:
    """Round bytes of pinned memory up to a power of two, as torch's `CachingHostAllocator` does."""
    return 1 << (size - 1).bit_length() if size else 0
