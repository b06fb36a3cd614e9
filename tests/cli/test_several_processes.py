"""What the command line says and does in one of several processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from light_farm import LightBackend
from light_plugin import WordPolicy
from said import Afarm

from afarm.cli import launch
from afarm.core.errors import DataError
from afarm.experiment.components import Components
from afarm.experiment.farm import Farm
from afarm.experiment.process_info import RANK, SIZE


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As no launcher has been here."""
    for name in (*RANK, *SIZE, "LOCAL_RANK", "MASTER_PORT", "ACCELERATE_USE_CPU", "ACCELERATE_USE_FSDP"):
        monkeypatch.delenv(name, raising=False)
    launch.process_info.cache_clear()
    yield
    launch.process_info.cache_clear()


@pytest.fixture
def second(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the second of two processes."""

    class Shared(LightBackend):
        session = "this launch"

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(Components, "backend", property(lambda self: Shared(WordPolicy)))


def test_the_second_process_takes_no_part_in_what_does_not_train(second: None, afarm: Afarm, tmp_path: Path) -> None:
    for command in (["artifacts", "list"], ["plugins"], ["evaluate", "a.json", "--reference", "b.json"]):
        said = afarm(*command)
        assert (said.code, said.out, said.err) == (0, "", ""), command
    assert not (tmp_path / "afarm-runs").exists()


def test_settings_that_are_wrong_are_told_once(second: None, afarm: Afarm) -> None:
    said = afarm("run", "--recipe", "light.yaml", "--method", "nonsense")
    assert (said.code, said.out, said.err) == (1, "", "")


def test_a_failure_names_the_process(second: None, afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Farm, method: str) -> None:
        raise DataError("a page of the file is damaged")

    monkeypatch.setattr(Farm, "evaluate", fail)
    said = afarm("run", "--recipe", "light.yaml")
    assert (said.code, said.out) == (1, "")
    assert "Error in process 1: a page of the file is damaged" in said.err


def test_the_first_process_speaks(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "ppo" in afarm("plugins").out


def test_an_unknown_configuration_names_the_nearest(afarm: Afarm) -> None:
    said = afarm("run", "--recipe", "light.yaml", "--accelerate-config", "fsdp")
    assert said.code == 1
    assert "--accelerate-config fsdp: neither a configuration nor a file" in said.err
    assert "fsdp2" in said.err


def test_a_dry_run_starts_no_processes(afarm: Afarm) -> None:
    said = afarm("run", "--recipe", "light.yaml", "--accelerate-config", "two_processes", "--dry-run")
    assert said.code == 0
    assert "nudge" in said.out


def test_a_configuration_starts_processes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of a single process, which does not look like one of several."""
    pytest.importorskip("accelerate")
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append(arguments))
    monkeypatch.setattr(sys, "argv", ["afarm", "run", "--accelerate-config", "fsdp2"])
    monkeypatch.setenv(launch.LAUNCHED, "")  # so that it is taken away after the test
    monkeypatch.delenv(launch.LAUNCHED)
    launch.relaunch("fsdp2")
    launch.relaunch("fsdp2")
    assert [words[-3:] for words in started] == [["run", "--accelerate-config", "fsdp2"]]


def test_a_launch_that_stayed_one_process_is_told(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert "This is one process" in afarm("run", "--recipe", "light.yaml").err


def test_the_configurations_name_what_accelerate_knows() -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    found = {path.stem: config_args.load_config_from_file(str(path)) for path in launch.CONFIGS.glob("*.yaml")}
    assert {name: config.distributed_type.value for name, config in found.items()} == {
        "two_processes": "MULTI_GPU",
        "fsdp2": "FSDP",
        "fsdp2_offload": "FSDP",
    }
    asked = {name: config.fsdp_config.get("fsdp_offload_params") for name, config in found.items()}
    assert asked == {"two_processes": None, "fsdp2": None, "fsdp2_offload": True}
    assert {config.num_processes for config in found.values()} == {2}
