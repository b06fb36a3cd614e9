"""What a user hears of while a stage is at work: that it resumes, that another process is waited for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from light_farm import light_farm

from afarm.core.errors import DataError, StoreError
from afarm.core.records import Output
from afarm.storage.artifacts import Store
from afarm.storage.checkpoints import DirectoryCheckpoints


def test_a_stage_that_resumes_says_from_which_step(tmp_path: Path) -> None:
    said: list[str] = []
    farm = light_farm(tmp_path, notify=said.append)
    (tmp_path / "stage").mkdir()
    with farm.workspace.components.training("methods", "nudge", "train nudge", tmp_path / "stage", 0):
        assert said == []
    DirectoryCheckpoints(tmp_path / "stage").save(7, lambda directory: None)
    with farm.workspace.components.training("methods", "nudge", "train nudge", tmp_path / "stage", 0):
        assert said == ["train nudge: going on from step 7"]


def test_a_stage_does_not_go_on_from_a_checkpoint_with_a_flipped_bit(tmp_path: Path) -> None:
    components = light_farm(tmp_path).workspace.components
    DirectoryCheckpoints(tmp_path).save(7, lambda directory: (directory / "some.pt").write_bytes(b"\0"))
    for path in tmp_path.rglob("some.pt"):
        path.write_bytes(b"\1")
    with (
        pytest.raises(StoreError, match="step-00000007 is damaged: it has other bytes than were written"),
        components.training("methods", "nudge", "train nudge", tmp_path, 0),
    ):
        pytest.fail("it went on")


def test_who_waits_for_another_writer_says_so(tmp_path: Path) -> None:
    waiting = threading.Event()
    store = Store(tmp_path, notify=lambda text: waiting.set())
    with store._locked("sft", "k" * 16):
        other = threading.Thread(target=lambda: store.make("sft", {"a": 1}, lambda directory: {}))
        other.start()
        other.join(120)
        assert not waiting.is_set(), "another key is not waited for"
    key = store.all()[0].key
    with store._locked("sft", key):
        (store.all()[0].path / "artifact.json").unlink()
        other = threading.Thread(target=lambda: store.make("sft", {"a": 1}, lambda directory: {}))
        other.start()
        assert waiting.wait(120)
    other.join(120)


def test_a_null_is_called_one_and_not_missing() -> None:
    with pytest.raises(DataError, match="row 3: field 'output' is null"):
        Output.from_row({"instruction": "i", "output": None}, "row 3")
    with pytest.raises(DataError, match="row 3: field 'output' is missing"):
        Output.from_row({"instruction": "i"}, "row 3")
