"""One command in two processes, as torchrun starts them: reports once, and goes on after a kill."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import warm
from forks import SHARDED
from launches import LIMIT, kill, launched
from places import ROOT
from ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("end_to_end")]

SMALL = {
    # Each process draws all instructions of the data set anew.
    "toy.sft": 100,
    "toy.preference": 10,
    "toy.unlabeled": 32,
    "toy.validation": 16,
    "toy.evaluation": 16,
    "rows.sft": 64,
    "rows.unlabeled": 16,
    "rows.validation": 8,
    "rows.evaluation": 8,
    "sft.num_train_epochs": 1,
    "ppo.total_steps": 4,
    "ppo.rollout_batch_size": 16,
    "ppo.mini_batch_size": 8,
    "ppo.save_steps": 2,
    "ppo.checkpoint": "best",
    "ppo.value_init": "sft",
}
REWARD = f"sum:gold=1,function:{ROOT / 'tests' / 'support' / 'named_rewards.py'}:terse=0.1"
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]


FORKS = ["--run-path", "--start-method", "fork"]
"""What has torchrun fork its processes, which then have its imports."""
MAIN = str(ROOT / "afarm" / "__main__.py")


def torchrun(arguments: list[str]) -> None:
    from torch.distributed.run import main

    main(arguments)


def command(output_dir: Path) -> list[str]:
    """PPO on the true reward: what few preferences teach is rounding, magnified when rewards are standardised.

    Beside it a function, which each process loads.
    """
    parts = ["--method", "ppo", "--reward-model", REWARD, "--json", "--output-dir", str(output_dir)]
    return ["-m", "afarm", "run", *parts, *SETTINGS]


def steps(output_dir: Path) -> list[dict[str, Any]]:
    """What PPO has logged."""
    (metrics,) = [
        path for path in output_dir.glob("artifacts/train/*/metrics.jsonl") if "objective/kl" in path.read_text()
    ]
    return [json.loads(line) for line in metrics.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes of torchrun have made undisturbed."""
    output_dir, said = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("said")
    place = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    warm.finish(warm.begin(partial(torchrun, [*place, *FORKS, MAIN, *command(output_dir)[2:]]), said), said, LIMIT)
    record = json.loads((said / "stdout").read_text())  # one of them speaks, and once
    err = (said / "stderr").read_text()
    assert record["method"] == "ppo"
    assert err.count("… train ppo (stage") == 1, "one process tells"
    return output_dir


def two_started(output_dir: Path) -> list[BaseProcess]:
    """Start the command in two processes that have their imports, placed as torchrun places them."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        warm.start(command(output_dir)[2:], output_dir / f"said {rank}", RANK=rank, LOCAL_RANK=rank, **place)
        for rank in ("0", "1")
    ]


def finish_all(processes: list[BaseProcess], output_dir: Path) -> None:
    for rank, process in enumerate(processes):
        warm.finish(process, output_dir / f"said {rank}", LIMIT)


def test_two_processes_train_as_one_does(whole: Path, tmp_path: Path) -> None:
    finish_all([warm.start(command(tmp_path)[2:], tmp_path / "said 0")], tmp_path)
    for ours, theirs in zip(steps(tmp_path), steps(whole), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-4)


def wait_for_step_2(output_dir: Path, runs: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not list(output_dir.glob("artifacts/train/*.partial/checkpoints/step-00000002/selection.json")):
        assert runs(), "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_was_killed_goes_on_to_the_same_end(whole: Path, tmp_path: Path) -> None:
    both = two_started(tmp_path)
    wait_for_step_2(tmp_path, lambda: all(process.is_alive() for process in both))
    for process in both:
        process.kill()
        process.join()
    assert list(tmp_path.glob("artifacts/train/*.partial"))
    finish_all(two_started(tmp_path), tmp_path)
    assert steps(tmp_path) == steps(whole)


@pytest.mark.cluster  # a minute: of shards, tests/backend stops and goes on in CI
def test_what_processes_with_a_shard_each_began_the_option_goes_on_with(whole: Path, tmp_path: Path) -> None:
    begun = launched(command(tmp_path), **SHARDED)
    wait_for_step_2(tmp_path, lambda: begun.poll() is None)
    kill(begun)
    assert list(tmp_path.glob("artifacts/train/*.partial/checkpoints/*/shards/*"))
    option = [sys.executable, *command(tmp_path), "--accelerate-config", "fsdp2"]
    own = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(option, capture_output=True, text=True, env=own, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "ppo"
    for ours, theirs in zip(steps(whole), steps(tmp_path), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-4)


@pytest.mark.cluster  # a minute, and Open MPI is not everywhere
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no Open MPI here: apt-get install openmpi-bin")
def test_processes_that_open_mpi_starts_train_as_torchruns_do(whole: Path, tmp_path: Path) -> None:
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]
    own = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = subprocess.run([*start, *command(tmp_path)], capture_output=True, text=True, env=own, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "ppo", "one of them speaks"
    for ours, theirs in zip(steps(whole), steps(tmp_path), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-4)
