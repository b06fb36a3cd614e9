"""The arithmetic of memory against what real models hold."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import make_model
from torch.autograd.graph import saved_tensors_hooks

from afarm.core.config import BackendConfig, LoraConfig
from afarm_plugins.dpo import DPOConfig
from afarm_plugins.memory.estimate import Held, Workload
from afarm_plugins.ppo import PPOConfig
from afarm_plugins.sft import SFTConfig

SHAPE = (3, 20)
ONE_PASS = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}


def kept_by_a_real_pass(checkpointing: bool) -> int:
    """Bytes that autograd keeps of a forward pass, weights apart."""
    model = make_model(num_hidden_layers=4).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    rows, length = SHAPE
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.model(
            torch.zeros(rows, length, dtype=torch.long),
            torch.ones(rows, 1, length, length, dtype=torch.bool),
            torch.arange(length).expand(rows, length),
            use_cache=False,
        ).last_hidden_state
    held = {**kept, hidden.untyped_storage().data_ptr(): hidden.untyped_storage()}
    return sum(storage.nbytes() for place, storage in held.items() if place not in weights)


def test_activations_are_those_that_a_real_pass_keeps() -> None:
    config = make_model(num_hidden_layers=4).config
    counted = Workload(config, BackendConfig(device="cpu")).activations(SHAPE, checkpointing=False)
    assert counted == pytest.approx(kept_by_a_real_pass(checkpointing=False), rel=0.03)


def test_weights_gradients_and_moments_are_divided_and_what_is_outside_layers_is_not() -> None:
    model = make_model()
    whole, layers = model.num_parameters(), sum(p.numel() for p in model.model.layers.parameters())
    config = SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=8, max_length=16)
    [one], [four] = (Workload(model.config, BackendConfig(), n).training(config) for n in (1, 4))
    share = 4 * (layers // 4 + whole - layers)
    assert (one.weights, one.gradients, one.optimizer) == (8 * whole, 4 * whole, 8 * whole), "with the start policy"
    assert (four.weights, four.gradients, four.optimizer) == (share, share, 2 * share)
    assert (one.gathered, four.gathered) == (0, 3 * 4 * layers // 2)


def test_shards_on_the_host_leave_the_card_what_is_outside_layers() -> None:
    model = make_model()
    whole, inside = model.num_parameters(), list(model.model.layers.parameters())
    layers = sum(p.numel() for p in inside)
    config = SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=8, max_length=16)
    there, here = (Workload(model.config, BackendConfig(), 4, offloads=offloads) for offloads in (True, False))
    [host], [card] = there.training(config), here.training(config)
    ends = 4 * (whole - layers)
    assert (host.weights, host.gradients, host.optimizer) == (ends, ends, 2 * ends)
    assert host.gathered == card.gathered + 2 * 4 * (layers // 2 // 4), "a shard on its way to the card, and one back"
    assert (host.activations, host.logits, card.host) == (card.activations, card.logits, 0)
    shards = [chunk.nbytes for p in inside for chunk in p.detach().chunk(4)[:1]]
    pinned = sum(2 ** math.ceil(math.log2(size)) for size in shards)
    assert pinned > sum(shards), "some are no power of two"
    assert host.host == pinned + 2 * sum(shards) + 4 * whole, "moments are not pinned, and the model is gathered"


def test_adapters_on_the_host_leave_the_card_no_gradients() -> None:
    model = make_model()
    lora = LoraConfig(r=4)
    workload = Workload(model.config, BackendConfig(), 2, offloads=True)
    [held] = workload.training(SFTConfig(**{**ONE_PASS, "lora": lora}, max_length=16))
    frozen = workload.network()
    adapters = 4 * workload.network(lora).adapters
    assert (held.weights, held.gradients, held.optimizer) == (4 * frozen.ends, 0, 0)
    assert held.host > 4 * frozen.layers // 2 + adapters + 4 * frozen.share(1)


def test_networks_that_ppo_only_reads_are_on_the_host_too() -> None:
    config = make_model().config
    sizes = {"max_prompt_length": 4, "response_length": 4, "per_device_train_batch_size": 2, "mini_batch_size": 2}
    learning, sampling, _ = Workload(config, BackendConfig(), 2, offloads=True).on_policy(
        PPOConfig(**sizes, rollout_batch_size=4)
    )
    policy, scorer = (Workload(config, BackendConfig()).network(scores=scores) for scores in (False, True))
    assert learning.weights == sampling.weights == 2 * 4 * (policy.ends + scorer.ends)
    assert sampling.gathered == 4 * policy.layers
    shards = 4 * (policy.layers + scorer.layers) // 2
    assert learning.host >= 2 * shards + 2 * shards + 4 * policy.share(1)


def test_adapters_are_counted_as_peft_makes_them() -> None:
    from afarm.backend import add_adapter

    model = make_model()
    lora = LoraConfig(r=3)
    count = Workload(model.config, BackendConfig()).network(lora).adapters
    assert count == sum(p.numel() for p in add_adapter(model, lora).parameters() if p.requires_grad)


def test_pairs_take_twice_the_activations() -> None:
    workload = Workload(make_model().config, BackendConfig(), 4)
    single = SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=8, max_length=16)
    pairs = DPOConfig(per_device_train_batch_size=2, gradient_accumulation_steps=8, max_length=16)
    [one], [two] = workload.training(single), workload.training(pairs, pairs=True)
    assert two.activations == pytest.approx(2 * one.activations, rel=0.02)


def test_a_pass_is_fullest_when_logits_are_made_or_when_all_gradients_are_there() -> None:
    model = make_model()
    whole, head = model.num_parameters(), model.get_output_embeddings().weight.numel()
    workload = Workload(model.config, BackendConfig(device="cpu"))

    def counted(tokens: int) -> Held:
        return workload.training(SFTConfig(max_length=tokens, **{**ONE_PASS, "gradient_checkpointing": False}))[0]

    short, long = counted(2), counted(200)
    assert short.total == 4 * (2 * whole + whole + 2 * whole + head), "the start, gradients, moments, the head's twice"
    assert (long.gradients, long.activations > 4 * whole) == (0, True), "no gradient is there yet"


def test_ppo_learns_its_networks_one_after_the_other_and_reads_no_more_than_it_sampled() -> None:
    config = make_model(hidden_size=64, intermediate_size=128).config
    workload = Workload(config, BackendConfig(device="cpu"))
    sizes = {"max_prompt_length": 4, "response_length": 4, "per_device_train_batch_size": 2, "mini_batch_size": 2}
    learning, _, reading = workload.on_policy(PPOConfig(**sizes, rollout_batch_size=4))
    both = 4 * (workload.network().share(1) + workload.network(scores=True).share(1))
    assert learning.total == 2 * both + both + 2 * both, "four networks, two gradients, their moments: nothing beside"
    assert reading.activations == 3 * 4 * (4 * 8) * (64 + 128), "four rows of eight tokens, not a batch of thousands"
    assert reading.logits == 4 * (2 * 4) * config.vocab_size, "of responses alone"
    in_two_passes, *_ = workload.on_policy(PPOConfig(**{**sizes, "mini_batch_size": 4}, rollout_batch_size=4))
    assert in_two_passes.total > learning.total, "then activations come on top of gradients"
