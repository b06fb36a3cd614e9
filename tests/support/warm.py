"""Forks of a process that has imported what training needs: the imports take ten times a tiny training."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "afarm_plugins.best_of_n.best_of_n",
        "afarm_plugins.dpo.dpo",
        "afarm_plugins.expert_iteration.expert_iteration",
        "afarm_plugins.ppo.ppo",
        "afarm_plugins.quark.quark",
        "afarm_plugins.reward_model.bradley_terry",
        "afarm_plugins.sft.sft",
        "peft",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "warmth",
    ]
)


def start(arguments: Sequence[str], said: Path, **environment: str) -> BaseProcess:
    """Start `afarm ARGUMENTS`, as `begin` does."""
    return begin(partial(run_afarm, list(arguments)), said, **environment)


def begin(act: Callable[[], object], said: Path, **environment: str) -> BaseProcess:
    """Start a function of a module; what it prints goes to the files `stdout` and `stderr` in the directory `said`."""
    said.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        forkserver.ensure_running()
    process = CONTEXT.Process(target=be, args=(act, said, environment))
    process.start()
    return process


def finish(process: BaseProcess, said: Path, limit: int = 300) -> str:
    """What it printed on stdout, once it has ended well."""
    process.join(limit)
    if process.is_alive():
        for started in [*psutil.Process(process.pid).children(recursive=True), process]:
            started.kill()
    assert process.exitcode == 0, (said / "stderr").read_text()
    return (said / "stdout").read_text()


def be(act: Callable[[], object], said: Path, environment: dict[str, str]) -> None:
    """Be the process that was started."""
    gc.freeze()  # trainers collect garbage, and modules are none
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(said / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    act()


def run_afarm(arguments: list[str]) -> None:
    sys.argv = ["afarm", *arguments]

    from afarm.cli import main

    main(arguments)
