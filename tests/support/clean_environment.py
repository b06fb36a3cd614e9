"""A clean environment with the wheels of afarm, of every contrib package and of scaffolds, and commands run in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

LEAVE = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")

BUILD = """
import os, sys
from setuptools import build_meta
into, *folders = sys.argv[1:]
for folder in folders:
    os.chdir(folder)
    build_meta.build_wheel(into)
"""
"""Builds wheels as pip and `build` do, in one process: those start three for each."""

PRELOADED = ("afarm.backend", "afarm_plugins.dpo.dpo", "afarm_plugins.ppo.ppo", "trl")

WARMTH = Path(__file__).with_name("warmth.py")

COMMANDS = """
import gc, importlib, json, os, sys, traceback
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
exec(sys.argv[2])
gc.freeze()  # trainers collect garbage, and modules are none

def act(program, arguments):
    sys.argv = ["afarm", *arguments]
    if program == "pytest":
        sys.exit(importlib.import_module("pytest").main(arguments))
    elif program == "afarm":
        importlib.import_module("afarm.cli").main(arguments)
    else:  # a program's text
        exec(program, {"__name__": "__main__"})

for number, command in enumerate(json.load(sys.stdin)):
    if not (child := os.fork()):
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{number}.{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), descriptor)
        code = 1
        try:
            code = act(command[0], command[1:]) or 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)  # to tear all modules down takes a second
    with open(f"{number}.code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""
"""Runs commands one after the other, each in a fork of a process that has imported what training needs."""


BESIDE = {"BESIDE": sysconfig.get_path("purelib"), "OMP_NUM_THREADS": "1"}
"""What lets a command find torch and others behind its own packages."""


class Ended(NamedTuple):
    """A command that has ended: its exit status and what it printed."""

    code: int
    out: str
    err: str


class CleanEnvironment:
    """A virtual environment with afarm's dependencies and the given wheels, and nothing else.

    What torch and others need takes minutes to install: commands that train find them behind, in the environment of the
    tests (`BESIDE`).
    """

    def __init__(self, directory: Path, afarm: Path, wheels: Sequence[Path]):
        self.binaries = directory / "bin"
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        if uv:
            run(uv, "venv", "--quiet", "--seed", "--python", sys.executable, directory)
            run(uv, "pip", "install", "--quiet", "--python", self.binaries / "python", afarm)
        else:
            venv.create(directory, with_pip=True)
            run(self.binaries / "pip", "install", "--quiet", "--disable-pip-version-check", afarm)
        offline = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
        run(self.binaries / "pip", "install", *offline, *wheels)
        [site] = directory.glob("lib/*/site-packages")
        (site / "beside.pth").write_text("import os, sys; sys.path += filter(None, [os.environ.get('BESIDE')])\n")

    def run_all(self, commands: Mapping[str, Sequence[str]], directory: Path) -> dict[str, Ended]:
        """Run commands of `afarm`, `pytest` and of programs' texts in a directory, which has torch beside it."""
        program = (self.binaries / "python", "-c", COMMANDS, json.dumps(PRELOADED), WARMTH.read_text(encoding="utf-8"))
        run(*program, cwd=directory, env=BESIDE, given=json.dumps(list(commands.values())))
        parts = [[directory / f"{n}.{part}" for part in ("code", "out", "err")] for n in range(len(commands))]
        read = [[path.read_text(encoding="utf-8") for path in of_one] for of_one in parts]
        return {name: Ended(int(code), out, err) for name, (code, out, err) in zip(commands, read, strict=True)}


def build_wheels(folders: Sequence[Path], into: Path, env: Mapping[str, str] | None = None) -> None:
    """Build the wheels of packages, from copies of them."""
    copies = into / "sources"
    for folder in folders:
        shutil.copytree(folder, copies / folder.name, ignore=LEAVE)
    run(sys.executable, "-c", BUILD, into, *(copies / folder.name for folder in folders), env=env)


def run(
    *command: Path | str, cwd: Path | None = None, env: Mapping[str, str] | None = None, given: str | None = None
) -> str:
    """What a command prints on stdout, once it has ended well."""
    words, environment = [str(part) for part in command], {**os.environ, **(env or {})}
    done = subprocess.run(words, cwd=cwd, env=environment, input=given, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
