"""The pipeline runs with methods, judges, annotators, evaluators and the toy world alone: no other plugin is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PIPELINE = [
    *("sft", "feedme", "reward_conditioning", "dpo", "best_of_n", "expert_iteration", "ppo", "quark", "reward_model"),
    *("judges", "annotators", "evaluators", "toy"),
]

ALONE = f"""
import importlib.metadata, sys
every = importlib.metadata.entry_points
def entry_points(**wanted):
    found = every(**wanted)
    return [p for p in found if p.name in {PIPELINE!r}] if wanted.get("group") == "afarm" else found
importlib.metadata.entry_points = entry_points
from afarm.cli import main
main(sys.argv[1:])
"""

TINY = [
    *("rows={sft: 16, preference: 24, unlabeled: 8, validation: 8, evaluation: 8}", "sft.num_train_epochs=1"),
    *("bradley_terry.num_train_epochs=1", "sample.max_new_tokens=8", "evaluate.max_new_tokens=8"),
    "ppo={total_steps: 1, warmup_steps: 0, rollout_batch_size: 8, mini_batch_size: 8, response_length: 8}",
]


def run_alone(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ALONE, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_the_demo_runs_with_the_parts_of_the_pipeline_alone(tmp_path: Path) -> None:
    settings = [word for setting in TINY for word in ("--set", setting)]
    done = run_alone(tmp_path, "run", "--method", "ppo", "--annotator", "pool", "--json", *settings)
    assert done.returncode == 0, done.stderr
    assert 0 <= json.loads(done.stdout)["results"][0]["metrics"]["win_rate"] <= 100
    [report] = tmp_path.glob("afarm-runs/runs/*/report.html")
    assert report.stat().st_size > 0


def test_commands_of_plugins_that_are_not_there_are_not_listed(tmp_path: Path) -> None:
    shown = run_alone(tmp_path, "--help")
    assert shown.returncode == 0
    assert "leaderboard" in shown.stdout
    assert not {"view", "study", "tune", "bundle", "drift", "memory", "ledger-copy"} & set(shown.stdout.split())
    missing = run_alone(tmp_path, "view")
    assert missing.returncode == 2
    assert "No such command 'view'" in missing.stderr
