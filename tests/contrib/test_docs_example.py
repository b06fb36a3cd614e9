"""What docs/guides/write-a-plugin.md shows is run as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from places import DOCS

from afarm.core.hooks import GROUP

PAGE = DOCS / "guides" / "write-a-plugin.md"

DISCOVER = """
from importlib.metadata import EntryPoint
from afarm.core.plugins import discover
found = discover([EntryPoint({name!r}, {value!r}, {group!r})])
assert not found.broken, found.broken
print(" ".join(c.name for c in found.registry))
"""

TRAIN = """
from pathlib import Path
from afarm.testing import check_method
from self_imitation import SelfImitation
check_method(SelfImitation(), Path("method"))
"""


ASK = """
from afarm.judging import JudgingConfig
from afarm.testing import check_annotator
from impatient import Impatient
check_annotator(Impatient(JudgingConfig(both_orders=True, votes=3)))
"""


EVALUATE = """
from afarm.testing import check_evaluator
from terse import Terse
check_evaluator(Terse())
"""


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """A folder with every file that the page shows: the code blocks that open with `# name`."""
    blocks = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.M)
    assert len(blocks) >= 5
    for name, text in blocks:
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def python(*arguments: str, where: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(where)}
    done = subprocess.run([sys.executable, *arguments], cwd=where, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_smallest_plugin_is_found_by_its_entry_point(shown: Path) -> None:
    declared = tomllib.loads((shown / "pyproject.toml").read_text(encoding="utf-8"))
    [(name, value)] = declared["project"]["entry-points"][GROUP].items()
    assert python("-c", DISCOVER.format(name=name, value=value, group=GROUP), where=shown).split() == ["concise"]


def test_the_test_of_the_smallest_plugin_passes(shown: Path) -> None:
    assert "1 passed" in python("-m", "pytest", "-q", "test_concise.py", where=shown)


def test_the_settings_are_settings(shown: Path) -> None:
    code = "from settings_example import ConciseConfig; print(ConciseConfig(margin=3, batch_size=1).result_fields())"
    assert python("-c", code, where=shown) == "{'margin': 3}\n"


def test_the_method_keeps_a_methods_promises(shown: Path) -> None:
    python("-c", TRAIN, where=shown)
    code = DISCOVER.format(name="self_imitation", value="self_imitation", group=GROUP)
    assert python("-c", code, where=shown).split() == ["self_imitation"]


def test_the_evaluator_keeps_an_evaluators_promises(shown: Path) -> None:
    python("-c", EVALUATE, where=shown)
    code = DISCOVER.format(name="terse", value="terse", group=GROUP)
    assert python("-c", code, where=shown).split() == ["terse"]


def declare(shown: Path, *names: str) -> None:
    """Make the folder an installed package with an entry point for each of the modules."""
    metadata = shown / "shown-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: shown\nVersion: 1.0\n")
    points = "".join(f"{name} = {name}\n" for name in names)
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")


def test_the_study_and_the_command_are_on_the_command_line(shown: Path) -> None:
    declare(shown, "votes")
    python("-c", "from afarm.testing import check_study; from votes import Votes; check_study(Votes())", where=shown)
    assert "\n  votes " in python("-m", "afarm", "study", "--help", where=shown)
    run = shown / "afarm-runs" / "runs" / "a-run"
    run.mkdir(parents=True)
    figures = {"system": "ppo", "reference": "sft", "evaluator": "win_rate", "metrics": {"win_rate": 61.0}}
    (run / "run.json").write_text(json.dumps({"name": "a-run", "results": [figures]}))
    [row] = json.loads(python("-m", "afarm", "wins", "--json", where=shown))
    assert (row["system"], row["win_rate"]) == ("ppo", 61.0)
    assert "61.0" in python("-m", "afarm", "wins", where=shown)


def test_all_of_them_are_planned_by_the_command(shown: Path) -> None:
    declare(shown, "self_imitation", "impatient", "terse")
    chosen = ["--method", "self_imitation", "--annotator", "impatient", "--judge", "offline"]
    plan = python(
        "-m", "afarm", "run", *chosen, "--set", "evaluate.evaluators=[win_rate,terse]", "--dry-run", where=shown
    )
    assert "train self_imitation" in plan


def test_the_annotator_that_asks_keeps_an_annotators_promises(shown: Path) -> None:
    python("-c", ASK, where=shown)
    code = DISCOVER.format(name="impatient", value="impatient", group=GROUP)
    assert python("-c", code, where=shown).split() == ["impatient"]
