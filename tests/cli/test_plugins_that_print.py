"""Plugins that print, and metrics that are not finite: with --json stdout is one JSON document all the same."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import light_plugin
import pytest
from said import Afarm

LIGHT = ("--recipe", "light.yaml")

NOISE = "noise of a plugin"

PRINTS_AT_IMPORT = f"""
import os, subprocess, sys
from typing import Annotated
import typer
from afarm import hookimpl

print("{NOISE} at import")
subprocess.run([sys.executable, "-c", "print('{NOISE} of a process')"], check=True)

@hookimpl
def register_commands(app):
    from afarm.cli.options import print_json

    @app.command("noise")
    def noise(as_json: Annotated[bool, typer.Option("--json")] = False):
        print("{NOISE} of a command")
        os.write(1, b"{NOISE} past Python")
        print_json({{"figure": float("inf"), "text": "é \\ud800"}}) if as_json else print("shown")
"""


def noisy(function: Any) -> Any:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        print(NOISE)
        return function(*arguments, **named)

    return wrapped


def test_what_plugins_print_in_a_run_does_not_reach_its_json(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in (
        (light_plugin.Numbers, "load"),
        (light_plugin.CountingJudge, "complete"),
        (light_plugin.WordPolicy, "sample"),
        (light_plugin.Teach, "train"),
        (light_plugin.WordReward, "score"),
    ):
        monkeypatch.setattr(owner, name, noisy(getattr(owner, name)))
    said = afarm("run", *LIGHT, "--json")
    assert (said.code, said.json["status"]) == (0, "finished")
    assert NOISE in said.err
    said = afarm("compare", *LIGHT, "--methods", "nudge,direct", "--json")
    assert len(said.json["standings"]) == 2
    assert NOISE in afarm("train", *LIGHT, "--seed", "4").out, "without --json it is printed where it was"


@pytest.mark.parametrize(("encoding", "commands"), [("utf-8", ["noise"]), ("ascii", ["noise", "plugins"])])
def test_what_processes_and_libraries_print_does_not_reach_it_either(
    tmp_path: Path, encoding: str, commands: list[str]
) -> None:
    site = tmp_path / "site"
    (site / "noise-1.0.dist-info").mkdir(parents=True)
    (site / "noise-1.0.dist-info" / "METADATA").write_text("Name: noise\nVersion: 1.0\n")
    (site / "noise-1.0.dist-info" / "entry_points.txt").write_text("[afarm]\nnoise = noise_plugin\n")
    (site / "noise_plugin.py").write_text(PRINTS_AT_IMPORT)
    paths = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    for command in commands:
        told = subprocess.run(
            [sys.executable, "-m", "afarm", command, "--json"],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": encoding},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert told.stdout, told.stderr
        json.loads(told.stdout)
        assert f"{NOISE} of a process" in told.stderr


def test_metrics_that_are_not_finite_are_kept_by_name_and_told(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def diverge(self: light_plugin.Teach, inputs: Any, context: Any) -> light_plugin.WordPolicy:
        context.log_metrics(1, {"loss": 0.5, "objective/kl": 0.25})
        context.log_metrics(2, {"loss": math.nan, "objective/kl": math.inf, "grad_norm": -math.inf})
        assert isinstance(inputs.start, light_plugin.WordPolicy)
        return light_plugin.WordPolicy(inputs.start.skill)

    monkeypatch.setattr(light_plugin.Teach, "train", diverge)
    said = afarm("run", *LIGHT, "--json")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    record = json.loads(said.out, parse_constant=refuse)
    directory = Path(record["report"]).parent
    stage = next(stage for stage in record["stages"] if stage["stage"] == "train nudge")
    last = {"step": 2, "loss": "NaN", "objective/kl": "Infinity", "grad_norm": "-Infinity"}
    assert stage["summary"] == last
    assert json.loads((directory / "run.json").read_text(), parse_constant=refuse)["stages"] == record["stages"]
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [row for row in logged if row["stage"] == "train"] == [
        {"stage": "train", "step": 1, "loss": 0.5, "objective/kl": 0.25},
        {"stage": "train", **last},
    ]
    assert math.isnan(float(last["loss"])), "Python reads the names back"
    assert record["headline"]["kl"] is None
    told = "train nudge: loss, objective/kl, grad_norm are not finite at its end: see "
    assert told in " ".join(said.err.replace("│", " ").split())
    assert told in " ".join((directory / "report.html").read_text().split())
    assert afarm("run", *LIGHT, "--json").json["stages"][-1]["reused"]


def test_a_metric_that_is_no_number_is_its_plugins_fault(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def log_text(self: light_plugin.Teach, inputs: Any, context: Any) -> None:
        context.log_metrics(1, {"loss": "low"})

    monkeypatch.setattr(light_plugin.Teach, "train", log_text)
    said = afarm("run", *LIGHT)
    assert said.code == 1
    assert "method 'nudge' of plugin" in said.err
    assert "log_metrics takes numbers: metric 'loss' is 'low'" in said.err
