"""What is loaded when, from `sys.modules` of fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ["torch", "transformers", "datasets", "trl", "peft", "accelerate", "openai", "anthropic", "plotly", "numpy"]

STEPS = {
    "importing afarm": "import afarm",
    "importing every public name": "import afarm; [getattr(afarm, name) for name in afarm.__all__]",
    "importing the conformance kit": "import afarm.testing",
    "loading every entry point": """
from afarm.core.plugins import discover
found = discover()
assert found.found and not found.broken, found.broken
""",
    "showing the help": """
from afarm.cli import main
try:
    main(["--help"])
except SystemExit as stop:
    assert not stop.code, stop.code
""",
    "resolving a recipe": """
from afarm.core.plugins import discover
from afarm.experiment.recipe import recipe_names, resolve
assert [resolve(name, [], discover()).recipe for name in recipe_names()]
""",
}


@pytest.mark.parametrize("step", STEPS)
def test_nothing_heavy_is_loaded_by(step: str) -> None:
    code = f"{STEPS[step]}\nimport sys, json\nsys.stderr.write(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr) == []


def test_importing_changes_neither_environment_nor_warnings() -> None:
    code = """
import os, warnings
before = dict(os.environ), list(warnings.filters)
import afarm
[getattr(afarm, name) for name in afarm.__all__]
from afarm.core.plugins import discover
discover()
assert (dict(os.environ), list(warnings.filters)) == before
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_showing_the_help_makes_no_console_opens_no_farm_and_builds_no_validator() -> None:
    """Each takes a good part of the time until the help is there."""
    code = (
        STEPS["showing the help"]
        + """
import json, sys
from afarm.core.config import Config
def below(config):
    return [config] + [c for inner in config.__subclasses__() for c in below(inner)]
built = [c.__name__ for c in below(Config) if c.__pydantic_complete__]
slow = [name for name in ("rich.console", "asyncio", "sqlite3", "afarm.experiment.farm") if name in sys.modules]
sys.stderr.write(json.dumps({"configs": len(below(Config)), "built": built, "slow": slow}))
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stderr)
    assert found["configs"] > 10
    assert (found["built"], found["slow"]) == ([], [])
