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
from afarm.plugins import discover
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
from afarm.plugins import discover
from afarm.recipe import recipe_names, resolve
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
from afarm.plugins import discover
discover()
assert (dict(os.environ), list(warnings.filters)) == before
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
