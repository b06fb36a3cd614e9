"""AlpacaFarm's data set, from a local copy in the Hub's layout: the splits' names, repeats, and no network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from afarm.core.errors import DataError
from afarm_plugins.datasets import HubConfig
from afarm_plugins.datasets.hub import AlpacaFarm

CARD = """---
configs:
- config_name: alpaca_instructions
  data_files:
  - {split: sft, path: sft.json}
  - {split: preference, path: preference.json}
  - {split: unlabeled, path: unlabeled.json}
  - {split: val, path: val.json}
- config_name: alpaca_farm_evaluation
  data_files:
  - {split: eval, path: eval.json}
---
"""


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AlpacaFarm:
    library = pytest.importorskip("datasets")
    copy = tmp_path / "alpaca_farm"
    copy.mkdir()
    (copy / "README.md").write_text(CARD)
    for split in ("sft", "preference", "unlabeled", "val", "eval"):
        rows = [{"instruction": f"{split} {i % 3}", "input": "", "output": f"out {i}"} for i in range(4)]
        (copy / f"{split}.json").write_text(json.dumps(rows))
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return AlpacaFarm(HubConfig(repository=str(copy), evaluation_repository=str(copy)))


def test_each_split_comes_from_its_own_and_the_first_of_repeated_instructions_stands(dataset: AlpacaFarm) -> None:
    names = {"sft": "sft", "preference": "preference", "unlabeled": "unlabeled", "validation": "val"}
    for split, own in {**names, "evaluation": "eval"}.items():
        rows = dataset.load(split)
        assert [row.instruction.instruction for row in rows] == [f"{own} {i}" for i in range(3)]
        assert [row.output for row in rows] == ["out 0", "out 1", "out 2"]


def test_a_split_it_does_not_have_and_a_copy_that_is_not_there_are_errors(dataset: AlpacaFarm, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no split 'test'; it has sft, preference"):
        dataset.load("test")
    missing = AlpacaFarm(HubConfig(repository=str(tmp_path / "none")))
    with pytest.raises(DataError, match=r"cannot be loaded.*--data FILE"):
        missing.load("sft")


def test_without_a_network_the_hubs_data_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nobody answers
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(DataError, match=r"nobody/nothing: the Hub cannot be reached.*--data FILE"):
        AlpacaFarm(HubConfig(repository="nobody/nothing")).load("sft")
    assert "Retrying" not in "".join(capfd.readouterr())
