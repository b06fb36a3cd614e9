"""afarm-preferences: its methods by the command line, in two processes, killed and gone on with."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module, metadata
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import warm
from places import ROOT
from ports import free_port
from safetensors.torch import load_file

from afarm.cli import main

pytestmark = pytest.mark.xdist_group("end_to_end")

SOURCE = ROOT / "plugins-contrib" / "afarm-preferences" / "src"
SMALL = {
    "toy": "{sft: 48, preference: 24, unlabeled: 8, validation: 8, evaluation: 8}",
    "rows": "{sft: 48, preference: 24, unlabeled: 8, validation: 8, evaluation: 8}",
    "sft.num_train_epochs": 1,
    "sample.max_new_tokens": 8,
    "evaluate.max_new_tokens": 8,
    **{f"{method}.per_device_train_batch_size": 4 for method in ("kto", "mpo")},
    **{f"{method}.gradient_accumulation_steps": 2 for method in ("kto", "mpo")},
}
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
COMPARE = ["compare", "--methods", "kto,mpo", *SETTINGS, "--json"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What Python's path needs for the package to be installed."""
    directory = tmp_path_factory.mktemp("site")
    described = directory / "afarm_preferences-0.1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Name: afarm-preferences\nVersion: 0.1.0\n")
    (described / "entry_points.txt").write_text("[afarm]\npreferences = afarm_preferences\n")
    return [str(directory), str(SOURCE)]


@pytest.fixture
def on_the_path(site: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for directory in site:
        monkeypatch.syspath_prepend(directory)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "afarm_preferences"]:
        del sys.modules[name]


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
    """What the method logged that has this metric in its first line, and the weights that it ended with."""
    for metrics in output_dir.glob("artifacts/train/*/metrics.jsonl"):
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        if column in lines[0]:
            [weights] = metrics.parent.rglob("*.safetensors")
            return lines, load_file(weights)
    raise AssertionError(f"nothing logged {column}")


@pytest.mark.slow
def test_two_processes_learn_as_one_does_and_what_was_killed_ends_the_same(site: list[str], tmp_path: Path) -> None:
    alone, whole, killed = tmp_path / "alone", tmp_path / "whole", tmp_path / "killed"
    finish(start(site, alone, 1), alone)
    finish(start(site, whole, 2), whole)
    both = start(site, killed, 2)
    while not list(killed.glob("artifacts/train/*.partial/checkpoints/step-*2/")) or not kto_trains(killed):
        assert all(process.is_alive() for process in both), "it ended before it could be killed"
        time.sleep(0.02)
    for process in both:
        process.kill()
        process.join()
    assert list(killed.glob("artifacts/train/*.partial"))
    finish(start(site, killed, 2), killed)

    [stored] = alone.glob("artifacts/annotate/*/preferences.jsonl")
    planned = tmp_path / "planned"
    own = ["orpo", "--preferences", str(stored), "--dry-run", *SETTINGS, "--output-dir", str(planned)]
    warm.finish(warm.begin(partial(run_with_the_package, site, own), planned), planned)
    assert "train orpo" in (planned / "stdout").read_text() + (planned / "stderr").read_text()

    for column in ("kl", "loss/bco_pair"):
        (lines, weights), (others, other_weights), (again, again_weights) = (
            trained(directory, column) for directory in (alone, whole, killed)
        )
        assert len(lines) > 5
        for ours, theirs in zip(lines, others, strict=True):
            assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-3)
        assert again == others
        assert all(weight.allclose(other_weights[name], atol=1e-3) for name, weight in weights.items())
        assert all(weight.equal(other_weights[name]) for name, weight in again_weights.items())


def kto_trains(output_dir: Path) -> bool:
    return any('"kl"' in path.read_text() for path in output_dir.glob("artifacts/train/*.partial/metrics.jsonl"))
