"""The bundled base models: they load by the ordinary ways, speak the world's language and are those on the cards."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from afarm_plugins.toy.dataset import ToyDataset  # noqa: E402
from afarm_plugins.toy.fingerprint import fingerprint  # noqa: E402
from afarm_plugins.toy.frozen import EDITIONS, base_directory  # noqa: E402
from afarm_plugins.toy.world import read_answer, read_task  # noqa: E402
from tools.toy.measure_base import auc, sample, verdict_ability  # noqa: E402
from tools.toy.train_base import Encoder, Settings, build_tokenizer, pretrain  # noqa: E402


@pytest.fixture(scope="module", params=sorted(EDITIONS))
def base(request: pytest.FixtureRequest) -> Path:
    return base_directory(request.param)


@pytest.fixture(scope="module")
def model(base: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(base).eval()


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(base)


@pytest.fixture(scope="module")
def card(base: Path) -> str:
    return (base / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_world_is_the_frozen_one(card: str) -> None:
    assert f"World: `{fingerprint()}`" in card


def test_weights_are_those_of_the_card_and_small(base: Path, card: str) -> None:
    weights = (base / "model.safetensors").read_bytes()
    assert f"Weights: `{hashlib.sha256(weights).hexdigest()}`" in card
    assert sum(path.stat().st_size for path in base.iterdir()) < 5_000_000


def test_chat_template_gives_the_prompt_of_pretraining(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer)
    for row in ToyDataset().load("evaluation")[:100]:
        content = "\n".join(part for part in (row.instruction.instruction, row.instruction.input) if part)
        chat = [{"role": "user", "content": content}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert ids == encoder.prompt(row.instruction)
        assert tokenizer.unk_token_id not in ids


def test_answers_survive_the_tokenizer(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer)
    for row in ToyDataset().load("sft")[:1000]:
        ids = encoder.answer(row.output)
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == row.output


def test_stop_marks_in_a_row_survive_the_tokenizer(tokenizer: Any) -> None:
    ids = tokenizer("oak.. it is, , big", add_special_tokens=False).input_ids
    again = tokenizer(tokenizer.decode(ids), add_special_tokens=False).input_ids
    assert again == ids


def test_base_tells_wrong_answers_from_right_ones(model: Any, tokenizer: Any, card: str) -> None:
    instructions = [row.instruction for split in ("evaluation", "validation") for row in ToyDataset().load(split)]
    measured = verdict_ability(model, Encoder(tokenizer), instructions)
    assert measured["wrong core"] > 0.95
    for name, value in measured.items():
        stated = re.search(rf"\| {re.escape(name)} \| ([0-9.]+) \|", card)
        assert stated is not None, name
        assert value == pytest.approx(float(stated[1]), abs=0.005), name


def test_base_answers_in_the_language_and_never_samples_a_verdict(model: Any, tokenizer: Any) -> None:
    rows = ToyDataset().load("validation")[:128]
    answers = sample(model, Encoder(tokenizer), [row.instruction for row in rows], temperature=1.0)
    clean = 0
    for row, answer in zip(rows, answers, strict=True):
        features = read_answer(read_task(row.instruction.instruction, row.instruction.input), answer)
        clean += not features.junk and not features.unfinished
    # The base mostly goes on with another instruction, or with the answer to one.
    assert clean >= 0.5 * len(rows)
    assert not any("<|" in answer for answer in answers)


def test_auc_by_hand() -> None:
    assert auc([3.0, 1.0], [2.0, 0.0]) == pytest.approx(0.75)
    assert auc([1.0], [1.0]) == pytest.approx(0.5)


def test_pretraining_repeats_itself() -> None:
    settings = Settings(steps=3, prose_rows=4, verdict_rows=4)
    first, second = (pretrain(settings, build_tokenizer()).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
