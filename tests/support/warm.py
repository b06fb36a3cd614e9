"""`afarm` in forks of a process that has imported what training needs: the imports take ten times a tiny training."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "afarm_plugins.best_of_n.best_of_n",
        "afarm_plugins.ppo.ppo",
        "afarm_plugins.reward_model.bradley_terry",
        "afarm_plugins.sft.sft",
        "peft",
    ]
)


def start(arguments: Sequence[str], said: Path, **environment: str) -> BaseProcess:
    """Start `afarm ARGUMENTS`; what it prints goes to the files `stdout` and `stderr` in the directory `said`."""
    said.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        forkserver.ensure_running()
    process = CONTEXT.Process(target=run_afarm, args=(list(arguments), said, environment))
    process.start()
    return process


def run_afarm(arguments: list[str], said: Path, environment: dict[str, str]) -> None:
    """Be the command, in the process that was started."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(said / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    sys.argv = ["afarm", *arguments]

    from afarm.cli import main

    main(arguments)
