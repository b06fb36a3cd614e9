"""Change fragments: towncrier finds each of them, so that none is missing in a release's entry."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest
from places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FRAGMENTS = sorted(path for path in (ROOT / "changes").iterdir() if path.name != "README.md")


def test_a_fragment_is_named_for_its_kind() -> None:
    kinds = tuple(f".{kind['directory']}.md" for kind in PROJECT["tool"]["towncrier"]["type"])
    wrong = [path.name for path in FRAGMENTS if not (path.name.startswith("+") and path.name.endswith(kinds))]
    assert wrong == [], "changes/README.md says how a fragment is named"


def test_the_next_entry_has_every_fragment() -> None:
    pytest.importorskip("towncrier")
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"]
    entry = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    words = " ".join(entry.split())
    assert [path.name for path in FRAGMENTS if " ".join(path.read_text("utf-8").split()) not in words] == []
