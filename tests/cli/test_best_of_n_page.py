"""`afarm best-of-n` from its command to its page in a real browser, and a run of best-of-n in the view."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from opened_page import OpenedPage
from playwright.sync_api import Browser, expect
from said import Afarm
from viewed import opened, served

from afarm_plugins.view.app import View

pytestmark = pytest.mark.browser

HELD_OUT = {
    "pairs": 50,
    "loss": 0.6312,
    "reliability": [{"from": 0.5, "to": 0.55, "pairs": 20, "confidence": 0.52, "observed": 0.55}],
    "margins": [{"from": -0.5, "to": 0.0, "pairs": 19}, {"from": 0.0, "to": 0.5, "pairs": 31}],
}
"""What the fit of a reward model measures on pairs that it holds out."""


def test_best_of_n_is_read_over_n_from_the_run_on(afarm: Afarm, browser: Browser, tmp_path: Path) -> None:
    run = "afarm run --recipe light.yaml --method best_of_n --set best_of_n.n=4 --set best_of_n.keep_scores=true"
    assert afarm(*shlex.split(run)[1:]).code == 0
    [record] = tmp_path.glob("afarm-runs/runs/*/run.json")
    values = {**json.loads(record.read_text()), "command": run, "reward_model": HELD_OUT}
    record.write_text(json.dumps(values))
    view = View([tmp_path / "afarm-runs"])
    with served(view) as home, opened(browser, home, f"run/{record.parent.name}.html") as page:
        titles = page.locator("#curves figcaption")
        expect(titles).to_contain_text(["Reward of the best of the first n", "Calibration", "Margin of the preferred"])
        expect(page.locator("#curves .js-plotly-plot")).to_have_count(3)
        expect(page.locator("#curves")).to_contain_text("pairs 50, cross-entropy 0.6312")
        said = page.locator("#over-n")
        expect(said).to_contain_text("A run evaluates its own n alone.")
        command = said.locator("code").text_content() or ""
        assert command == "afarm best-of-n --n 1,4 --recipe light.yaml"

        made = afarm(*shlex.split(command)[1:])
        assert made.code == 0, made.err
        assert re.search(r"outputs best_of_n +reused", made.err), "no sample is drawn again"
        page.get_by_role("link", name="Costs and plans").last.click()
        expect(page.locator("#best-of-n .main-svg").first).to_be_visible()
        page.get_by_label("n", exact=True).press("End")
        [curve] = tmp_path.glob("afarm-runs/studies/*/curve.json")
        one, four = json.loads(curve.read_text())
        expect(page.locator("#best-of-n dd").first).to_contain_text(f"{four['win_rate']:.1f}")
    assert one["reward"] < four["reward"]

    address = made.out.rsplit("Page: ", 1)[1].strip()
    report = OpenedPage(browser, tmp_path / address)
    report.wait_for_charts(1)
    cells = report.page.locator("#result tbody tr").nth(1).locator("> *")
    expect(cells.first).to_have_text("4")
    expect(cells.last).to_contain_text(f"{four['win_rate']:.1f}")
    assert report.is_quiet()
    report.page.close()
