"""afarm-neighbours: its methods by the command line, in two processes, killed and gone on with."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from importlib import import_module, metadata
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import warm
from ports import free_port
from safetensors.torch import load_file

from afarm.cli import main

pytestmark = pytest.mark.xdist_group("end_to_end")

PACKAGE = "afarm-neighbours"
SEGMENTS = {"total_steps": 3, "rollout_batch_size": 8, "mini_batch_size": 8, "save_steps": 1, "response_length": 8}
SMALL = {
    "toy": "{sft: 48, preference: 24, unlabeled: 16, validation: 8, evaluation: 12}",
    "rows": "{sft: 48, preference: 24, unlabeled: 16, validation: 8, evaluation: 12}",
    "start": "model",  # without SFT
    "sample.max_new_tokens": 8,
    "evaluate.max_new_tokens": 8,
    "chain_of_hindsight.per_device_train_batch_size": 8,
    "chain_of_hindsight.save_steps": 1,
    "language_feedback.learn": "best",
    "language_feedback.response_length": 8,
    "language_feedback.num_prompts": 12,
    "language_feedback.per_device_train_batch_size": 4,
    **{f"segment_reinforce.{name}": value for name, value in SEGMENTS.items()},
}
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
METHODS = {"chain_of_hindsight": "loss/good", "language_feedback": "objective/refined", "segment_reinforce": "lr"}
"""Each method, with a metric of its first line."""
COMPARE = ["compare", "--methods", ",".join(METHODS), "--reward-model", "gold", *SETTINGS, "--json"]


# ------------------------------------------------------------------------------------------------- what one is told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--method", "language_feedback", "--judge", "openai:gpt-5.4-mini"], "costs: add --budget"),
        (["run", "--method", "language_feedback", "--set", "language_feedback.refine_text=x"], "must hold $task"),
        (
            ["run", "--method", "chain_of_hindsight", "--set", "chain_of_hindsight.lora.r=4", "--set",
             "chain_of_hindsight.control=token"],
            "use --set chain_of_hindsight.control=text",
        ),
        (["run", "--method", "best_of_n", "--reward-model", "p_true"], "name the model after a colon"),
        (["run", "--method", "best_of_n", "--reward-model", "p_true:./nothing"], "check p_true:./nothing"),
        (["regressions", "nothing"], "nothing"),
    ],
)  # fmt: skip
def test_what_cannot_work_stops_the_command_before_anything_is_made(
    arguments: list[str],
    said: str,
    on_the_path: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "no key")
    with pytest.raises(SystemExit, match=r"^[12]$"):
        main(arguments)
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not list(tmp_path.glob("*/artifacts/*/*"))


@pytest.mark.parametrize("words", [["--method", "chain_of_hindsight"], ["--reward-model", "self_reward"]])
def test_without_the_package_the_error_says_what_brings_it(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if "afarm-neighbours" in {distribution.name for distribution in metadata.distributions()}:
        pytest.skip("it is installed here")
    with pytest.raises(SystemExit, match=r"^[12]$"):
        main(["run", *words, "--dry-run"])
    assert "'afarm-neighbours' brings it" in " ".join(capsys.readouterr().err.replace("│", " ").split())


# ------------------------------------------------------------------------------------------------------- processes


def run_with_the_package(site: list[str], arguments: list[str]) -> None:
    sys.path[:0] = site
    import_module("afarm_neighbours")
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
def test_two_processes_learn_as_one_does_and_what_was_killed_ends_the_same(
    site: list[str], on_the_path: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, whole, killed = tmp_path / "alone", tmp_path / "whole", tmp_path / "killed"
    finish(start(site, alone, 1), alone)
    finish(start(site, whole, 2), whole)
    [process] = start(site, killed, 1)
    while not list(killed.glob("artifacts/train/*.partial/refinements/*.jsonl")):
        assert process.is_alive(), "it ended before it could be killed"
        time.sleep(0.02)
    process.kill()
    process.join()
    assert list(killed.glob("artifacts/train/*.partial"))
    finish(start(site, killed, 1), killed)
    for column in METHODS.values():
        (lines, weights), (others, other_weights), (again, again_weights) = (
            trained(directory, column) for directory in (alone, whole, killed)
        )
        assert len(lines) > 2
        for ours, theirs in zip(lines, others, strict=True):
            assert theirs | {"epoch": 0} == pytest.approx(ours | {"epoch": 0}, rel=1e-3, abs=1e-3)
        assert again == lines
        assert all(weight.allclose(other_weights[name], atol=1e-3) for name, weight in weights.items())
        assert all(weight.equal(again_weights[name]) for name, weight in weights.items())
    require_as_many_answers(alone, whole, killed)
    capsys.readouterr()
    [run] = whole.glob("runs/*chain_of_hindsight*")
    with pytest.raises(SystemExit, match="0"):
        main(["regressions", str(run), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["system"], found["whole"]["count"]) == ("chain_of_hindsight", 12)
    assert "Regressions</h2>" in (run / "report.html").read_text("utf-8")


def require_as_many_answers(*output_dirs: Path) -> None:
    """Require that the ledgers hold as many answers, so that none was bought twice."""
    from afarm.results import open_ledger

    counts = []
    for output_dir in output_dirs:
        with open_ledger(output_dir / "ledger.sqlite") as ledger:
            assert ledger is not None
            counts.append(ledger.read("SELECT annotator, COUNT(*) FROM completions GROUP BY annotator", []))
    assert len({str(sorted(map(tuple, rows))) for rows in counts}) == 1
