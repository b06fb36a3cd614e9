"""Several processes under one command: start them with accelerate, silence all but the main one."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

from afarm.cli.console import hand_on_stdout
from afarm.core.errors import ConfigError, PluginError, did_you_mean
from afarm.experiment.process_info import ProcessInfo

OPTION = "--accelerate-config"

LAUNCHED = "AFARM_LAUNCHED"
"""The variable that keeps a process which `OPTION` has started from starting others."""

LOCAL = "local"
"""The launcher that makes stages in the command's own process."""

CONFIGS = Path(__file__).with_name("launch_configs")
"""accelerate's configuration files that come with afarm."""


@cache
def process_info() -> ProcessInfo:
    """Read once which of several processes this is, and hide FSDP from libraries that would apply it."""
    found = ProcessInfo.of(os.environ)
    if found.sharded:
        del os.environ["ACCELERATE_USE_FSDP"]
    return found


@contextmanager
def only_the_first_speaks() -> Iterator[None]:
    """Silence stdout and stderr in all but the main process. Errors that leave the block can be printed."""
    if process_info().is_main_process:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def require_one_way(launcher: str, config: str | None) -> None:
    """Raise `ConfigError` for a launcher in several processes, which would wait for each other."""
    instead = "its stages have processes of their own (of ray, as many as ray.processes says)"
    if launcher != LOCAL and config:
        raise ConfigError([f"--launcher and {OPTION} contradict each other: leave one out; with --launcher {instead}"])
    if launcher != LOCAL and process_info().is_distributed:
        raise ConfigError([f"--launcher {launcher} is started in one process, and these are several: {instead}"])


def relaunch(name: str | None) -> None:
    """Become `accelerate launch` of this command with the configuration `name`, unless that was done.

    Raises `ConfigError` if there is no such configuration.
    """
    if not name or process_info().is_distributed or LAUNCHED in os.environ:
        return
    known = {path.stem: path for path in CONFIGS.glob("*.yaml")}
    path = known.get(name, Path(name))
    if not path.is_file():
        raise ConfigError([f"{OPTION} {name}: neither a configuration nor a file.{did_you_mean(name, known)}"])
    if importlib.util.find_spec("accelerate") is None:
        raise PluginError("several processes need 'accelerate': pip install 'afarm[train]'")
    launch = ["-m", "accelerate.commands.launch", "--config_file", str(path), "-m", "afarm"]
    hand_on_stdout()
    os.environ[LAUNCHED] = "1"
    os.execv(sys.executable, [sys.executable, *launch, *sys.argv[1:]])
