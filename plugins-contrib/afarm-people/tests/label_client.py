"""A person's browser without scripts: it follows links and sends the forms that pages hold."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

from afarm_people import signing_in
from afarm_people.app import label_app
from afarm_people.draw import read_pairs
from afarm_people.rules import Project, Rules
from afarm_people.store import ProjectStore
from starlette.applications import Starlette
from starlette.testclient import TestClient

HOME = "http://127.0.0.1:8650"


def make_rows(count: int) -> list[dict[str, Any]]:
    """Rows of which the second output is the better one."""
    return [
        {
            "instruction": f"say {number}",
            "output_1": f"worse {number}",
            "output_2": f"better {number}",
            "generator_1": "base",
            "generator_2": "mine",
        }
        for number in range(count)
    ]


def write_pairs(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_project(directory: Path, count: int = 6, **rules: Any) -> Project:
    """Make a project of `count` pairs, or open the one that is there."""
    store = ProjectStore(directory / "people.sqlite")
    pairs = read_pairs(str(write_pairs(directory / "pairs.jsonl", make_rows(count)))).pairs
    store.add_pairs(pairs)
    return Project(store, Rules(**{"is_open": False, **rules}))


def open_page(project: Project) -> Browser:
    """Open the page of one person, without sign-in, by its link."""
    found = Browser(project)
    found.open(f"/open/{signing_in.renew_secret(project.store, signing_in.OPEN)}")
    return found


class LabelServer:
    """`afarm label` as a process; `said` is what it printed until it served."""

    def __init__(self, *arguments: str):
        command = [sys.executable, "-m", "afarm", "label", "pairs.jsonl", "--people", "ann", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said = ""
        assert self.process.stderr
        while " so far, in " not in self.said:
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Browser:
    """One person's browser: its cookies, and the page that is open."""

    def __init__(self, project: Project, home: str = HOME, app: Starlette | None = None):
        self.client = TestClient(app or label_app(project), base_url=home)
        self.page, self.path, self.status = "", "", 0

    def open(self, path: str) -> str:
        answer = self.client.get(path)
        self.page, self.path, self.status = answer.text, answer.url.path, answer.status_code
        return self.page

    def fields(self) -> dict[str, str]:
        """The hidden fields of the page's form."""
        found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', self.page)
        return {name: unescape(value) for name, value in found}

    def send(self, choice: str, fields: Mapping[str, str] | None = None, **headers: str) -> str:
        """Send the open page's form; `fields` replace its own."""
        form = {**self.fields(), "choice": choice, **(fields or {})}
        answer = self.client.post(self.path, data=form, headers={"origin": HOME, **headers})
        self.page, self.path, self.status = answer.text, answer.url.path, answer.status_code
        return self.page

    def responses(self) -> list[str]:
        """The responses as they are shown, first A."""
        return re.findall(r'Response [AB]</h2>\s*<div class="text" dir="auto">([^<]*)</div>', self.page)

    def prefer(self, word: str) -> str:
        """Answer that the response with this word in it is better."""
        return self.send("-2" if word in self.responses()[0] else "2")
