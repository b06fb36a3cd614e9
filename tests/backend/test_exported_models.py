"""Exported policies and reward models: transformers alone prompts, samples and scores as afarm does."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bandit import BanditReward
from tiny_models import make_instructions, make_model, make_policy, same_weights
from transformers import AutoModelForCausalLM

from afarm.backend import Backend, CheckpointPolicy, PromptTemplate, TorchRewardModel
from afarm.backend.gguf_models import dequantized
from afarm.core.config import BackendConfig
from afarm.core.errors import ModelError, TrainingError
from afarm.core.interfaces import Decoding
from afarm.core.records import Instruction, Sample
from afarm_plugins.best_of_n.best_of_n import BestOfNPolicy


def loaded(directory: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)


def chat_ids(tokenizer: Any, instruction: Instruction) -> list[int]:
    turns = [{"role": "user", "content": instruction.instruction}]
    ids: list[int] = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True).input_ids
    return ids


def test_a_plain_policy_answers_as_in_afarm(policy: CheckpointPolicy, tmp_path: Path) -> None:
    policy.export(tmp_path)
    model, tokenizer = loaded(tmp_path)
    assert same_weights(model, policy.model)
    instruction = make_instructions(3)[2]
    ids = chat_ids(tokenizer, instruction)
    assert [ids] == policy.prompt_ids([instruction])
    answer = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :]
    expected = policy.generate(instruction, temperature=0.0, max_new_tokens=8)
    assert tokenizer.decode(answer, skip_special_tokens=True) == expected


@pytest.mark.parametrize("bos", [False, True])
def test_a_control_goes_into_the_chat_template_and_is_never_sampled(bos: bool, tmp_path: Path) -> None:
    start = make_policy()
    if bos:
        start.tokenizer.bos_token = "w3"
        start.tokenizer.chat_template = "{{ bos_token }} " + start.tokenizer.chat_template
    policy = start.copy_with_tokens(["<|good|>", "<|bad|>"]).controlled("<|good|>")
    before = policy.tokenizer.chat_template
    policy.export(tmp_path)
    assert policy.tokenizer.chat_template == before, "the policy itself is left as it is"
    model, tokenizer = loaded(tmp_path)
    for instruction in make_instructions(4):
        ids = chat_ids(tokenizer, instruction)
        assert [ids] == policy.prompt_ids([instruction])
        assert ids[int(bos)] == tokenizer.convert_tokens_to_ids("<|good|>")
    never = tokenizer.convert_tokens_to_ids(["<|good|>", "<|bad|>"])
    with torch.no_grad():
        model.get_output_embeddings().weight[never] *= 1e3  # sampled at once, if they could be
    prompts = torch.tensor([ids] * 64)
    drawn = model.generate(prompts, do_sample=True, max_new_tokens=4, pad_token_id=0)[:, len(ids) :]
    assert not torch.isin(drawn, torch.tensor(never)).any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_saved(value: float, tmp_path: Path) -> None:
    policy = make_policy()
    reward_model = head(policy)
    for saved in (policy, reward_model):
        name, weight = list(saved.model.named_parameters())[1]
        with torch.no_grad():
            weight.view(-1)[3] = value
        with pytest.raises(TrainingError, match=f"not finite in 1 tensors, first in {name}"):
            saved.save(tmp_path / "model")
        assert not (tmp_path / "model").exists()


# -------------------------------------------------------------------------------------------------------- best-of-n


def head(policy: CheckpointPolicy, labels: int = 1, **settings: Any) -> TorchRewardModel:
    torch.manual_seed(2)
    model = TorchRewardModel.make_classifier(policy, head_std=1.0, labels=labels).eval()
    return TorchRewardModel(model, policy.tokenizer, policy.template, policy.backend, **settings)


def run_script(directory: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Run the exported script as `python best_of_n.py ARGUMENTS` does: its names, and what it printed."""
    torch.manual_seed(0)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(printed):
        patched.setattr(sys, "argv", ["best_of_n.py", *arguments])
        names = runpy.run_path(str(directory / "best_of_n.py"), run_name="__main__")
    return names, printed.getvalue()


def drawn(policy: CheckpointPolicy, names: dict[str, Any]) -> list[Sample]:
    """The samples of a script's run as afarm records them."""
    samples = []
    for row in names["samples"]:
        end = next((i for i, token in enumerate(row) if token in policy.eos_ids), None)
        ids = row if end is None else row[: end + 1]
        text = policy.tokenizer.decode(ids, skip_special_tokens=True)
        reason: Any = "length" if end is None else "stop"
        samples.append(Sample(text, tuple(names["prompt"]), tuple(ids), finish_reason=reason))
    return samples


@pytest.mark.parametrize(
    ("pad_token", "source", "settings"),
    [
        ("<pad>", "chat", {}),
        ("<eos>", "chat", {"reads_cut_off": True}),
        ("<eos>", "alpaca", {}),
        ("<pad>", "alpaca", {"labels": 3, "mean": [0.5, -1.0, 0.0], "std": [0.5, 2.0, 1.0]}),
    ],
)
def test_best_of_n_comes_with_a_script_that_scores_and_picks_as_afarm_does(
    pad_token: str, source: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    policy = make_policy(pad_token=pad_token)
    policy.template = PromptTemplate(source, policy.tokenizer)
    policy.model.generation_config.eos_token_id = [1, 7]
    policy.model.generation_config.repetition_penalty = 9.0  # which afarm samples without
    reward_model = head(policy, **settings)
    best_of_n = BestOfNPolicy(policy, reward_model, 24, temperature=0.7)
    best_of_n.default_decoding = Decoding(max_new_tokens=6, top_p=0.9)
    best_of_n.export(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best_of_n.py", "policy", "reward_model"]

    names, printed = run_script(tmp_path, "w1 w2")
    assert [names["prompt"]] == policy.prompt_ids([Instruction("w1 w2")])
    samples = drawn(policy, names)
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}
    rewards = reward_model.score_samples(samples)
    gaps = torch.tensor([names["reward"](row) for row in names["samples"]]) - torch.tensor(rewards)
    assert gaps.std() < 1e-4, "equal but for a constant"
    assert printed.strip() == samples[rewards.index(max(rewards))].text
    chosen = names["decoding"]
    assert (chosen.do_sample, chosen.temperature, chosen.top_p, chosen.top_k) == (True, 0.7, 0.9, 0)
    assert (chosen.repetition_penalty or 1.0) == 1.0
    assert (chosen.num_return_sequences, chosen.max_new_tokens) == (24, 6)


def test_the_script_is_short_and_picks_what_the_run_picks(tmp_path: Path) -> None:
    """The best of 400 answers of one token: both draw every likely one, so both find the same."""
    policy = make_policy()
    best_of_n = BestOfNPolicy(policy, head(policy), 400)
    best_of_n.default_decoding = Decoding(max_new_tokens=1)
    best_of_n.export(tmp_path)
    lines = (tmp_path / "best_of_n.py").read_text().splitlines()
    assert sum(bool(line.strip()) and not line.startswith(('"', "import", "from")) for line in lines) <= 18
    for instruction in ("w1 w2", "w30"):
        assert run_script(tmp_path, instruction)[1].strip() == best_of_n.generate(instruction)


def toy_best_of_n(directory: Path) -> BestOfNPolicy:
    """Best-of-n around the toy base model, exported to `directory`."""
    base = Backend(BackendConfig(device="cpu")).load_policy("pkg:afarm_plugins.toy/base2")
    policy = BestOfNPolicy(base, head(base), 2)
    policy.default_decoding = Decoding(max_new_tokens=300)
    policy.export(directory)
    return policy


def test_the_script_answers_by_default_and_says_how_it_is_called(tmp_path: Path) -> None:
    """The default of 300 tokens is beyond the toy's 256 positions. Who downloads the script has no afarm."""
    toy_best_of_n(tmp_path)
    names, answered = run_script(tmp_path, "Name", "three", "rivers.")  # without quotes it is the same
    assert answered.strip()
    assert len(names["prompt"]) + names["longest"] == 256
    assert {len(row) <= names["longest"] for row in names["samples"]} == {True}
    imports = re.findall(r"^(?:import|from) (\w+)", (tmp_path / "best_of_n.py").read_text(), re.MULTILINE)
    assert set(imports) == {"sys", "itertools", "pathlib", "torch", "transformers"}
    with pytest.raises(SystemExit, match=r'^Best-of-n: python best_of_n\.py "Name three rivers\."'):
        run_script(tmp_path)
    with pytest.raises(ValueError, match="max_new_tokens"):
        run_script(tmp_path, "river " * 300)


def test_a_policy_answers_by_default_with_as_many_tokens_as_fit(tmp_path: Path) -> None:
    policy = toy_best_of_n(tmp_path)
    assert "LlamaForCausalLM" in policy._repr_html_()
    assert policy._repr_html_().startswith("best of 2 at temperature 1, from and by<ul><li>")
    limit = 256
    for answers, inner in ((policy, policy.policy), (policy.policy, policy.policy)):
        assert isinstance(inner, CheckpointPolicy)
        inner.default_decoding = Decoding(max_new_tokens=300)
        long = "water the garden " * 60
        prompt = len(inner.prompt_ids([Instruction(long)])[0])
        assert limit // 2 < prompt < limit
        assert "at most 300 tokens" in inner._repr_html_()
        alone = answers.generate("Name a bird.")
        assert alone
        with pytest.raises(ModelError, match="lower max_new_tokens"):
            list(answers.sample([Instruction(long)], Decoding(max_new_tokens=300), seed=0))
        [clipped] = answers.sample([Instruction(long)], Decoding(max_new_tokens=300, clipped=True), seed=0)
        assert len(clipped.prompt_ids) == prompt, "none of it is cut"
        assert answers.generate([long, "Name a bird."])[1] == alone, "whatever stands beside it"
        with pytest.raises(ModelError, match=r"the prompt has \d+ tokens and the model 256 positions.*shorten it"):
            answers.generate(long * 4)
        with pytest.raises(ModelError, match="lower max_new_tokens"):
            answers.generate("Name a bird.", max_new_tokens=256)


def test_a_reward_without_weights_has_no_export(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--reward-model bradley_terry"):
        BestOfNPolicy(make_policy(), BanditReward(), 4).export(tmp_path)
    policy = make_policy()
    with pytest.raises(ModelError, match="use a single reward model"):
        head(policy, labels=2, aggregate="min").export(tmp_path)


def test_an_exported_policy_goes_back_into_afarm(policy: CheckpointPolicy, tmp_path: Path) -> None:
    policy.export(tmp_path)
    assert json.loads((tmp_path / "afarm.json").read_text())["prompt_template"] == "chat"
    back = policy.backend.load_policy(str(tmp_path))
    assert same_weights(back.model, policy.model)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_from_gguf_keeps_its_embeddings_tied(tied: bool) -> None:
    model = make_model(tie_word_embeddings=tied)
    fresh = dequantized(model, AutoModelForCausalLM, torch.float32)
    assert (fresh.lm_head.weight is fresh.model.embed_tokens.weight) == tied
    assert sum(p.numel() for p in fresh.parameters()) == sum(p.numel() for p in model.parameters())
    assert same_weights(fresh, model)
