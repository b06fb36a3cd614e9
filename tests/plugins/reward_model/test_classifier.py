"""Sequence classifiers of others as reward models, from local directories, with tokenizers of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import make_context, make_instructions, make_policy
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from afarm.backend import TorchRewardModel
from afarm.core.errors import ConfigError, ModelError
from afarm.core.interfaces import BuildContext, Decoding, Policy
from afarm.core.records import Instruction
from afarm.testing import check_reward_model, judge_context, tiny_reward_model
from afarm_plugins.best_of_n.best_of_n import BestOfNPolicy
from afarm_plugins.reward_model import ClassifierConfig
from afarm_plugins.reward_model.classifier import ClassifierRewardModel, Reader

CHAT = "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"


def tokenizer(pairs: bool = False) -> PreTrainedTokenizerFast:
    """Words in another order than the policies' tokenizer has them, with BERT's frame around pairs."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "<user>", "<assistant>"]
    inner = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate([*special, *(f"w{i}" for i in range(39, -1, -1))])}, "[UNK]")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if pairs:
        inner.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
    kinds = ["input_ids", "token_type_ids", "attention_mask"] if pairs else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        model_input_names=kinds,
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
    )


def saved_encoder(directory: Path, labels: int = 1) -> Path:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=46,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
        num_labels=labels,
        initializer_range=0.3,
    )
    BertForSequenceClassification(config).save_pretrained(directory)
    tokenizer(pairs=True).save_pretrained(directory)
    return directory


def saved_decoder(directory: Path, labels: int = 1, chat: bool = True) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=46,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        num_labels=labels,
        pad_token_id=0,
        initializer_range=0.3,
    )
    LlamaForSequenceClassification(config).save_pretrained(directory)
    made = tokenizer()
    made.chat_template = CHAT if chat else None
    made.save_pretrained(directory)
    return directory


def opened(directory: Path, **settings: Any) -> ClassifierRewardModel:
    return ClassifierRewardModel(ClassifierConfig(**settings), str(directory), judge_context())


def test_an_encoder_reads_instruction_and_output_as_a_pair(tmp_path: Path) -> None:
    model = opened(saved_encoder(tmp_path))
    check_reward_model(model)
    plain = BertForSequenceClassification.from_pretrained(tmp_path).eval()
    inputs = tokenizer(pairs=True)("w1 w2\nw3", "w4 w5", return_tensors="pt")
    assert inputs["token_type_ids"].unique().tolist() == [0, 1]
    with torch.no_grad():
        expected = plain(**inputs).logits.item()
    assert model.score([Instruction("w1 w2", "w3")], ["w4 w5"])[0].value == pytest.approx(expected, abs=1e-5)


def test_a_decoder_reads_the_conversation_that_its_chat_template_makes(tmp_path: Path) -> None:
    model = opened(saved_decoder(tmp_path))
    check_reward_model(model)
    plain = LlamaForSequenceClassification.from_pretrained(tmp_path).eval()
    ids = tokenizer()("<user> w1 <assistant> w4 w5", add_special_tokens=False, return_tensors="pt").input_ids
    with torch.no_grad():
        expected = plain(ids).logits.item()
    assert model.score([Instruction("w1")], ["w4 w5"])[0].value == pytest.approx(expected, abs=1e-5)


def test_of_two_labels_the_difference_is_the_reward(tmp_path: Path) -> None:
    model = opened(saved_encoder(tmp_path, labels=2))
    plain = BertForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        bad, good = plain(**tokenizer(pairs=True)("w1", "w2", return_tensors="pt")).logits[0].tolist()
    assert model.score([Instruction("w1")], ["w2"])[0].value == pytest.approx(good - bad, abs=1e-5)


def test_of_a_pair_the_beginning_of_the_instruction_is_cut_then_the_end_of_the_output(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = opened(saved_encoder(tmp_path), max_length=8).reader
    assert isinstance(reader, Reader)
    rows = reader.encode(
        [Instruction("w1 w2 w3 w4", "w5 w6"), Instruction("w1 w2"), Instruction("w1 w2 w3")],
        ["w7 w8", "w7 w8 w9", "w7 w8 w9 w10 w11 w12"],
    )
    assert [reader.tokenizer.decode(row["input_ids"]) for row in rows] == [
        "[CLS] w4 w5 w6 [SEP] w7 w8 [SEP]",
        "[CLS] w1 w2 [SEP] w7 w8 w9 [SEP]",
        "[CLS] w3 [SEP] w7 w8 w9 w10 [SEP]",
    ]
    assert [row["token_type_ids"].count(1) for row in rows] == [3, 4, 5]
    assert "2 of 3 outputs were cut" in caplog.text


def test_what_is_too_long_is_cut_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = opened(saved_decoder(tmp_path), max_length=8)
    long = Instruction(" ".join(["w1"] * 50))
    assert [len(row["input_ids"]) for row in model.reader.encode([long], ["w2 w3"])] == [8]  # type: ignore[union-attr]
    assert "1 of 1 outputs were cut" in caplog.text
    shorter = Instruction(" ".join(["w1"] * 30))
    assert model.score([long], ["w2 w3"])[0].value == pytest.approx(
        model.score([shorter], ["w2 w3"])[0].value, abs=1e-5
    )


@pytest.mark.parametrize("template", ["pair", "alpaca"])
def test_the_template_can_be_chosen(tmp_path: Path, template: str) -> None:
    directory = saved_decoder(tmp_path, chat=False)
    assert opened(directory).score([Instruction("w1")], ["w2"]) == opened(directory, template="pair").score(
        [Instruction("w1")], ["w2"]
    )
    check_reward_model(opened(directory, template=template))
    with pytest.raises(ModelError, match=r"has no chat template: set classifier\.template"):
        opened(directory, template="chat").score([Instruction("w1")], ["w2"])


def test_a_language_model_is_refused_before_it_is_loaded_and_never_given_a_head(tmp_path: Path) -> None:
    make_policy().save(tmp_path)
    (tmp_path / "afarm.json").unlink()
    with pytest.raises(ModelError, match="is a LlamaForCausalLM, no sequence classifier"):
        opened(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": None}))
    with pytest.raises(ModelError, match=r"no sequence classifier: it has no weights for score\.weight"):
        opened(tmp_path).score(make_instructions(1), ["w1"])


def test_more_than_two_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has 3 labels"):
        opened(saved_encoder(tmp_path, labels=3)).score(make_instructions(1), ["w1"])


def test_nothing_is_loaded_before_it_is_asked_and_a_wrong_spec_is_refused_at_once(tmp_path: Path) -> None:
    saved_encoder(tmp_path)

    def never() -> Any:
        raise AssertionError("loaded")

    made = ClassifierRewardModel(ClassifierConfig(), str(tmp_path), BuildContext(never, backend=never))
    assert made.identity.startswith("files:")
    assert made.score([], []) == []
    with pytest.raises(ConfigError, match="after a colon"):
        ClassifierRewardModel(ClassifierConfig(), "", judge_context())
    with pytest.raises(ModelError, match=r"no such file.*check --reward-model classifier:"):
        ClassifierRewardModel(ClassifierConfig(), str(tmp_path / "nothing"), judge_context())
    before = made.identity
    saved_encoder(tmp_path, labels=2)
    assert made.identity != before


def test_a_model_that_afarm_fitted_scores_as_it_did(tmp_path: Path) -> None:
    fitted = tiny_reward_model()
    fitted.mean, fitted.std = 0.3, 2.0
    fitted.save(tmp_path / "model")
    instructions, outputs = make_instructions(4), ["w1", "w2 w3", "", "w4"]
    expected = [s.value for s in fitted.score(instructions, outputs)]
    for directory in (tmp_path, tmp_path / "model"):
        model = opened(directory)
        assert isinstance(model.reader, TorchRewardModel)
        assert [s.value for s in model.score(instructions, outputs)] == pytest.approx(expected, abs=1e-6)


def test_best_of_n_chooses_by_it_and_takes_it_along(tmp_path: Path) -> None:
    policy, model = make_policy(), opened(saved_encoder(tmp_path / "encoder"))
    best_of = BestOfNPolicy(policy, model, 8)
    decoding = Decoding(max_new_tokens=6, per_device_batch_size=8)
    instructions = make_instructions(3)
    best = list(best_of.sample(instructions, decoding, seed=0))
    for instruction, sample in zip(instructions, best, strict=True):
        assert sample.score == pytest.approx(model.score([instruction], [sample.text])[0].value, abs=1e-5)
    best_of.save(tmp_path / "saved")
    again: Policy = BestOfNPolicy.load(tmp_path / "saved", make_context(tmp_path / "loading")[0])
    assert [s.text for s in again.sample(instructions, decoding, seed=0)] == [s.text for s in best]
