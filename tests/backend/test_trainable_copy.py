"""The copy of a policy that a method trains: whole, or with adapters on the start policy's own weights."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import make_policy

from afarm import LoraConfig
from afarm.backend import CheckpointPolicy, add_adapter, trainable_copy
from afarm.backend.adapters import merged_copy

LORA = LoraConfig(r=2)


def weights(policy: CheckpointPolicy) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in policy.model.state_dict().items()}


def places(policy: CheckpointPolicy) -> set[int]:
    return {weight.data_ptr() for weight in policy.model.parameters()}


def learned(policy: CheckpointPolicy) -> list[torch.nn.Parameter]:
    return [weight for weight in policy.model.parameters() if weight.requires_grad]


def step(policy: CheckpointPolicy) -> None:
    """Change all that is trained."""
    with torch.no_grad():
        for weight in learned(policy):
            weight.add_(0.1)


@pytest.mark.parametrize("lora", [None, LORA])
def test_training_a_copy_leaves_the_start_as_it_was(lora: LoraConfig | None) -> None:
    start = make_policy()
    before = weights(start)
    trained = trainable_copy(start, lora)
    step(trained)
    merged_copy(trained.model)
    assert all(torch.equal(before[name], weight) for name, weight in weights(start).items())


def test_without_adapters_every_weight_is_trained_and_its_own() -> None:
    start = make_policy()
    start.model.requires_grad_(False)
    trained = trainable_copy(start, None)
    assert len(learned(trained)) == len(list(start.model.parameters()))
    assert not places(start) & places(trained)


def test_with_adapters_the_frozen_weights_are_the_starts() -> None:
    start = make_policy()
    trained = trainable_copy(start, LORA)
    assert places(start) <= places(trained)
    assert learned(trained)
    assert not places(start) & {weight.data_ptr() for weight in learned(trained)}


@pytest.mark.parametrize("lora", [None, LORA])
def test_adapters_of_the_start_are_merged_and_it_keeps_them(lora: LoraConfig | None) -> None:
    start = make_policy()
    start.model = add_adapter(start.model, LORA)
    step(start)
    trained = trainable_copy(start, lora)
    assert hasattr(start.model, "merge_and_unload")
    found = trained.model.state_dict() if lora is None else merged_copy(trained.model).state_dict()
    for name, weight in merged_copy(copy.deepcopy(start.model)).state_dict().items():
        torch.testing.assert_close(found[name], weight)


def test_new_tokens_can_be_trained_beside_adapters() -> None:
    start = make_policy().copy_with_tokens(["<|good|>"])
    added = start.tokenizer.convert_tokens_to_ids(["<|good|>"])
    plain, with_tokens = trainable_copy(start, LORA), trainable_copy(start, LORA, train_tokens=added)
    assert sum(w.numel() for w in learned(with_tokens)) > sum(w.numel() for w in learned(plain))


def test_a_policy_with_new_tokens_shares_all_but_its_embeddings() -> None:
    start = make_policy()
    before = weights(start)
    extended = start.copy_with_tokens(["<|good|>"])
    own = {extended.model.get_input_embeddings().weight, extended.model.get_output_embeddings().weight}
    assert places(extended) - {weight.data_ptr() for weight in own} <= places(start)
    assert not places(start) & {weight.data_ptr() for weight in own}
    step(trainable_copy(extended, None))
    assert all(torch.equal(before[name], weight) for name, weight in weights(start).items())
