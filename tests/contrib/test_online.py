"""afarm-online: online DPO by the command line: refused, in two processes, killed."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from functools import partial
from importlib import import_module, metadata
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import warm
from ports import free_port

from afarm.cli import main

pytestmark = pytest.mark.xdist_group("end_to_end")

PACKAGE = "afarm-online"
SMALL = {
    "toy": "{sft: 48, preference: 16, unlabeled: 16, validation: 8, evaluation: 8}",
    "rows": "{sft: 48, preference: 8, unlabeled: 16, validation: 8, evaluation: 8}",
    "sft.num_train_epochs": 1,
    "evaluate.max_new_tokens": 8,
    "online_dpo.total_steps": 6,
    "online_dpo.rollout_batch_size": 16,
    "online_dpo.mini_batch_size": 4,
    "online_dpo.response_length": 8,
    "online_dpo.save_steps": 2,
}
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
RUN = ["run", "--method", "online_dpo", "--reward-model", "gold", *SETTINGS, "--json"]


# ------------------------------------------------------------------------------------------------- what one is told

THREE = ["--set", "online_dpo.num_generations=3", "--set", "online_dpo.rollout_batch_size=258"]
PAID = ["--judge", "openai:gpt-5.4-mini", "--allow-degraded"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--method", "nash_md", "--set", "nash_md.labels=rating", *PAID],
            "nothing caps what that costs: add --budget",
        ),
        (["--method", "xpo", "--set", "judge=null"], "judge"),
        (["--method", "online_dpo", *THREE], "do not make pairs: --set online_dpo.num_generations=4"),
    ],
)
def test_what_cannot_be_labelled_or_capped_stops_the_command_before_anything_is_made(
    arguments: list[str],
    said: str,
    on_the_path: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with pytest.raises(SystemExit, match=r"^[12]$"):
        main(["run", *arguments])
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not list(tmp_path.glob("afarm-runs/artifacts/*"))


def test_without_the_package_the_error_says_what_brings_the_method(capsys: pytest.CaptureFixture[str]) -> None:
    if "afarm-online" in {distribution.name for distribution in metadata.distributions()}:
        pytest.skip("it is installed here")
    with pytest.raises(SystemExit, match=r"^[12]$"):
        main(["run", "--method", "nash_md", "--dry-run"])
    assert "'afarm-online' brings it" in " ".join(capsys.readouterr().err.replace("│", " ").split())


# ------------------------------------------------------------------------------------------------------- processes


def run_with_the_package(site: list[str], arguments: list[str]) -> None:
    sys.path[:0] = site
    import_module("afarm_online")
    warm.run_afarm(arguments)


def start(site: list[str], output_dir: Path) -> list[BaseProcess]:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    act = partial(run_with_the_package, site, [*RUN, "--output-dir", str(output_dir)])
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), **place} for rank in range(2)]
    return [warm.begin(act, output_dir / f"said {rank}", **own) for rank, own in enumerate(ranks)]


def finish(processes: list[BaseProcess], output_dir: Path) -> None:
    for rank, process in enumerate(processes):
        warm.finish(process, output_dir / f"said {rank}")


def trained(output_dir: Path) -> tuple[list[dict[str, float]], bytes, list[tuple[str]]]:
    """What it logged, its weights, and the keys of all answers that were paid for."""
    [metrics] = [path for path in output_dir.glob("artifacts/train/*/metrics.jsonl") if "pairs/" in path.read_text()]
    [weights] = metrics.parent.rglob("*.safetensors")
    with sqlite3.connect(output_dir / "ledger.sqlite") as ledger:
        answers = ledger.execute("SELECT key FROM completions ORDER BY key").fetchall()
    return [json.loads(line) for line in metrics.read_text().splitlines()], weights.read_bytes(), answers


@pytest.mark.slow
def test_in_two_processes_it_is_killed_and_goes_on_to_the_same_weights_and_answers(
    site: list[str], tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(site, whole), whole)
    both = start(site, killed)
    while not list(killed.glob("artifacts/train/*.partial/checkpoints/step-00000002/*")):
        assert all(process.is_alive() for process in both), "it ended before it could be killed"
        time.sleep(0.02)
    for process in both:
        process.kill()
        process.join()
    assert list(killed.glob("artifacts/train/*.partial"))
    finish(start(site, killed), killed)
    (lines, weights, answers), again = trained(whole), trained(killed)
    assert sum(line.get("pairs/decided", 0) for line in lines) > 20
    assert again == (lines, weights, answers)
    assert len(answers) > 20
