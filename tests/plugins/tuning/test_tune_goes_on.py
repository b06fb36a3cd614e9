"""`afarm tune` that ends in the middle, by SIGKILL or for want of money: the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from light_plugin import RAN
from places import SUPPORT
from said import Afarm
from waiting import wait_until

TUNE = ["tune", "--recipe", "light.yaml", "--methods", "nudge", "--seeds", "1001"]
SEARCH = [*TUNE, "--space", "nudge.skill=0.05:0.9", "--trials", "5", "--json"]
KEPT = ("values", "win_rate", "standard_error", "figures", "excess", "error")

TRAINS_FOR_EVER_AT = """
import sys, time
from pathlib import Path
from light_farm import LightBackend
from light_plugin import Teach, WordPolicy
from afarm.cli import main
from afarm.experiment.components import Components

Components.backend = property(lambda self: LightBackend(WordPolicy))
train, at = Teach.train, float(sys.argv.pop(1))

def train_for_ever(self, inputs, context):
    if self.config.skill != at:
        return train(self, inputs, context)
    context.checkpoints.save(1, lambda directory: (directory / "x").write_text("state") and None)
    Path("in the middle").touch()
    time.sleep(600)

Teach.train = train_for_ever
main(sys.argv[1:])
"""


def kept(trials: list[dict[str, Any]]) -> list[list[Any]]:
    return [[trial[name] for name in KEPT] for trial in trials]


def stored() -> list[dict[str, Any]]:
    """The trials that a search has written."""
    [path] = Path("afarm-runs/tunings").glob("*/nudge-*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_process_killed_in_a_trial_is_gone_on_with_by_the_same_command(afarm: Afarm, light_site: Path) -> None:
    whole = afarm(*SEARCH, "--output-dir", "whole").json["trials"]["nudge"]
    at = whole[2]["values"]["skill"]
    path = os.pathsep.join((str(SUPPORT), str(light_site)))
    command = [sys.executable, "-c", TRAINS_FOR_EVER_AT, str(at), *SEARCH]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=-1, stderr=-1, text=True) as process:
        try:
            wait_until(lambda: Path("in the middle").exists() or process.poll() is not None)
        finally:
            process.kill()
        _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    assert kept(stored()) == kept(whole[:2])
    before = len(RAN)
    again = afarm(*SEARCH)
    assert again.code == 0, again.err
    assert kept(again.json["trials"]["nudge"]) == kept(whole)
    steps = [line for line in RAN[before:] if line.startswith("Nudge")]
    killed = ["Nudge step 2", "Nudge step 3"]  # its first step was there
    assert steps == [*killed, *(f"Nudge step {step}" for _ in range(2) for step in (1, 2, 3))]


def test_a_search_whose_budget_ends_goes_on_with_more_and_buys_no_answer_again(afarm: Afarm) -> None:
    whole = afarm(*SEARCH, "--output-dir", "whole").json["trials"]["nudge"]
    price, answers, _ = spent("whole")
    said = afarm(*SEARCH, "--budget", f"{0.7 * price:.4f}")
    assert said.code == 1
    assert "budget" in said.err.splitlines()[-1]
    there = len(stored())
    assert 0 < there < len(whole), "it stopped in the middle"
    assert spent("afarm-runs")[0] <= 0.7 * price
    before = len(RAN)
    again = afarm(*SEARCH, "--budget", f"{2 * price:.4f}")
    assert again.code == 0, again.err
    assert kept(again.json["trials"]["nudge"]) == kept(whole)
    assert spent("afarm-runs") == (price, answers, answers), "each answer once, and none that one search would not buy"
    trained = sum(line == "Nudge step 1" for line in RAN[before:])
    assert trained in (len(whole) - there - 1, len(whole) - there), "what the budget stopped may have been trained"


def spent(output_dir: str) -> tuple[float, int, int]:
    """Dollars, answers and different answers in a ledger."""
    with sqlite3.connect(f"{output_dir}/ledger.sqlite") as ledger:
        found = ledger.execute("select sum(price), count(*), count(distinct key) from completions")
        price, count, keys = found.fetchone()
    return round(price, 6), count, keys
