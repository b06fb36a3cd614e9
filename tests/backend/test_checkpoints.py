from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from places import ROOT
from tiny_models import make_context, make_instructions, make_policy, same_weights
from transformers import AutoModelForCausalLM

from afarm import LoraConfig, model_identity
from afarm.backend import (
    Backend,
    CheckpointPolicy,
    PromptTemplate,
    TorchRewardModel,
    add_adapter,
    join_and_pad,
    response_logprobs,
)
from afarm.backend.adapters import merge_adapter
from afarm.core.config import BackendConfig
from afarm.core.errors import ConfigError, ModelError
from afarm.core.interfaces import Decoding
from afarm.core.records import Instruction
from afarm.storage.model_files import require_local

REPOSITORY = ROOT


def logprobs(policy: CheckpointPolicy) -> torch.Tensor:
    prompts = policy.prompt_ids(make_instructions(4))
    batch = join_and_pad(prompts, policy.template.encode_responses(["w1 w2", "w3", "w4 w5 w6", "w7"]), policy.pad_id)
    with torch.no_grad():
        return response_logprobs(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)


def test_a_saved_policy_reloads_to_the_same_logprobs_and_template(policy: CheckpointPolicy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy")
    context, _ = make_context(tmp_path)
    again = CheckpointPolicy.load(tmp_path / "policy", context)
    assert torch.equal(logprobs(again), logprobs(policy))
    assert again.template.name == "chat"
    assert again.eos_ids == policy.eos_ids
    assert list(tmp_path.joinpath("policy").glob("*.safetensors"))
    assert same_weights(AutoModelForCausalLM.from_pretrained(tmp_path / "policy"), policy.model)


def test_an_alpaca_policy_reloads_as_one(tmp_path: Path) -> None:
    policy = make_policy()
    policy = policy._replace(template=PromptTemplate("alpaca", policy.tokenizer))
    policy.save(tmp_path)
    backend = Backend(BackendConfig(device="cpu"))
    assert backend.load_policy(tmp_path).template.name == "alpaca"
    assert backend.load_policy(tmp_path, prompt_template="chat").template.name == "chat"


def test_adapters_are_merged_on_save_and_the_policy_keeps_its_own(policy: CheckpointPolicy, tmp_path: Path) -> None:
    policy.model = add_adapter(policy.model, LoraConfig(r=4))
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    expected = logprobs(policy)
    policy.save(tmp_path)
    assert hasattr(policy.model, "disable_adapter")
    again = Backend(BackendConfig(device="cpu")).load_policy(tmp_path)
    torch.testing.assert_close(logprobs(again), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(logprobs(policy), expected, atol=0, rtol=0)


def test_a_copy_is_independent(policy: CheckpointPolicy) -> None:
    before = logprobs(policy)
    copied = policy.copy()
    with torch.no_grad():
        for weight in copied.model.parameters():
            weight.add_(0.1)
    assert torch.equal(logprobs(policy), before)
    assert not torch.equal(logprobs(copied), before)


def test_an_adapter_for_modules_that_are_not_there_is_an_error_with_the_setting(policy: CheckpointPolicy) -> None:
    with pytest.raises(ModelError, match=r"lora\.target_modules"):
        add_adapter(policy.model, LoraConfig(target_modules=["nowhere"]))


def test_a_merged_model_can_be_trained_whole_again(policy: CheckpointPolicy) -> None:
    merged = merge_adapter(add_adapter(policy.model, LoraConfig(r=2)))
    assert all(p.requires_grad for p in merged.parameters())
    assert not any("lora" in name for name, _ in merged.named_parameters())


@pytest.mark.parametrize("spec", ["./nowhere", "/no/such/dir", "missing.gguf", "pkg:afarm/nothing", "pkg:no_package/x"])
def test_a_model_that_is_not_there_is_a_model_error(spec: str) -> None:
    with pytest.raises(ModelError, match="model '"):
        Backend(BackendConfig(device="cpu")).load_policy(spec)


def test_a_directory_that_holds_no_model_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        Backend(BackendConfig(device="cpu")).load_policy(tmp_path)


def test_a_device_that_is_not_there_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"backend\.device"):
        Backend(BackendConfig(device="cuda:99"))


def test_pkg_specs_load_what_a_package_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shipping_models"
    package.mkdir()
    (package / "__init__.py").write_text("")
    make_policy().save(package / "base")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = Backend(BackendConfig(device="cpu")).load_policy("pkg:shipping_models/base")
    assert torch.equal(logprobs(loaded), logprobs(make_policy()))
    assert model_identity("pkg:shipping_models/base") == model_identity(str(package / "base"))


def test_identity_follows_content_not_place_or_time(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for place in (one, two):
        make_policy().save(place)
    assert model_identity(str(one)) == model_identity(str(two))
    (two / "README.md").write_text("a card")
    assert model_identity(str(one)) == model_identity(str(two))
    card = json.loads((two / "config.json").read_text())
    (two / "config.json").write_text(json.dumps(card | {"rms_norm_eps": 0.5}))
    assert model_identity(str(one)) != model_identity(str(two))


def test_identity_of_a_hub_model_is_its_commit_once_it_is_cached(
    tmp_path: Path,
) -> None:
    assert model_identity("some-org/never-cached") == "some-org/never-cached"
    repo = tmp_path / "models--some-org--cached"
    commit = "0123456789abcdef0123456789abcdef01234567"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "snapshots" / commit / "config.json").write_text("{}")
    code = "from afarm import model_identity; print(model_identity('some-org/cached'))"
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path)}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == f"some-org/cached@{commit}"


def test_configs_and_identity_load_no_torch() -> None:
    code = (
        "import sys; from afarm import LoraConfig, model_identity\n"
        "import afarm_plugins.sft, afarm_plugins.reward_model, afarm_plugins.best_of_n\n"
        "assert not {'torch', 'transformers', 'trl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


def test_equal_seeds_draw_equal_numbers() -> None:
    backend = Backend(BackendConfig(device="cpu"))
    backend.seed(2**40)
    first = torch.rand(3)
    backend.seed(2**40)
    assert torch.equal(torch.rand(3), first)


def test_auto_takes_the_device_that_accelerate_gives_this_process() -> None:
    from accelerate import PartialState

    assert Backend(BackendConfig(device="auto")).device == PartialState().device


def test_mixed_precision_multiplies_in_half_and_keeps_weights_whole() -> None:
    layer = torch.nn.Linear(4, 4)
    with Backend(BackendConfig(device="cpu", mixed_precision="bf16")).autocast():
        assert layer(torch.ones(1, 4)).dtype == torch.bfloat16
    assert layer.weight.dtype == torch.float32
    with Backend(BackendConfig(device="cpu")).autocast():
        assert layer(torch.ones(1, 4)).dtype == torch.float32


def test_mixed_precision_follows_a_weight_that_has_just_been_updated() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    with Backend(BackendConfig(device="cpu", mixed_precision="bf16")).autocast():
        for weight in (1.0, 2.0):
            with torch.no_grad():
                layer.weight.fill_(weight)
            assert layer(torch.ones(1, 1)).item() == weight


def test_trackers_are_off_unless_named(tmp_path: Path) -> None:
    logged: list[tuple[int, dict[str, float]]] = []

    def log(step: int, metrics: Mapping[str, float]) -> None:
        logged.append((step, dict(metrics)))

    with Backend(BackendConfig(device="cpu")).tracked("ppo", tmp_path / "off", log) as untracked:
        assert untracked is log
    with Backend(BackendConfig(device="cpu", trackers=["tensorboard"])).tracked("ppo", tmp_path / "on", log) as tracked:
        tracked(3, {"loss": 0.5})
    assert logged == [(3, {"loss": 0.5})]
    assert list((tmp_path / "on").rglob("events.out.tfevents*"))
    assert not (tmp_path / "off").exists()


@pytest.mark.slow
def test_a_gguf_file_loads_answers_and_saves_as_safetensors(loaded_gguf: SimpleNamespace, smollm2: str) -> None:
    assert loaded_gguf.parsed == 1, "transformers asks for it three times, and it takes seconds"
    assert loaded_gguf.reader_is_back
    policy, backend = loaded_gguf.policy, Backend(BackendConfig(device="cpu"))
    question = [Instruction("What is the capital of France? Answer with one word.")]
    answer = next(policy.sample(question, Decoding(temperature=0, max_new_tokens=12), seed=0))
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    again = backend.load_policy(smollm2)  # as `policy.save` has written it
    batch = join_and_pad(policy.prompt_ids(question), policy.template.encode_responses(["Paris."]), policy.pad_id)
    tensors = (batch.input_ids, batch.attention_mask, batch.response_mask)
    with torch.no_grad():
        assert torch.equal(response_logprobs(again.model, *tensors), response_logprobs(policy.model, *tensors))
    assert again.prompt_ids(question) == policy.prompt_ids(question)
    # here the pad token is the end-of-sequence token, which the prompt holds too
    assert policy.pad_id in policy.eos_ids
    reward_model = TorchRewardModel(
        TorchRewardModel.make_classifier(policy, head_std=0.1), policy.tokenizer, policy.template, backend
    )
    alone = reward_model.score(question, ["Paris."])[0].value
    padded = reward_model.score(question * 2, ["Paris.", "It is a city in the north of the country."])[0].value
    assert padded == pytest.approx(alone, abs=1e-3)


@pytest.mark.parametrize("kept", [5, 1000, -4])
def test_weights_cut_short_are_named_with_the_command(policy: CheckpointPolicy, tmp_path: Path, kept: int) -> None:
    policy.save(tmp_path / "policy")
    weights = tmp_path / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    context, _ = make_context(tmp_path)
    for load in (
        lambda: CheckpointPolicy.load(tmp_path / "policy", context),
        lambda: require_local(str(tmp_path / "policy")),
    ):
        with pytest.raises(ModelError, match=r"model\.safetensors is truncated .*afarm artifacts verify --remove"):
            load()


def test_whole_weights_pass(policy: CheckpointPolicy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy")
    require_local(str(tmp_path / "policy"))
