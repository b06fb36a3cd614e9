"""The toy recipe, small, as a user runs it: from start to report, through kills, and on to a second method."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import warm
from loaded import afarm_loads

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("end_to_end")]

SMALL = {
    # Each process draws all instructions of the data set anew.
    "toy.sft": 200,
    "toy.preference": 400,
    "toy.unlabeled": 100,
    "toy.validation": 32,
    "toy.evaluation": 64,
    "rows.sft": 96,
    "rows.preference": 300,
    "rows.unlabeled": 64,
    "rows.validation": 16,
    "rows.evaluation": 32,
    "sft.num_train_epochs": 2,
    "sft.save_steps": 2,
    "bradley_terry.num_train_epochs": 1,
    "ppo.total_steps": 4,
    "ppo.rollout_batch_size": 16,
    "ppo.mini_batch_size": 8,
    "ppo.save_steps": 2,
    "ppo.checkpoint": "best",
    "best_of_n.n": 4,
    # Few in flight, so that a kill can hit between transactions; it does not change the result.
    "max_concurrency": 4,
}


def command(output_dir: Path, *arguments: str) -> list[str]:
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    return ["run", "--json", "--output-dir", str(output_dir), *settings, *arguments]


def afarm(arguments: list[str], said: Path) -> str:
    """What a command says that goes well, in a process that has its imports."""
    return warm.finish(warm.start(arguments, said), said)


def run(output_dir: Path, *arguments: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(afarm(command(output_dir, *arguments), output_dir / "said"))
    return record


def run_and_kill(output_dir: Path, when: Callable[[Path], bool]) -> None:
    """Start the command and kill it, with no chance to clean up, as soon as `when(output_dir)` holds."""
    code, _ = run_and_stop(output_dir, when, signal.SIGKILL)
    assert code == -signal.SIGKILL, "it ended before it could be killed"


def run_and_interrupt(output_dir: Path, when: Callable[[Path], bool]) -> None:
    """Start the command and press Ctrl-C as soon as `when(output_dir)` holds: it says how to go on."""
    code, said = run_and_stop(output_dir, when, signal.SIGINT)
    assert code == 130, said
    assert "run the same command to go on" in said
    assert "Traceback" not in said


def run_and_stop(output_dir: Path, when: Callable[[Path], bool], with_signal: signal.Signals) -> tuple[int | None, str]:
    """Start the command and send it a signal as soon as `when(output_dir)` holds: its exit code and its stderr."""
    process = warm.start(command(output_dir), output_dir / "said")
    assert process.pid is not None
    try:
        while process.is_alive() and not when(output_dir):
            time.sleep(0.001)
        with suppress(ProcessLookupError):
            os.kill(process.pid, with_signal)
        process.join(300)
    finally:
        process.kill()
        process.join()
    return process.exitcode, (output_dir / "said" / "stderr").read_text()


def finished(output_dir: Path, stage: str) -> list[Path]:
    return [p.parent for p in (output_dir / "artifacts" / stage).glob("[!.]*/artifact.json") if p.parent.suffix == ""]


def in_training(output_dir: Path) -> bool:
    return any((output_dir / "artifacts" / "train").glob("*.partial/checkpoints/step-*"))


def in_annotation(output_dir: Path) -> bool:
    return any((output_dir / "artifacts" / "annotate").glob("*.partial")) and answers(output_dir) >= 10


def in_sampling(output_dir: Path) -> bool:
    return any((output_dir / "artifacts" / "sample").glob("*.partial/outputs.jsonl"))


def in_fitting(output_dir: Path) -> bool:
    return any((output_dir / "artifacts" / "fit-reward").glob("*.partial/metrics.jsonl"))


def answers(output_dir: Path) -> int:
    with suppress(sqlite3.Error), sqlite3.connect(f"file:{output_dir}/ledger.sqlite?mode=ro", uri=True) as ledger:
        return int(ledger.execute("SELECT COUNT(*) FROM completions").fetchone()[0])
    return 0


def contents(record: dict[str, Any], output_dir: Path) -> dict[str, str]:
    """What every stage of a run made: the digest of all of its files."""
    found = {}
    for stage in record["stages"]:
        meta = json.loads((output_dir / stage["artifact"] / "artifact.json").read_text())
        found[stage["stage"]] = f"{meta['key']} {meta['content']}"
    return found


def file_of(record: dict[str, Any], output_dir: Path, stage: str, name: str) -> bytes:
    (artifact,) = [s["artifact"] for s in record["stages"] if s["stage"] == stage]
    return (output_dir / artifact / name).read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """An uninterrupted run, in a process as a user starts it, and its directory."""
    output_dir = tmp_path_factory.mktemp("whole")
    start = [sys.executable, "-m", "afarm", *command(output_dir)]
    done = subprocess.run(start, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), output_dir


def test_the_toy_recipe_runs_to_a_report(whole: tuple[dict[str, Any], Path]) -> None:
    record, output_dir = whole
    assert record["headline"]["win_rate"] is not None
    assert 0 <= record["headline"]["win_rate"] <= 100
    kept = record["checkpoint"]
    assert kept["best/step"] in (2, 4)
    assert kept["best/win_rate"] >= kept["last/win_rate"]
    assert record["headline"]["kl"] == kept["best/kl"]
    assert record["results"][0]["metrics"]["n_total"] == 32
    assert {r["evaluator"] for r in record["results"]} == {"win_rate", "reward", "gold"}
    assert record["judges"][0]["simulated"] is True
    assert Path(record["report"]).stat().st_size > 10_000
    assert record["spend"]["calls"] == answers(output_dir)
    steps = [json.loads(line) for line in (Path(record["report"]).parent / "metrics.jsonl").open()]
    assert list(dict.fromkeys(row["step"] for row in steps if row["stage"] == "train")) == [1, 2, 3, 4]


def test_an_exported_run_answers_by_its_card_and_trains_trl(
    whole: tuple[dict[str, Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, output_dir = whole
    arguments = ["export", record["name"], str(tmp_path / "policy"), "--output-dir", str(output_dir)]
    afarm(arguments, tmp_path / "said")
    card = (tmp_path / "policy" / "README.md").read_text()
    assert f"{record['headline']['win_rate']:.1f} %" in card
    assert "simulated by a formula" in card
    monkeypatch.chdir(tmp_path / "policy")
    names: dict[str, Any] = {}
    exec(card.partition("```python\n")[2].partition("```")[0], names)
    assert isinstance(names["answer"].tolist(), list)

    from datasets import load_dataset
    from trl.data_utils import maybe_apply_chat_template

    table = load_dataset("json", data_files="preferences.jsonl", split="train", cache_dir=str(tmp_path))
    reasons = {"chosen_finish_reason", "rejected_finish_reason"}  # in every row or in none
    assert {*table.column_names} - reasons == {"prompt", "chosen", "rejected"}
    row = maybe_apply_chat_template(table[0], names["tokenizer"])
    turn = table[0]["prompt"][-1]["content"]
    ids = names["tokenizer"](row["prompt"], add_special_tokens=False).input_ids
    assert (
        ids
        == names["tokenizer"]
        .apply_chat_template([{"role": "user", "content": turn}], add_generation_prompt=True, return_dict=True)
        .input_ids
    )
    assert row["chosen"].strip().startswith(table[0]["chosen"][0]["content"])


def test_killed_and_interrupted_in_five_stages_it_ends_as_if_nothing_had_happened(
    whole: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    """Killed in SFT, in the annotation and in PPO, interrupted while it samples and while it fits the reward model."""
    expected, elsewhere = whole
    run_and_kill(tmp_path, in_training)
    assert finished(tmp_path, "train") == []
    run_and_interrupt(tmp_path, in_sampling)
    assert finished(tmp_path, "sample") == []
    (sft,) = finished(tmp_path, "train")
    made = (sft / "artifact.json").read_bytes()
    run_and_kill(tmp_path, in_annotation)
    assert finished(tmp_path, "annotate") == []
    assert answers(tmp_path) > 0
    run_and_interrupt(tmp_path, in_fitting)
    assert finished(tmp_path, "fit-reward") == []
    assert len(finished(tmp_path, "annotate")) == 1
    run_and_kill(tmp_path, in_training)
    assert finished(tmp_path, "train") == [sft]

    record = run(tmp_path)
    assert {s["stage"]: s["reused"] for s in record["stages"]} == {
        **{s["stage"]: True for s in record["stages"]},
        **dict.fromkeys(("train ppo", "outputs ppo", "outputs sft", "evaluate ppo against sft"), False),
    }
    assert (sft / "artifact.json").read_bytes() == made, "what is finished is not done again"
    assert contents(record, tmp_path) == contents(expected, elsewhere)
    assert record["headline"] == expected["headline"]
    assert answers(tmp_path) == answers(elsewhere)
    for stage, name in (
        ("annotate", "preferences.jsonl"),
        ("outputs ppo", "outputs.jsonl"),
        ("train ppo", "metrics.jsonl"),
        ("evaluate ppo against sft", "judgements.jsonl"),
    ):
        assert file_of(record, tmp_path, stage, name) == file_of(expected, elsewhere, stage, name), stage
    weights = "model/model.safetensors"
    assert file_of(record, tmp_path, "train ppo", weights) == file_of(expected, elsewhere, "train ppo", weights)


def test_a_second_method_reuses_sft_samples_preferences_and_reward_model(whole: tuple[dict[str, Any], Path]) -> None:
    _, output_dir = whole
    record = run(output_dir, "--method", "best_of_n")
    reused = {s["stage"]: s["reused"] for s in record["stages"]}
    assert all(reused[stage] for stage in ("base", "sft", "sample", "annotate", "fit-reward", "outputs sft"))
    assert not reused["train best_of_n"]
    references = [r["reference"] for r in record["results"] if r["evaluator"] == "win_rate"]
    assert references == ["sft", "sft at T=1"]


def test_a_wholly_reused_run_loads_nothing_that_trains(whole: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    first, output_dir = whole
    ended, said, loaded = afarm_loads(tmp_path, *command(output_dir))
    assert (ended, loaded) == (0, []), said
    again = json.loads((output_dir / "runs" / first["name"] / "run.json").read_text())
    assert {**again, "report": first["report"]} == first, "when, how and why it was made stays"
    assert again["machine"] == first["machine"]
