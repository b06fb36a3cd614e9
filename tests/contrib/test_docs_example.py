"""What docs/guides/write-a-plugin.md shows is run as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from places import DOCS

from afarm.cli import main
from afarm.core.hooks import GROUP
from afarm.core.plugins import discover
from afarm.judging import JudgingConfig
from afarm.testing import check_annotator, check_evaluator, check_method, check_study, tiny_config

PAGE = DOCS / "guides" / "write-a-plugin.md"

ROWS = "rows={sft: 16, preference: 16, unlabeled: 8, validation: 8, evaluation: 8}"


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import from, with every file that the page shows: the code blocks that open with `# name`."""
    blocks = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.M)
    assert len(blocks) >= 5
    for name, text in blocks:
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name, _ in blocks:
        sys.modules.pop(Path(name).stem, None)


def python(*arguments: str, where: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(where)}
    done = subprocess.run([sys.executable, *arguments], cwd=where, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names_registered(module: str) -> list[str]:
    found = discover([EntryPoint(module, module, GROUP)])
    assert not found.broken, found.broken
    return [component.name for component in found.registry]


def test_the_smallest_plugin_is_found_by_its_entry_point(shown: Path) -> None:
    declared = tomllib.loads((shown / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared["project"]["entry-points"][GROUP] == {"concise": "concise"}
    assert names_registered("concise") == ["concise"]


def test_the_test_of_the_smallest_plugin_passes(shown: Path) -> None:
    assert "1 passed" in python("-m", "pytest", "-q", "test_concise.py", where=shown)


def test_the_settings_are_settings(shown: Path) -> None:
    config = import_module("settings_example").ConciseConfig(margin=3, batch_size=1)
    assert config.result_fields() == {"margin": 3}


def shortened(method: Any) -> Any:
    """The same with samples of few tokens."""
    method.decoding_of_samples = replace(method.decoding_of_samples, max_new_tokens=6)
    return method


def test_the_method_keeps_a_methods_promises(shown: Path) -> None:
    check_method(shortened(import_module("self_imitation").SelfImitation()), shown / "method")
    assert names_registered("self_imitation") == ["self_imitation"]


def test_the_loop_keeps_a_methods_promises_also_in_two_processes(shown: Path) -> None:
    loop = import_module("reinforce")
    method = loop.Reinforce(tiny_config(loop.ReinforceConfig, total_steps=4))
    check_method(method, shown / "method", processes=2)


def test_the_method_with_a_judge_in_the_loop_keeps_a_methods_promises(shown: Path) -> None:
    check_method(shortened(import_module("judged_imitation").JudgedImitation()), shown / "method")


def test_the_evaluator_keeps_an_evaluators_promises(shown: Path) -> None:
    check_evaluator(import_module("terse").Terse())
    assert names_registered("terse") == ["terse"]


def declare(shown: Path, *names: str) -> None:
    """Make the folder an installed package with an entry point for each of the modules."""
    metadata = shown / "shown-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: shown\nVersion: 1.0\n")
    points = "".join(f"{name} = {name}\n" for name in names)
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")


def test_the_study_and_the_command_are_on_the_command_line(shown: Path) -> None:
    declare(shown, "votes")
    check_study(import_module("votes").Votes())
    assert "\n  votes " in python("-m", "afarm", "study", "--help", where=shown)
    run = shown / "afarm-runs" / "runs" / "a-run"
    run.mkdir(parents=True)
    figures = {"system": "ppo", "reference": "sft", "evaluator": "win_rate", "metrics": {"win_rate": 61.0}}
    (run / "run.json").write_text(json.dumps({"name": "a-run", "results": [figures]}))
    [row] = json.loads(python("-m", "afarm", "wins", "--json", where=shown))
    assert (row["system"], row["win_rate"]) == ("ppo", 61.0)
    assert "61.0" in python("-m", "afarm", "wins", where=shown)


def test_all_of_them_are_planned_by_the_command(shown: Path, capsys: pytest.CaptureFixture[str]) -> None:
    declare(shown, "self_imitation", "judged_imitation", "reinforce", "impatient", "stars", "terse")
    rated = ["--set", "evaluate.annotator=stars"]
    chosen = ["--method", "self_imitation", "--annotator", "impatient", "--judge", "offline", *rated]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["run", *chosen, "--set", "evaluate.evaluators=[win_rate,terse,pointwise]", "--set", ROWS, "--dry-run"])
    assert "train self_imitation" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["run", "--method", "judged_imitation", "--set", ROWS, "--dry-run", "--json"])
    stages = {stage["label"]: stage for stage in json.loads(capsys.readouterr().out)["stages"]}
    assert sum(judge["calls"] for judge in stages["train judged_imitation"]["judges"]) == 8 + 8, "ranked and rated"


def test_the_annotator_that_asks_keeps_an_annotators_promises(shown: Path) -> None:
    check_annotator(import_module("impatient").Impatient(JudgingConfig(both_orders=True, votes=3)))
    assert names_registered("impatient") == ["impatient"]


def test_the_annotator_that_rates_keeps_an_annotators_promises(shown: Path) -> None:
    rater = import_module("stars").Stars()
    check_annotator(rater)
    check_annotator(rater, prefers=[("a good answer", "a bad one")])
    assert names_registered("stars") == ["stars"]
    assert rater.rates
