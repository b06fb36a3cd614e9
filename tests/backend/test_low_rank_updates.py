"""What adapters add to weights, kept when they are merged: a sum of low-rank products."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from peft import PeftModel

from afarm import LoraConfig
from afarm.backend import CheckpointPolicy, LowRankUpdate, plain_copy, trainable_copy
from afarm.backend.adapters import merged_copy
from afarm.testing import tiny_policy


def trained(start: CheckpointPolicy, seed: int, **settings: object) -> CheckpointPolicy:
    start.backend.seed(seed)
    policy = trainable_copy(start, LoraConfig(**settings))
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape) * 0.1)
    return policy


def test_updates_of_several_stages_are_one_adapter_on_the_first_weights(tmp_path: Path) -> None:
    start = tiny_policy()
    first = trained(start, 1, r=4, alpha=12)
    first.save(tmp_path / "first")
    loaded: CheckpointPolicy = start.backend.load_policy(tmp_path / "first")
    second = trained(loaded, 2, r=2, alpha=2, target_modules=["q_proj", "up_proj"])
    own, other = second.updates
    (own + other).save(tmp_path / "sum")
    adapted = PeftModel.from_pretrained(plain_copy(start.model), tmp_path / "sum").merge_and_unload()
    expected = dict(merged_copy(second.model).named_parameters())
    for name, weight in adapted.named_parameters():
        torch.testing.assert_close(weight, expected[name], atol=1e-5, rtol=1e-5)


def test_an_update_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    (update,) = trained(tiny_policy(), 1, r=4).updates
    update.save(tmp_path)
    loaded = LowRankUpdate.load(tmp_path)
    assert loaded.factors.keys() == update.factors.keys()
    for path, factors in update.factors.items():
        assert all(map(torch.equal, loaded.factors[path], factors))


def test_equal_updates_make_equal_files_in_all_processes(tmp_path: Path) -> None:
    """They are named by a digest of those."""
    (update,) = trained(tiny_policy(), 1, r=4).updates
    update.save(tmp_path)
    modules = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert len(modules) > 5
    assert modules == sorted(modules), "in no order of a set's, which each process has its own of"


def test_weights_that_are_trained_whole_have_no_updates(tmp_path: Path) -> None:
    first = trained(tiny_policy(), 1, r=4)
    assert trainable_copy(first, None).updates == ()
    assert len(trainable_copy(first, LoraConfig(r=2)).updates) == 2
    steered = tiny_policy().copy_with_tokens(["<|good|>"])
    ids = steered.tokenizer.convert_tokens_to_ids(["<|good|>"])
    assert trainable_copy(steered, LoraConfig(r=2), train_tokens=ids).updates == ()
