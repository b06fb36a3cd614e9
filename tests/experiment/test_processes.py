"""Several processes under one command: what the first makes, what the others join, wait for and never do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from light_farm import LightBackend, light_farm
from light_plugin import RAN, CountingJudge, WordPolicy

from afarm.experiment.components import Components
from afarm.experiment.farm import Farm
from afarm.experiment.process_info import SINGLE_PROCESS, ProcessInfo
from afarm.experiment.processes import announce, follow
from afarm.storage.artifacts import Store, artifact_key
from afarm.storage.checkpoints import DirectoryCheckpoints, FollowedCheckpoints

MADE_FROM = {"seed": 1}
KEY = artifact_key(MADE_FROM)


class SharedBackend(LightBackend):
    """What two threads that play two processes have in common."""

    session = "this launch"
    meeting = threading.Barrier(2)

    def barrier(self) -> None:
        self.meeting.wait(300)


def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Callable[[Farm], Any], *settings: str) -> Any:
    """What each of two ranks makes of `what` with a farm of its own over one directory, and the two farms."""
    monkeypatch.setattr(Components, "backend", property(lambda self: SharedBackend(WordPolicy)))
    RAN.clear()
    farms = [light_farm(tmp_path, *settings, process_info=ProcessInfo(rank, 2)) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(what, farms))
    farms[0].close()
    return found, farms


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, SINGLE_PROCESS),
        ({"RANK": "0", "WORLD_SIZE": "1"}, SINGLE_PROCESS),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ProcessInfo(1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, ProcessInfo(3, 4)),
        ({"RANK": "0", "WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"}, ProcessInfo(0, 2, sharded=True)),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true", "FSDP_OFFLOAD_PARAMS": "true"},
            ProcessInfo(0, 2, sharded=True, offloads=True),
        ),
        ({"RANK": "0", "WORLD_SIZE": "2", "FSDP_OFFLOAD_PARAMS": "true"}, ProcessInfo(0, 2)),
    ],
)
def test_ranks_are_read_from_what_launchers_write(environment: dict[str, str], expected: ProcessInfo) -> None:
    assert ProcessInfo.of(environment) == expected


def test_all_train_and_the_first_does_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, second), farms = together(tmp_path, monkeypatch, lambda farm: farm.evaluate())
    assert first == second
    assert (RAN.count("fit-reward 12"), RAN.count("sample 12x2 at 0.9")) == (2, 1)
    assert RAN.count("sample 10x1 at 0.7") == 2, "once for each of the two systems"
    assert farms[1].workspace.judges.spend is None, "it has asked no judge"
    assert "ledger" not in vars(farms[1].workspace.judges)
    metrics = (farms[0].workspace.history["train nudge"].artifact.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == [1, 2, 3], "logged once"


def test_what_several_made_is_what_one_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, _), farms = together(tmp_path / "two", monkeypatch, lambda farm: farm.evaluate())
    with light_farm(tmp_path / "one") as alone:
        assert alone.evaluate() == first
        pairs = [
            (run.artifact.content, farms[0].workspace.history[label].artifact.content)
            for label, run in alone.workspace.history.items()
        ]
        assert all(one == two for one, two in pairs)


def test_where_everything_is_there_nobody_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with light_farm(tmp_path) as alone:
        made = alone.evaluate()
    asked = CountingJudge.asked
    (first, second), _ = together(tmp_path, monkeypatch, lambda farm: farm.evaluate())
    assert first == second == made
    assert (RAN, CountingJudge.asked) == ([], asked)


# ---------------------------------------------------------------------------------------------------- following one


def write(directory: Path) -> dict[str, str]:
    (directory / "made").write_text("once")
    return {}


def test_what_another_launch_trains_is_waited_for_and_not_joined(tmp_path: Path) -> None:
    store = Store(tmp_path)
    announce(store.partial("train", KEY), "another launch")
    joined: list[Path] = []
    made = threading.Timer(0.7, lambda: store.make("train", MADE_FROM, write))
    made.start()
    found = follow(store, "train", KEY, "this launch", joined.append)
    made.join()
    assert (found, joined) == (store.find("train", KEY), [])


def test_what_this_launch_trains_is_joined_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    joined: list[Path] = []
    announce(store.partial("train", KEY), "this launch")
    made = threading.Timer(0.7, lambda: store.make("train", MADE_FROM, write))

    def join(place: Path) -> None:
        joined.append(place)
        if len(joined) == 1:
            made.start()

    found = follow(store, "train", KEY, "this launch", join)
    made.join()
    assert (found, joined) == (store.find("train", KEY), [store.partial("train", KEY)])
    assert not list(found.path.rglob("session*")), "an artifact does not tell who has made it"


def test_a_followed_checkpoint_is_saved_when_the_first_process_has_saved_it(tmp_path: Path) -> None:
    kept, followed = DirectoryCheckpoints(tmp_path), FollowedCheckpoints(tmp_path)
    kept.save(2, write)
    assert followed.latest() is None, "what the first process saves while another begins is not gone on from"
    saving = threading.Thread(target=followed.save, args=(4, lambda directory: pytest.fail("it writes nothing")))
    saving.start()
    saving.join(0.7)
    assert saving.is_alive()
    kept.save(4, write)
    saving.join(120)
    assert not saving.is_alive()
    assert followed.latest() == kept.latest() == (4, tmp_path / "checkpoints" / "step-00000004")
