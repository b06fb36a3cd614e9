"""Keys of a release: numbers in place of digests, held to the code by a lock; other code never goes on."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from light_farm import light_farm
from light_plugin import RAN
from places import ROOT

from afarm.core.registry import FIRST_PARTY
from afarm.experiment import release_numbers
from afarm.experiment.plugin_code import plugin_digest, plugin_identity
from afarm.experiment.stage_code import DOORS, STAGE_CODE, code_digest, code_identity
from afarm.storage.artifacts import Store

Release = Callable[..., None]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_numbers_tool", ROOT / "tools" / "release_numbers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[Release]:
    """Makes afarm a release of a version, with raised numbers and with code that is not the one before."""

    def pretend(version: str, edited: bool = False, **raised: int) -> None:
        numbers = {name: dict(entry) for name, entry in json.loads(release_numbers.NUMBERS.read_text()).items()}
        for name, number in raised.items():
            numbers[name]["number"] = number
        monkeypatch.setattr(release_numbers, "released_version", lambda: version)
        monkeypatch.setattr(release_numbers, "read_numbers", lambda: numbers)
        if edited:
            monkeypatch.setattr("afarm.experiment.stage_code.source_digest", lambda files: f"code of {version}")
            code_digest.cache_clear()

    yield pretend
    code_digest.cache_clear()


def test_the_numbers_are_held_to_the_code(tool: ModuleType) -> None:
    changed = tool.find_changes(json.loads(release_numbers.NUMBERS.read_text()), tool.digest_code())
    assert changed == [], "decide with python tools/release_numbers.py if results change"


def test_an_edit_is_named_and_asks_for_a_decision(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "numbers.json"
    copy.write_text(release_numbers.NUMBERS.read_text())
    digests = {**tool.digest_code(), "train": "edited", "afarm_plugins.ppo": "edited"}
    monkeypatch.setattr(tool, "NUMBERS", copy)
    monkeypatch.setattr(tool, "digest_code", lambda: digests)

    def run(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["release_numbers.py", *words])
        return int(tool.main())

    assert run() == 1
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["train", "afarm_plugins.ppo"]
    before = json.loads(copy.read_text())
    assert run("--same", "train") == 1
    assert run("--raise", "afarm_plugins.ppo") == 0
    after = json.loads(copy.read_text())
    assert after["train"] == {"number": before["train"]["number"], "digest": "edited"}
    assert after["afarm_plugins.ppo"] == {"number": before["afarm_plugins.ppo"]["number"] + 1, "digest": "edited"}
    with pytest.raises(SystemExit):
        run("--same", "trian")


def make(directory: Path) -> set[str]:
    """Evaluate the light method; the labels of the stages that were made."""
    with light_farm(directory, start="model") as farm:
        farm.evaluate()
        return {label for label, run in farm.workspace.history.items() if not run.reused}


def test_a_patch_release_makes_nothing_again(release: Release, tmp_path: Path) -> None:
    release("1.0")
    assert "train nudge" in make(tmp_path)
    RAN.clear()
    release("1.0.1", edited=True)
    assert make(tmp_path) == set()
    assert RAN == []


def test_a_raised_number_makes_the_stages_of_its_kind_again(release: Release, tmp_path: Path) -> None:
    release("1.0")
    make(tmp_path)
    release("1.1", evaluate=release_numbers.read_numbers()["evaluate"]["number"] + 1)
    assert make(tmp_path) == {"evaluate nudge against base"}


def test_a_clone_is_digested(tmp_path: Path) -> None:
    assert release_numbers.released_version() == "", "tests run from a clone"
    assert {stage: code_identity(stage) for stage in STAGE_CODE} == {stage: code_digest(stage) for stage in STAGE_CODE}


def test_what_stands_for_a_plugin_is_the_number_of_its_folder_if_it_is_ours(release: Release, farm: Any) -> None:
    components = farm().workspace.components
    ours, theirs = components.component("annotators", "pool"), components.component("methods", "nudge")
    assert (ours.package == FIRST_PARTY, theirs.package == FIRST_PARTY) == (True, False)
    assert plugin_identity(ours) == plugin_digest(ours)
    release("1.0")
    assert plugin_identity(ours) == f"afarm_plugins.annotators {number_of('afarm_plugins.annotators')}"
    assert plugin_identity(theirs) == plugin_digest(theirs)
    assert code_identity(DOORS) == f"doors {number_of('doors')}"


def number_of(name: str) -> int:
    return int(release_numbers.read_numbers()[name]["number"])


class Distribution:
    """An installed distribution, as `importlib.metadata` gives it."""

    version = "1.0"

    def __init__(self, place: Path, texts: dict[str, str]):
        self.place, self.texts = place, texts

    def locate_file(self, name: str) -> Path:
        return self.place / name

    def read_text(self, name: str) -> str | None:
        return self.texts.get(name)


@pytest.mark.parametrize(
    ("own", "texts", "version"),
    [
        (True, {"RECORD": "…"}, "1.0"),
        (True, {"RECORD": "…", "direct_url.json": "{}"}, ""),  # a clone, a git address, a local wheel
        (False, {"RECORD": "…"}, ""),  # PYTHONPATH names a clone beside an installed release
        (True, {}, ""),  # metadata beside a source tree
    ],
)
def test_a_release_is_what_came_from_an_index_and_runs(
    own: bool, texts: dict[str, str], version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = release_numbers.PACKAGE.parent if own else tmp_path
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Distribution(place, texts))
    assert release_numbers.released_version.__wrapped__() == version


def test_what_a_killed_stage_of_another_release_left_is_never_gone_on_with(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create()

    def killed(directory: Path) -> dict[str, Any]:
        (directory / "checkpoints").mkdir()
        raise KeyboardInterrupt

    def left(directory: Path) -> dict[str, Any]:
        there = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
        (directory / "weights").write_text("1")
        return {"left": there}

    with pytest.raises(KeyboardInterrupt):
        store.make("train", {"stage": "train"}, killed, code="1.0")
    with pytest.raises(KeyboardInterrupt):  # the same release finds what was left
        store.make("train", {"stage": "train"}, killed_again, code="1.0")
    artifact, _ = store.make("train", {"stage": "train"}, left, code="1.0.1")
    assert artifact.meta["summary"] == {"left": []}
    assert set(artifact.meta["files"]) == {"weights"}


def killed_again(directory: Path) -> dict[str, Any]:
    assert (directory / "checkpoints").is_dir()
    raise KeyboardInterrupt
