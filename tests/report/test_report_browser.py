"""The report page in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, sync_playwright

from afarm.report import build

MakeRun = Callable[..., Path]
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page with all it complained of and asked for."""

    def __init__(self, browser: Browser, path: Path, width: int = 1280):
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self.hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self.dismiss)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = path.as_uri()
        self.page.goto(self.address)

    def hear(self, message: ConsoleMessage) -> None:
        self.complaints.append(f"{message.type}: {message.text}")

    def dismiss(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def wait_for_charts(self, count: int) -> None:
        self.page.wait_for_function("n => document.querySelectorAll('.plot .main-svg .points').length >= n", arg=count)


def test_page_is_quiet_fetches_nothing_and_draws_every_point(browser: Browser, make_run: MakeRun) -> None:
    opened = Opened(browser, build(make_run()))
    opened.wait_for_charts(4)
    assert opened.page.locator("#chart-win-rate .points path.point").count() == 1
    assert opened.page.locator("#chart-win-rate .errorbars path").count() >= 1
    for place in range(3):
        assert opened.page.locator(f"#chart-main-{place} .points path.point").count() == 40
    opened.page.locator("#more-charts summary").click()
    opened.wait_for_charts(11)
    assert opened.complaints == []
    assert opened.requests == [opened.address]


def test_charts_stand_where_the_figures_are(browser: Browser, make_run: MakeRun) -> None:
    """The win rate's point must lie between the ends of its error bar, and right of the line for even."""
    opened = Opened(browser, build(make_run()))
    opened.wait_for_charts(4)
    point = opened.page.locator("#chart-win-rate .points path.point").bounding_box()
    bar = opened.page.locator("#chart-win-rate .errorbars path").first.bounding_box()
    even = opened.page.locator("#chart-win-rate .shapelayer path").first.bounding_box()
    assert point is not None
    assert bar is not None
    assert even is not None
    centre = point["x"] + point["width"] / 2
    assert centre == pytest.approx(bar["x"] + bar["width"] / 2, abs=2)
    # 60.1 is 10.1 above even, and half the bar is 1.96 · 1.6 = 3.136 long.
    assert (centre - even["x"]) / (bar["width"] / 2) == pytest.approx(10.1 / 3.136, rel=0.05)


def test_filter_shows_one_verdict_and_says_how_many(browser: Browser, make_run: MakeRun) -> None:
    opened = Opened(browser, build(make_run()))
    seen = opened.page.locator(".comparison:visible")
    assert seen.count() == 24
    opened.page.get_by_label("sft preferred").check(force=True)
    assert seen.count() == 9
    assert {item.get_attribute("data-verdict") for item in seen.all()} == {"loss"}
    assert opened.page.locator("#shown").inner_text() == "9 shown"
    opened.page.keyboard.press("ArrowRight")  # the filter is a radio group: arrow keys move through it
    assert {item.get_attribute("data-verdict") for item in seen.all()} == {"draw"}
    opened.page.get_by_label("all 24").check(force=True)
    assert seen.count() == 24


def test_hostile_outputs_run_nothing(browser: Browser, make_run: MakeRun) -> None:
    attack = "</script><img src=x onerror=\"alert('pwned')\"><script>alert('pwned')</script>"
    row = {"instruction": attack, "output_1": attack, "output_2": attack, "preference": 2, "generator_2": attack}
    result = {"system": attack, "reference": "<b>sft</b>", "evaluator": "win_rate",
              "metrics": {"win_rate": 55.0, "standard_error": 2.0}}  # fmt: skip
    metrics = [{"stage": "train", "step": step, attack: 1.0} for step in (1, 2)]
    opened = Opened(browser, build(make_run(outputs=[row], metrics=metrics, results=[result], name=attack)))
    opened.wait_for_charts(2)
    assert opened.complaints == []
    assert opened.requests == [opened.address]
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator(".system .text").inner_text() == attack
    assert "<b>sft</b>" in (opened.page.locator("#chart-win-rate .ytick text").first.text_content() or "")


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(browser: Browser, make_run: MakeRun, width: int) -> None:
    long = "unbroken" * 300
    row = {"instruction": long, "output_1": long, "output_2": long, "preference": 1, "member": "gpt4_1"}
    opened = Opened(browser, build(make_run(outputs=[row], name="n" * 200, command=f"afarm run --set x={long}")), width)
    opened.wait_for_charts(4)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    shown = "wide" if width == 1280 else "narrow"
    assert opened.page.locator(".diagram:visible").get_attribute("class") == f"diagram {shown} scroll"


def test_charts_follow_the_colour_scheme_when_it_changes(browser: Browser, make_run: MakeRun) -> None:
    opened = Opened(browser, build(make_run()))
    opened.wait_for_charts(4)

    def colour() -> str:
        return str(opened.page.locator("#chart-main-0 .js-line").evaluate("line => line.style.stroke"))

    light = colour()
    opened.page.emulate_media(color_scheme="dark")
    opened.page.wait_for_function(
        "before => document.querySelector('#chart-main-0 .js-line').style.stroke !== before", arg=light
    )
    assert (light, colour()) == ("rgb(10, 108, 109)", "rgb(92, 200, 190)")


def test_without_scripts_the_page_still_reads(browser: Browser, make_run: MakeRun) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(build(make_run()).as_uri())
    assert page.locator("noscript p").is_visible()
    assert not page.locator(".filter").is_visible()
    assert page.locator(".comparison:visible").count() == 24
    context.close()
