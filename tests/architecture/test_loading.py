"""What is loaded when, from `sys.modules` of fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from loaded import TRAINS, afarm_loads

HEAVY = ["torch", "transformers", "datasets", "trl", "peft", "accelerate", "openai", "anthropic", "plotly", "numpy"]

STEPS = {
    "importing afarm": "import afarm",
    "importing every public name": "[getattr(afarm, name) for name in afarm.__all__]",
    "loading every entry point": """
from afarm.core.plugins import discover
found = discover()
assert found.found and not found.broken, found.broken
""",
    "importing the conformance kit": "import afarm.testing",
    "showing the help": """
from afarm.cli import main
try:
    main(["--help"])
except SystemExit as stop:
    assert not stop.code, stop.code
""",
    "resolving a recipe": """
from afarm.experiment.recipe import recipe_names, resolve
assert [resolve(name, [], discover()).recipe for name in recipe_names()]
""",
}
"""What is done in one process, one after the other."""
TO_IMPORT = 3
"""The first of them, which change neither environment nor warnings."""

FOLLOW = """
import json, os, sys, warnings
before, loaded = [dict(os.environ), list(warnings.filters)], {}
for number, (step, code) in enumerate(json.loads(sys.argv[1]).items()):
    exec(code, globals())
    loaded[step] = [module for module in json.loads(sys.argv[2]) if module in sys.modules]
    changed = [dict(os.environ), list(warnings.filters)] != before
    assert not changed or number >= int(sys.argv[3]), f"{step} changes environment or warnings"
sys.stderr.write(json.dumps(loaded))
"""


def test_nothing_heavy_is_loaded_and_nothing_changed_until_something_is_trained() -> None:
    command = [sys.executable, "-c", FOLLOW, json.dumps(STEPS), json.dumps(HEAVY), str(TO_IMPORT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr) == {step: [] for step in STEPS}


def test_afarm_is_found_beside_a_folder_of_its_name(tmp_path: Path) -> None:
    """As from the parent of a clone: the folder is a namespace package, to which the import hook of a setuptools
    editable install loses."""
    (tmp_path / "afarm").mkdir()
    command = [sys.executable, "-c", "import afarm; afarm.Farm"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, f"install it again: make test, or pip install -e .\n{done.stderr}"


HELP = {
    ("--help",): [
        "pydantic",
        "afarm.cli.run",
        "afarm.cli.leaderboard",
        "afarm.cli.stage_commands",
        "afarm_plugins.ppo",
    ],
    ("run", "--help"): ["afarm.cli.leaderboard", "afarm.cli.ledger", "afarm_plugins", "afarm.core.plugins"],
    ("artifacts", "why", "--help"): ["afarm.cli.run", "afarm_plugins.ppo"],
}


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_showing_the_help_loads_no_command_but_its_own_and_what_plugins_add(arguments: list[str]) -> None:
    """Each of these takes a good part of the time until the help is there."""
    slow = ["afarm.core.config", "yaml", "rich", "asyncio", "sqlite3", "afarm.experiment.farm", *HELP[arguments]]
    code = f"""
import json, sys
from afarm.cli import main
try:
    main({list(arguments)!r})
except SystemExit as stop:
    assert not stop.code, stop.code
sys.stderr.write(json.dumps([name for name in {slow!r} if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    assert json.loads(done.stderr) == []


ROWS = "rows={sft: 16, preference: 24, unlabeled: 8, validation: 8, evaluation: 8}"
TOY = "toy={sft: 100, preference: 100, unlabeled: 100, validation: 16, evaluation: 16}"
LOOKS = {
    "--dry-run": (["run", "--dry-run", "--set", TOY, "--set", ROWS], 0),
    "--dry-run of every method": (["compare", "--methods", "all", "--dry-run", "--set", TOY, "--set", ROWS], 0),
    "cost": (["cost", "--method", "dpo", "--set", TOY, "--set", ROWS], 0),
    "a setting misspelt": (["run", "--set", "ppo.learning_rat=1"], 1),
    "a method misspelt": (["run", "--method", "pppo"], 1),
}


def test_looking_ahead_loads_nothing_that_trains(tmp_path: Path) -> None:
    """In one process, one after the other: what a look loads stays loaded."""
    code = """
import json, sys
from afarm.cli import main
found = {}
for look, arguments in json.loads(sys.argv[1]).items():
    try:
        main(arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code
    found[look] = [code or 0, [module for module in json.loads(sys.argv[2]) if module in sys.modules]]
with open("found.json", "w") as file:
    json.dump(found, file)
"""
    looks = json.dumps({look: arguments for look, (arguments, _) in LOOKS.items()})
    watched = json.dumps([*TRAINS, "afarm.experiment.export"])
    own = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", code, looks, watched]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == {look: [code, []] for look, (_, code) in LOOKS.items()}, done.stdout + done.stderr


@pytest.fixture
def judge() -> Iterator[ThreadingHTTPServer]:
    """A language model on this machine that prefers the first output, and counts its answers in `asked`."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked.append(self.path)
            message = {"role": "assistant", "content": "Output (a)"}
            answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.asked = asked  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_cached_evaluation_loads_no_sdk_and_leaves_the_report_as_it_is(
    judge: ThreadingHTTPServer, tmp_path: Path
) -> None:
    for name, word in (("mine", "short"), ("theirs", "a longer answer to")):
        rows = [{"instruction": f"task {n}", "output": f"{word} {n}", "generator": name} for n in range(40)]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    spec = f"openai-compatible:tiny@http://127.0.0.1:{judge.server_address[1]}/v1"
    evaluate = ["evaluate", "mine.json", "--reference", "theirs.json", "--annotator", "chatgpt_1", "--judge", spec]
    ended, said, loaded = afarm_loads(tmp_path, *evaluate, "--allow-degraded", among=["openai", "genai_prices"])
    assert (ended, loaded) == (0, ["openai"]), said
    asked = len(judge.asked)  # type: ignore[attr-defined]
    assert asked >= 40
    page = next((tmp_path / "afarm-runs" / "runs").glob("*/report.html"))
    written = page.stat().st_mtime_ns
    heavy = [*TRAINS, "openai", "anthropic", "numpy", "scipy", "plotly"]
    ended, said, loaded = afarm_loads(tmp_path, *evaluate, "--allow-degraded", among=heavy)
    assert (ended, loaded) == (0, []), said
    assert len(judge.asked) == asked  # type: ignore[attr-defined]
    assert page.stat().st_mtime_ns == written
    assert str(page.relative_to(tmp_path)) in said
    afarm_loads(tmp_path, "report")
    assert page.stat().st_mtime_ns > written, "it is written again on request"
