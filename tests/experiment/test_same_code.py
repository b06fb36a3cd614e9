"""A launcher's nodes are asked for their code before a stage is sent to one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from light_farm import light_plugins, light_workspace
from one_node import Change, OneNode, another_code, another_plugin

from afarm.core.errors import ConfigError
from afarm.experiment import tasks
from afarm.experiment.launching.launcher import Launcher
from afarm.experiment.tasks import require_same_code


def another_clock(there: pytest.MonkeyPatch) -> None:
    now = time.time
    there.setattr(time, "time", lambda: now() - 12)


@pytest.fixture
def require(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Launcher], None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks, "_plugins", lambda *chosen: light_plugins())

    def ask(launcher: Launcher) -> None:
        with light_workspace(tmp_path) as opened:
            require_same_code(launcher, opened, "nudge", "a run")

    return ask


def test_a_node_with_the_same_code_may_begin_stages(require: Callable[[Launcher], None]) -> None:
    require(OneNode())
    require(OneNode(another_clock))  # which only the whole check looks at


@pytest.mark.parametrize(("change", "name"), [(another_code, "afarm"), (another_plugin, "afarm:judges")])
def test_a_node_with_another_code_is_named_before_a_stage(
    require: Callable[[Launcher], None], change: Change, name: str
) -> None:
    with pytest.raises(ConfigError, match=f"node2: another code of {name}: install the same on every machine"):
        require(OneNode(change))


def test_a_node_that_sees_no_directory_is_named_before_a_stage(
    require: Callable[[Launcher], None], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"node2: .* sees no directory .*nowhere: share it with every machine"):
        require(OneNode(output_dir=str(tmp_path / "nowhere")))
