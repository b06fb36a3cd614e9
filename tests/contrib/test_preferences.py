"""afarm-preferences: its methods by the command line, in two processes, killed and gone on with."""

from __future__ import annotations

import json
import shutil
import sys
import time
from functools import partial
from importlib import import_module, metadata
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import warm
import yaml
from ports import free_port
from safetensors.torch import load_file

from afarm.cli import main
from afarm.core.plugins import discover

pytestmark = pytest.mark.xdist_group("end_to_end")

PACKAGE = "afarm-preferences"
SMALL: dict[str, Any] = {
    "toy": "{sft: 48, preference: 24, unlabeled: 8, validation: 8, evaluation: 8}",
    "rows": "{sft: 48, preference: 24, unlabeled: 8, validation: 8, evaluation: 8}",
    "sft.num_train_epochs": 1,
    "sample.max_new_tokens": 8,
    "evaluate.max_new_tokens": 8,
    **{f"{method}.per_device_train_batch_size": 4 for method in ("kto", "mpo")},
    **{f"{method}.gradient_accumulation_steps": 2 for method in ("kto", "mpo")},
}
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
COLUMNS = ("kl", "loss/bco_pair")
"""A metric of KTO's, and one of MPO's."""
COMPARE = ["compare", "--methods", "kto,mpo", *SETTINGS, "--json"]


# ------------------------------------------------------------------------------------------------- what one is told


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["mpo.loss_type=[sigmoid, sfd]"], "unknown loss 'sfd' in loss_type. Did you mean 'sft'"),
        (["mpo.loss_weights=[0, 0, 0]"], "must not be negative, and not all 0"),
        (["simpo.reference=start"], "simpo looks at no reference: leave it at auto"),
        (["kto.undesirable_weight=0"], "greater than 0"),
    ],
)
def test_settings_that_make_no_loss_stop_the_command_before_anything_is_made(
    settings: list[str], said: str, on_the_path: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    method = settings[0].partition(".")[0]
    with pytest.raises(SystemExit, match=r"^[12]$"):
        main(["run", "--method", method, *(word for setting in settings for word in ("--set", setting))])
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not list(tmp_path.iterdir())


def test_without_the_package_the_error_says_what_brings_the_method(capsys: pytest.CaptureFixture[str]) -> None:
    installed = {distribution.name for distribution in metadata.distributions()}
    if "afarm-preferences" in installed:
        pytest.skip("it is installed here")
    with pytest.raises(SystemExit, match=r"^[12]$"):
        main(["run", "--method", "kto", "--dry-run"])
    assert "'afarm-preferences' brings it" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_method_learns_from_the_users_own_pairs(
    on_the_path: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    toy = discover().get("datasets", "toy")
    tasks = [row.instruction for row in toy.load()(toy.settings(yaml.safe_load(SMALL["toy"]))).load("preference")]
    labels = {"output_1": "it is big.", "output_2": "a a a", "preference": 1}
    rows = [{"instruction": task.instruction, "input": task.input, **labels} for task in tasks]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["orpo", "--preferences", "own.jsonl", "--dry-run", *SETTINGS])
    assert "train orpo" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------- processes


def run_with_the_package(site: list[str], arguments: list[str]) -> None:
    sys.path[:0] = site
    import_module("afarm_preferences")
    warm.run_afarm(arguments)


def start(site: list[str], output_dir: Path, processes: int) -> list[BaseProcess]:
    place = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    act = partial(run_with_the_package, site, [*COMPARE, "--output-dir", str(output_dir)])
    ranks = [
        {"RANK": str(rank), "LOCAL_RANK": str(rank), **place} if processes > 1 else {} for rank in range(processes)
    ]
    return [warm.begin(act, output_dir / f"said {rank}", **own) for rank, own in enumerate(ranks)]


def finish(processes: list[BaseProcess], output_dir: Path) -> None:
    for rank, process in enumerate(processes):
        warm.finish(process, output_dir / f"said {rank}")


def trained(output_dir: Path, column: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What that method logged, and the weights that it ended with."""
    metrics = metrics_of(output_dir, column)
    [weights] = metrics.parent.rglob("*.safetensors")
    return [json.loads(line) for line in metrics.read_text().splitlines()], load_file(weights)


def metrics_of(output_dir: Path, column: str) -> Path:
    """The log of the method that has this metric in its first line."""
    [found] = [
        path
        for path in output_dir.glob("artifacts/train/*/metrics.jsonl")
        if column in json.loads(path.read_text().partition("\n")[0])
    ]
    return found


@pytest.mark.slow
def test_two_processes_learn_as_one_does_though_they_were_killed(site: list[str], tmp_path: Path) -> None:
    """From what one process has made before: it is the methods that are trained again."""
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    finish(start(site, alone, 1), alone)
    shutil.copytree(alone, killed)
    for column in COLUMNS:
        shutil.rmtree(metrics_of(killed, column).parent)
    both = start(site, killed, 2)
    while not list(killed.glob("artifacts/train/*.partial/checkpoints/step-*2/")):
        assert all(process.is_alive() for process in both), "it ended before it could be killed"
        time.sleep(0.02)
    for process in both:
        process.kill()
        process.join()
    assert list(killed.glob("artifacts/train/*.partial"))
    finish(start(site, killed, 2), killed)
    for column in COLUMNS:
        (lines, weights), (others, other_weights) = (trained(directory, column) for directory in (alone, killed))
        assert len(lines) > 5
        for ours, theirs in zip(lines, others, strict=True):
            assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-3)
        assert all(weight.allclose(other_weights[name], atol=1e-3) for name, weight in weights.items())
