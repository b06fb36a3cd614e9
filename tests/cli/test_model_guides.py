"""The commands of the pages about models of the Hub, on tiny models with the architectures and templates of these."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from said import Afarm
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from afarm.experiment.components import Components

LLAMA = """{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
QWEN = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
KINDS: dict[str, tuple[str, list[str], Callable[..., Any], Callable[..., Any]]] = {
    "llama3": (
        LLAMA,
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        *(LlamaConfig, LlamaForCausalLM),
    ),
    "qwen3": (QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"], Qwen3Config, Qwen3ForCausalLM),
}
ROWS = [{"instruction": f"Name {n} fish.", "output": f"Eel {n}.", "generator": "text_davinci_003"} for n in range(8)]
SHORT = ["--set", "evaluate.max_new_tokens=4", "--set", "backend.device=cpu"]


BACKEND = Components.backend


@pytest.fixture(params=list(KINDS))
def model(request: pytest.FixtureRequest, tmp_path: Path, afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> str:
    """The directory of a tiny chat model of random weights, as transformers saves one."""
    monkeypatch.setattr(Components, "backend", BACKEND)
    template, special, config, kind = KINDS[request.param]
    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words.train_from_iterator([], trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token=special[0], eos_token=special[-1 if request.param == "llama3" else 2]
    )
    tokenizer.pad_token, tokenizer.chat_template = special[0], template
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4096}
    made = kind(config(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **sizes, **heads))
    directory = tmp_path / request.param
    made.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (tmp_path / "text_davinci_003.json").write_text(json.dumps(ROWS))
    return str(directory)


def test_a_model_is_evaluated_against_a_file_of_reference_outputs(afarm: Afarm, model: str) -> None:
    recipe = ["run", "--recipe", "alpaca-eval", "--model", model, "--eval-set", "text_davinci_003.json"]
    unjudged = afarm(*recipe, *SHORT)
    assert unjudged.code != 0
    assert "--judge openai:gpt-4o" in unjudged.err
    said = afarm(*recipe, *SHORT, "--judge", "fitted", "--json")
    assert said.code == 0, said.err
    found = {(row["system"], row["reference"], row["evaluator"]) for row in said.json["results"]}
    assert found == {("base", "data", "win_rate"), ("base", "data", "length_controlled")}


def test_a_model_is_trained_on_preferences_from_where_it_is(afarm: Afarm, model: str) -> None:
    pairs = [{"prompt": f"Name {n} fish.", "chosen": "Eel.", "rejected": "Oak."} for n in range(10, 14)]
    Path("pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    recipe = ["--recipe", "paper-lora", "--set", "start=model", "--set", "prompt_template=auto", "--judge", "fitted"]
    data = ["--preferences", "pairs.jsonl", "--eval-set", "text_davinci_003.json", "--set", "rows.evaluation=all"]
    few = ["--set", "dpo.gradient_accumulation_steps=1", "--set", "dpo.num_train_epochs=1"]
    said = afarm("run", "--model", model, "--method", "dpo", *recipe, *data, *few, *SHORT)
    assert said.code == 0, said.err
    assert "train dpo" in said.out + said.err


def test_a_model_judges_by_probabilities_and_in_words(afarm: Afarm, model: str) -> None:
    Path("mine.json").write_text(json.dumps([{**row, "output": "Oak.", "generator": "mine"} for row in ROWS]))
    files = ["evaluate", "mine.json", "--reference", "text_davinci_003.json", "--judge", f"local:{model}"]
    weighed = afarm(*files, "--annotator", "chatgpt_4", "--set", "local.answer=probabilities")
    assert weighed.code == 0, weighed.err
    assert f"local:{Path(model).name}" in weighed.words
    written = afarm(*files, "--annotator", "chatgpt_4")  # of random weights no answer can be read, which is said
    assert "unparsed" in written.out + written.err


TRACKER = """
import json, pathlib

class Run:
    def log(self, values, step=None, **more):
        with pathlib.Path(__file__).with_suffix(".jsonl").open("a") as file:
            file.write(json.dumps([self.project, step, values]) + "\\n")
    def finish(self):
        pass

def init(project, **options):
    run = Run()
    run.project = project
    return run
"""
TRACKED = """
import pathlib
from afarm.backend import Backend
from afarm.core.config import BackendConfig

backend = Backend(BackendConfig(device="cpu", trackers=["wandb", "trackio"]))
with backend.tracked("train ppo", pathlib.Path("."), lambda step, metrics: None) as log:
    log(1, {"loss": 0.5})
"""


def test_wandb_and_trackio_get_what_a_stage_logs(tmp_path: Path) -> None:
    """Packages of these names, as far as accelerate knows them: it looks for both when it is imported."""
    for name in ("wandb", "trackio"):
        (tmp_path / f"{name}.py").write_text(TRACKER)
        (tmp_path / f"{name}-1.dist-info").mkdir()
        (tmp_path / f"{name}-1.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{TRACKED}"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    for name in ("wandb", "trackio"):
        [line] = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        assert json.loads(line) == ["train ppo", 1, {"loss": 0.5}]
