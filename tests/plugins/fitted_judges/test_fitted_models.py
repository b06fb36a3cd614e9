"""A fitted judge with a model inside: sentence embeddings, and afarm's own reward model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from light_farm import Make
from transformers import BertConfig, BertModel

from afarm import BuildContext, Instruction, ModelError, Output, Pair
from afarm.cli import main
from afarm.core.seeding import uniform
from afarm.testing import annotate_context, check_annotator
from afarm.testing.models import tiny_policy, tiny_tokenizer
from afarm_plugins.fitted_judges.annotator import FittedAnnotator
from afarm_plugins.fitted_judges.encoder import SentenceEncoder
from afarm_plugins.fitted_judges.settings import FittedAnnotatorConfig
from benchmarks.smol_results import Closeness, differences


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return save_encoder(tmp_path / "encoder")


def save_encoder(directory: Path, seed: int = 0) -> Path:
    """A random encoder with 16 dimensions, and a tokenizer by words."""
    torch.manual_seed(seed)
    tokenizer = tiny_tokenizer()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **sizes)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def by_a_word(path: Path, count: int, reward: float = 3.0) -> Path:
    """Labels that follow which output says w3, in outputs of equal length that differ in no feature."""
    rows = []
    for number in range(count):
        others = [f"w{10 + int(20 * uniform(0, number, side))}" for side in "ab"]
        says = [f"w{3 + int(2 * uniform(0, 'says', number, side))}" for side in "ab"]
        gap = reward * ((says[1] == "w3") - (says[0] == "w3"))
        second = uniform(0, "label", number) < 1 / (1 + np.exp(-gap))
        outputs = [f"{said} {other} w5" for said, other in zip(says, others, strict=True)]
        rows.append(
            {
                "instruction": f"w1 w{number % 40} w{number // 40}",
                "output_1": outputs[0],
                "output_2": outputs[1],
                "preference": 1 + int(second),
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fit(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["judge", "fit", *map(str, arguments)])
    return int(stopped.value.code or 0)


def annotator(directory: Path, encoder: str = "", reward_model: Any = None) -> FittedAnnotator:
    context = BuildContext(reward_model=reward_model or (lambda name: None), source="source")
    return FittedAnnotator(FittedAnnotatorConfig(soft=True, encoder=encoder), str(directory), context)


# ------------------------------------------------------------------------------------------------- embeddings


def test_an_embedding_is_the_mean_state_over_tokens_at_length_one(encoder: Path) -> None:
    loaded, tokenizer = BertModel.from_pretrained(encoder).eval(), tiny_tokenizer()
    tokens = tokenizer("w1 w2 w3", return_tensors="pt")
    with torch.no_grad():
        mean = loaded(input_ids=tokens["input_ids"]).last_hidden_state[0].mean(0).numpy()
    short, long, empty = SentenceEncoder(str(encoder)).embed(["w1 w2 w3", "w1 " * 30, ""])
    assert short == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)  # whatever is beside it in the batch
    assert np.linalg.norm(long) == pytest.approx(1)
    assert np.isfinite(empty).all()


def test_embeddings_know_what_no_feature_says(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = by_a_word(tmp_path / "labels.jsonl", 300)
    assert fit(labels, "--out", tmp_path / "judge", "--embeddings", encoder, "--folds", 3, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["candidates"]) == {"length", "features", "embeddings", "features + embeddings"}
    assert "embeddings" in found["kept"]
    assert found["beats_length"]
    pair = Pair(Instruction("w1 w2 w2"), "w4 w10 w5", "w3 w10 w5")
    [label] = annotator(tmp_path / "judge").annotate([pair], annotate_context(seed=0))
    assert label.p2 is not None
    assert label.p2 > 0.75
    check_annotator(annotator(tmp_path / "judge"))


def test_another_encoder_or_none_is_an_error_that_names_the_setting(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = by_a_word(tmp_path / "labels.jsonl", 100)
    fit(labels, "--out", tmp_path / "judge", "--embeddings", encoder, "--folds", 3)
    kept = annotator(tmp_path / "judge").identity
    moved = encoder.rename(tmp_path / "moved")
    with pytest.raises(ModelError, match=r"the sentence encoder .*no such file.*--set fitted.encoder"):
        annotator(tmp_path / "judge")
    assert annotator(tmp_path / "judge", str(moved)).identity == kept
    other = save_encoder(tmp_path / "other", seed=1)
    with pytest.raises(ModelError, match=r"is not the one that .* was fitted with.*fitted.encoder"):
        annotator(tmp_path / "judge", str(other))


def test_a_directory_that_is_no_encoder_is_refused(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = by_a_word(tmp_path / "labels.jsonl", 60)

    def said() -> str:
        assert fit(labels, "--out", tmp_path / "judge", "--embeddings", encoder) != 0
        return capsys.readouterr().err

    weights = (encoder / "model.safetensors").rename(tmp_path / "weights")
    assert_says_what_and_the_remedy(said(), "no model can be loaded from it")
    weights.rename(encoder / "model.safetensors")
    settings = json.loads((encoder / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (encoder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert_says_what_and_the_remedy(said(), "its tokenizer has no padding token")
    for path in encoder.glob("tokenizer*"):
        path.unlink()
    assert_says_what_and_the_remedy(said(), "it has no tokenizer")
    (encoder / "tokenizer.json").write_text("{}")
    assert_says_what_and_the_remedy(said(), "no tokenizer can be loaded from it")
    (encoder / "config.json").unlink()
    assert "has no config.json" in said()


def assert_says_what_and_the_remedy(said: str, what: str) -> None:
    flat = " ".join(said.split())
    assert f"cannot be used: {what}" in flat
    assert "Name another (--embeddings MODEL)" in flat
    assert "hf download sentence-transformers/all-MiniLM-L6-v2 --local-dir minilm" in flat
    assert "sentencepiece" not in flat


def test_closeness_is_the_cosine_with_the_data_sets_own_answer_of_each_instruction(encoder: Path, farm: Make) -> None:
    light = farm()
    own = light.workspace.data.rows("evaluation")
    assert len({row.output for row in own}) == 3
    others = [Output(row.instruction, f"w{5 + place}") for place, row in enumerate(own)]
    embedding = SentenceEncoder(str(encoder))
    closeness = Closeness(light, embedding)
    cosines = [
        float(np.dot(*embedding.embed([row.output, other.output]))) for row, other in zip(own, others, strict=True)
    ]
    assert max(cosines) < 1 - 1e-3
    assert closeness.gains(others, own) == pytest.approx([1 - cosine for cosine in cosines], abs=1e-6)
    assert closeness.gains(own[::-1], others[::-1]) == pytest.approx([c - 1 for c in reversed(cosines)], abs=1e-6)


# ------------------------------------------------------------------------------------------------- the reward model


def test_a_language_model_that_is_not_there_is_told_before_anything_is_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = by_a_word(tmp_path / "labels.jsonl", 60)
    arguments = ("--out", tmp_path / "judge", "--output-dir", tmp_path / "runs", "--reward-model")
    assert fit(labels, *arguments, tmp_path / "nowhere") != 0
    said = capsys.readouterr().err
    assert f"{str(tmp_path / 'nowhere')!r}: no such file" in "".join(said.split("\n"))
    assert "check --reward-model" in " ".join(said.split())
    assert "folds" not in said


@pytest.mark.slow
@pytest.mark.parametrize("lora", ["null", "{r: 4, alpha: 16}"])
def test_the_reward_model_learns_what_no_feature_says(
    lora: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fitted in three folds and to all, kept with its files, and opened again by its directory."""
    from afarm import Farm

    model = tmp_path / "model"
    model.mkdir()
    tiny_policy().save(model)
    labels = by_a_word(tmp_path / "labels.jsonl", 120, reward=6.0)
    rows = [json.loads(line) for line in labels.read_text().splitlines()]
    named = [
        {**row, "generator_1": f"system {n % 3}", "generator_2": f"system {3 + n % 2}"} for n, row in enumerate(rows)
    ]
    labels.write_text("".join(json.dumps(row) + "\n" for row in named))
    sizes = {"num_train_epochs": 2, "learning_rate": 0.02, "head_learning_rate": 0.06, "lora": lora}
    sizes |= {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1}
    settings = [f"bradley_terry.{name}={value}" for name, value in sizes.items()]
    arguments = [labels, "--out", tmp_path / "judge", "--reward-model", model, "--folds", 3, "--json"]
    arguments += ["--output-dir", tmp_path / "runs"]
    assert fit(*arguments, *(part for setting in settings for part in ("--set", setting))) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kept"] == "reward model"
    assert found["beats_length"]
    assert (len(found["systems"]), found["unseen_systems"]) == (5, {})
    card = (tmp_path / "judge" / "README.md").read_text()
    assert "## Systems it never saw\n\nNot measured: a reward model" in card
    assert (tmp_path / "judge" / "reward_model" / "class.json").is_file()
    with Farm(output_dir=tmp_path / "runs", annotator=f"fitted:{tmp_path / 'judge'}") as farm:
        better, worse = "w3 w10 w5", "w4 w10 w5"
        pairs = [Pair(Instruction(f"w1 w{n}"), worse, better) for n in range(40)]
        labels_drawn = farm.annotate_pairs(pairs)
    assert sum(label.p2 or 0 for label in labels_drawn) > 30


def test_methods_are_told_apart_by_paired_differences() -> None:
    systems = {"a": {"x": 40, "y": 50, "z": 60}, "b": {"x": 50, "y": 70, "z": 90}, "c": {"x": 40, "y": 51, "z": 59}}
    # a less b: 10, 20 and 30, so t = 2 √3 on 2 degrees of freedom and p = 1 − √(12/14), of which Holm counts three
    found = differences(systems)
    assert found[0] == "a less b: -20.0 ± 5.8, p 0.22"
    assert found[1] == "a less c: +0.0 ± 0.6, p 1"
    assert len(found) == 3
