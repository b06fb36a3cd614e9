"""The view over 100,000 judged pairs: gestures in an open page in Chromium, from the hand to the painted rows."""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

PAIRS = 100_000
TIMES = 7
WORDS = 4_000
RUN = "large"
BETWEEN_KEYS = 90
"""Milliseconds from key to key: some 130 words per minute."""

NOTE = (
    "Each time the view is started anew, no index is there, and every gesture is made for the first time in one open "
    "page, after the one above it. From the event (the last key of typed words, the start of the navigation) to the "
    "moment after the rows of its answer were painted. A typed search waits 30 ms for the next letter."
)

WATCH = """
const root = () => document.documentElement;
let began = 0;
const begin = (event) => { began = event.timeStamp; delete root().dataset.took; };
for (const kind of ["keydown", "input", "click"]) addEventListener(kind, begin, true);
const painted = (tell) => requestAnimationFrame(() => setTimeout(() => tell(performance.now())));
new MutationObserver((_, watch) => {
  if (!document.querySelector("#list .row:not(.loading)")) return;
  watch.disconnect();
  painted((now) => { root().dataset.firstRows = now; });
}).observe(document, { childList: true, subtree: true });
new MutationObserver(() => {
  const [event, words] = [began, new URLSearchParams(location.search).get("q") ?? ""];
  painted((now) => { if (event === began) Object.assign(root().dataset, { took: now - event, words }); });
}).observe(document, { attributes: true, attributeFilter: ["data-answered"], subtree: true });
"""
"""Notes when the first rows have been painted, and how long after the last event those of the latest answer were."""


def view() -> list[str]:
    """Milliseconds until rows are painted, and of the server's processor, by gesture."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        return ["There was no Chromium: nothing was measured."]
    from playwright.sync_api import sync_playwright

    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as started:
        output_dir = write_run(Path(directory))
        size = (output_dir / "runs" / RUN / "outputs.jsonl").stat().st_size / 1e6
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(TIMES):
            with served(output_dir) as (home, pid):
                page = browser.new_page()
                page.set_default_timeout(120_000)
                for name, took, cpu in gestures(page, home, pid):
                    found.setdefault(name, []).append((took, cpu))
                page.close()
        browser.close()
    lines = [f"{PAIRS:,} judged pairs, {size:.0f} MB; of {TIMES} times the median and the slowest.", ""]
    lines += ["| gesture | until painted, ms | slowest, ms | CPU ms of the server |", "|---|---|---|---|"]
    for name, times in found.items():
        taken = [took for took, _ in times]
        cpu = statistics.mean(cpu for _, cpu in times)
        lines.append(f"| {name} | {statistics.median(taken):.0f} | {max(taken):.0f} | {cpu:.0f} |")
    return [*lines, "", NOTE]


def gestures(page: Page, home: str, pid: int) -> Iterator[tuple[str, float, float]]:
    """Open the page and use it: each gesture by its name, the milliseconds that it took, and the server's."""
    page.add_init_script(WATCH)
    root, before = page.locator("html"), cpu_seconds(pid)
    page.goto(f"{home}outputs/{RUN}.html")
    page.wait_for_selector("html[data-first-rows]")
    first, cpu = float(root.get_attribute("data-first-rows") or "nan"), cpu_seconds(pid) - before
    yield "open the page, no index there yet", first, 1000 * cpu
    page.wait_for_selector("html[data-answered]:not([data-answered=''])")
    page.wait_for_load_state("networkidle")

    def timed(name: str, act: Callable[[], object]) -> tuple[str, float, float]:
        before = cpu_seconds(pid)
        act()
        page.wait_for_selector(f"html[data-took][data-words='{words.input_value()}']")
        took = float(root.get_attribute("data-took") or "nan")
        page.wait_for_load_state("networkidle")
        return name, took, 1000 * (cpu_seconds(pid) - before)

    words, keyboard = page.locator("#words"), page.keyboard
    yield timed("choose a verdict", lambda: page.locator("input[name=verdict][value=loss]").check(force=True))
    yield timed("choose a member besides", lambda: page.get_by_label("Member").select_option("gpt4_2"))
    yield timed("choose a length besides", lambda: page.get_by_label("Length").select_option("longer"))
    timed("", lambda: page.locator("input[name=verdict][value='']").check(force=True))
    timed("", lambda: page.get_by_label("Member").select_option(""))
    timed("", lambda: page.get_by_label("Length").select_option(""))
    yield timed("order by margin", lambda: page.get_by_label("Order").select_option("margin"))
    yield timed("the lowest first", lambda: page.get_by_role("button", name="highest first").click())
    timed("", lambda: page.get_by_label("Order").select_option(""))
    words.focus()
    yield timed("type a word", lambda: keyboard.type("w1234", delay=BETWEEN_KEYS))
    yield timed("type a second word", lambda: keyboard.type(" w345", delay=BETWEEN_KEYS))
    yield timed("paste another word", lambda: words.fill("w2718"))
    yield timed("paste a word that no text has", lambda: words.fill("kestrel"))


def write_run(output_dir: Path) -> Path:
    """Write a run of `PAIRS` pairs of some 250 words each, with gold and reward of each output."""
    draw = random.Random(1)
    directory = output_dir / "runs" / RUN
    directory.mkdir(parents=True)
    words = [f"w{number}" for number in range(WORDS)]
    with (directory / "outputs.jsonl").open("w", encoding="utf-8") as handle:
        for number in range(PAIRS):
            texts = [" ".join(draw.choices(words, k=k)) for k in (20, draw.randint(60, 140), draw.randint(60, 140))]
            names = dict(zip(("instruction", "output_1", "output_2"), texts, strict=True))
            row = {**names, "input": "", "preference": draw.choice([1, 2]), "member": f"gpt4_{number % 5}"}
            handle.write(json.dumps({**row, "generator_1": "sft", "generator_2": "ppo"}) + "\n")
    scores = [{"gold": draw.gauss(0.2, 1), "gold_reference": draw.gauss(0, 1)} for _ in range(PAIRS)]
    results = [
        {"system": "ppo", "reference": "sft", "evaluator": "win_rate", "metrics": {"win_rate": 50.0}},
        {"system": "ppo", "reference": "sft", "evaluator": "gold", "metrics": {"gold": 0.2}, "rows": scores},
    ]
    (directory / "run.json").write_text(json.dumps({"method": "ppo", "results": results}))
    return output_dir


@contextmanager
def served(output_dir: Path) -> Iterator[tuple[str, int]]:
    """Serve `afarm view` in a process of its own, and give its address and number."""
    command = [sys.executable, "-m", "afarm", "view", str(output_dir), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield next(line.split()[1] for line in process.stderr if line.startswith("View: ")), process.pid
    finally:
        process.terminate()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
