"""A real `afarm run`, watched in a real browser: before it begins, at work, stopped in the page, gone on, finished."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from gates import FREE, LABELS, STEPS
from light_farm import RECIPE
from places import ROOT, SUPPORT
from playwright.sync_api import Browser, expect
from viewed import opened, served

from afarm_plugins.view.app import View

pytestmark = pytest.mark.browser

COMMAND = ["run", "--recipe", "light.yaml", "--budget", "1"]

REQUESTS = 7
"""Requests of the stage of labels."""

Start = Callable[[], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A starter of the command in `tmp_path`, as a process that the gated plugin is installed for."""
    info = tmp_path / "site" / "gated-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: gated\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[afarm]\ngated = gated_plugin\n")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "base" / "weights").write_text("0")
    recipe = {**RECIPE, "start": "model", "model": "./base", "method": "gated", "judge": {"*": "gated"}}
    (tmp_path / "light.yaml").write_text(yaml.safe_dump(recipe))
    paths = os.pathsep.join(map(str, (tmp_path / "site", SUPPORT, ROOT)))
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "afarm", *COMMAND]
        environment = {**os.environ, "PYTHONPATH": paths}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=-1, stderr=-1, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_run_is_watched_stopped_in_the_page_and_goes_on_to_its_end(
    browser: Browser, start: Start, tmp_path: Path
) -> None:
    view = View([tmp_path / "afarm-runs"], may_stop=True)

    def answers() -> int:
        return len((tmp_path / "answers").read_text())

    with served(view) as home, opened(browser, home, "") as page:
        expect(page.locator(".none")).to_contain_text("There is no run here yet")
        run = start()
        page.get_by_role("link", name="light-gated").click()
        chip, live, log = page.locator("h1 .chip"), page.locator("#live"), page.locator("#log")
        figures = page.locator("#live dl > div")
        expect(chip).to_have_text("running")
        expect(live).to_contain_text("stage 3 of 8: annotate")
        expect(live).to_contain_text(f"$0.00{REQUESTS} of $1.00, reservations included")
        expect(page.get_by_role("progressbar", name="Stages")).to_have_attribute("aria-valuenow", "25")
        expect(figures.filter(has_text="Calls").first).to_have_text(f"Calls{FREE}")
        expect(log).to_contain_text("sample: made in")
        stop = page.locator("#stop")
        page.clock.set_fixed_time(time.time())  # the second press is in time, however busy the machine
        stop.focus()
        stop.evaluate("button => button.classList.add('old')")
        page.keyboard.press("Enter")
        expect(stop).to_have_text("Stop it? Press again")
        expect(page.locator("#stop.old")).to_have_count(0)  # and the page is drawn anew
        assert run.poll() is None, "one press stops nothing"
        page.keyboard.press("Enter")
        expect(page.locator("#pulse")).to_contain_text(f"process {run.pid} was asked to stop")
        (tmp_path / LABELS).touch()
        _, said = run.communicate(timeout=300)
        assert run.returncode == 130
        assert "Nothing finished is lost: run the same command to go on." in said
        assert answers() == REQUESTS, "what was asked, and is paid for, was waited for"
        expect(chip).to_have_text("stopped")
        expect(live).to_contain_text(f"it was interrupted; the same command goes on: {shlex.join(['afarm', *COMMAND])}")
        expect(stop).to_have_count(0)

        again = start()  # the page stays as it is, and follows
        expect(live).to_contain_text("stage 4 of 8: train gated")
        expect(chip).to_have_text("running")
        expect(figures.filter(has_text="Calls").first).to_contain_text(f"{REQUESTS} answers reused")
        expect(page.locator("#stages tbody tr").first).to_contain_text("reused")
        (tmp_path / STEPS).touch()
        expect(chip).to_have_text("finished")
        _, said = again.communicate(timeout=300)
        assert again.returncode == 0, said
        expect(live).to_have_count(0)
        expect(page.locator(".tiles")).to_contain_text("Win rate against base")
        expect(page.locator("#stages tbody tr")).to_have_count(8)
        expect(page.locator("#curves .plot .main-svg").first).to_be_visible()
        paid = answers()
        assert paid == json.loads(next(tmp_path.glob("afarm-runs/runs/*/run.json")).read_text())["spend"]["calls"]
