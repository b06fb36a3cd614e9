"""A model's prompts by a file of one's own: in its tokens, its checkpoints and its artifact's key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from light_farm import light_workspace
from tiny_models import make_context, make_instructions, make_policy, make_tokenizer

from afarm.backend import Backend, CheckpointPolicy, PromptTemplate, TorchRewardModel
from afarm.core.config import BackendConfig
from afarm.core.errors import ConfigError
from afarm.core.interfaces import Decoding
from afarm.core.records import Instruction
from afarm.experiment.training_stages import base_stage

PAIR = {"prompt_inputs": "w9 {instruction} w8 {input} w7", "prompt_noinputs": "w9 {instruction} w7"}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(PAIR))
    return path


def test_a_checkpoint_keeps_the_texts_and_needs_no_file(tmp_path: Path, own: Path) -> None:
    policy = make_policy()
    policy.save(tmp_path / "model")
    backend = Backend(BackendConfig(device="cpu"))
    loaded = backend.load_policy(tmp_path / "model", prompt_template=str(own))
    tasks = [Instruction("w1 w2", "w3"), Instruction("w1")]
    assert loaded.prompt_ids(tasks) == [[14, 6, 7, 13, 8, 12], [14, 6, 12]]
    loaded.save(tmp_path / "again")
    own.unlink()
    again = backend.load_policy(tmp_path / "again")
    assert again.template.name == "file"
    assert again.prompt_ids(tasks) == loaded.prompt_ids(tasks)
    controlled = again.controlled("w5").prompt_ids(tasks)
    assert controlled[1] == [10, 14, 6, 12]
    [sample] = again.sample([tasks[1]], Decoding(max_new_tokens=3), seed=0)
    assert sample.prompt_ids == (14, 6, 12)


def test_a_reward_model_keeps_them_too_and_reads_the_tokens_of_such_a_policy_alone(tmp_path: Path) -> None:
    policy = make_policy()
    own = CheckpointPolicy(policy.model, policy.tokenizer, PromptTemplate(PAIR, policy.tokenizer), policy.backend)
    model = TorchRewardModel(
        TorchRewardModel.make_classifier(own, head_std=1.0), own.tokenizer, own.template, own.backend
    )
    model.save(tmp_path / "model")
    loaded = TorchRewardModel.load(tmp_path / "model", make_context(tmp_path)[0])
    assert loaded.score(make_instructions(1), ["w1"]) == model.score(make_instructions(1), ["w1"])
    tokenizer = make_tokenizer()
    others: list[Any] = [PAIR, {"jinja": "{{ instruction }}"}, "chat"]
    reads = [
        loaded.reads_tokens_of(
            CheckpointPolicy(policy.model, tokenizer, PromptTemplate(source, tokenizer), policy.backend)
        )
        for source in others
    ]
    assert reads == [True, False, False]


def test_text_that_begins_with_its_first_token_does_not_get_it_twice() -> None:
    tokenizer = make_tokenizer()
    tokenizer.bos_token = "<q>"
    template = PromptTemplate({"jinja": "<q> {{ instruction }} {{ input }}"}, tokenizer)
    assert template.encode_prompts([Instruction("w1", "w2")]) == [[3, 6, 7]]


def test_the_key_of_the_base_model_has_the_texts_not_the_files_name(tmp_path: Path, own: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.write_text(own.read_text())
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps({**PAIR, "prompt_noinputs": "w6 {instruction}"}))
    fields = []
    for number, path in enumerate((own, copy, edited)):
        workspace = light_workspace(tmp_path / str(number), prompt_template=str(path))
        fields.append(base_stage(workspace).key_fields["prompt_template"])
    assert fields[0] == fields[1] == PAIR
    assert fields[2] != PAIR


def test_a_run_refuses_a_template_that_cannot_serve_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"prompt_template: nowhere\.jinja cannot be read"):
        light_workspace(tmp_path, prompt_template="nowhere.jinja")
