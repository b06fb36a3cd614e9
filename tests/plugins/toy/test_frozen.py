"""The editions of the toy world are frozen: files that differ are refused, and a run takes its edition's base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from afarm.core.errors import ConfigError, DataError
from afarm.core.plugins import discover
from afarm.experiment.recipe import resolve
from afarm.storage.model_files import local_path
from afarm_plugins.toy import ToyConfig, frozen
from afarm_plugins.toy.dataset import ToyDataset
from afarm_plugins.toy.fingerprint import fingerprint
from tools.toy.freeze import describe

EDITIONS = sorted(frozen.EDITIONS)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The world's files in a folder of their own."""
    for edition in EDITIONS:
        shutil.copy(frozen.description(edition), tmp_path)
        shutil.copytree(frozen.base_directory(edition), tmp_path / frozen.base_directory(edition).name)
    monkeypatch.setattr(frozen, "HERE", tmp_path)
    return tmp_path


@pytest.mark.parametrize("edition", EDITIONS)
def test_an_edition_is_as_it_was_frozen(edition: int) -> None:
    frozen.require_frozen(edition)
    assert frozen.description(edition).read_text(encoding="utf-8") == describe(edition)
    assert json.loads(describe(edition))["language"] == fingerprint()


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_world_file_that_differs_is_refused(copied: Path, edition: int) -> None:
    frozen.require_frozen(edition)
    frozen._require.cache_clear()
    file = copied / f"world{edition}.json"
    file.write_text(file.read_text(encoding="utf-8").replace("safetensors", "safetensor"), encoding="utf-8")
    with pytest.raises(DataError, match=rf"toy world {edition}: .*world{edition}\.json is not the frozen file.* afarm"):
        ToyDataset(ToyConfig(world=edition)).load("sft")


def test_another_base_in_the_place_of_the_frozen_one_is_refused(copied: Path) -> None:
    weights = copied / "base2" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(DataError, match=r"base2/model\.safetensors is not the frozen file.*--model DIR"):
        ToyDataset().load("sft")


def test_a_world_file_that_is_gone_is_refused(copied: Path) -> None:
    (copied / "world2.json").unlink()
    with pytest.raises(DataError, match=r"world2\.json cannot be read \(No such file.*[Ii]nstall afarm again"):
        ToyDataset().load("sft")


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_run_takes_the_base_of_its_edition(edition: int) -> None:
    settings = resolve("toy", [f"toy.world={edition}"], discover())
    assert local_path(settings.run.model) == frozen.base_directory(edition)


def test_an_edition_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValidationError):
        ToyConfig.model_validate({"world": 7})
    with pytest.raises(ConfigError, match=r"toy\.world: must be 2"):
        resolve("toy", ["toy.world=7"], discover())
