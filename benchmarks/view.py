"""The view over 100,000 judged pairs: first rows, filters and searches, over HTTP and in Chromium."""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAIRS = 100_000
TIMES = 7
WORDS = 4_000
RUN = "large"

QUERIES = {
    "a verdict": "verdict=loss",
    "a member and length": "member=gpt4_2&longer_from=100",
    "ordered by margin": "order=margin",
    "a search for one word": "q=w1234",
    "a search for two words": "q=w12+w345",
}

NOTE = (
    "The page's first rows are timed from asking for the page, the others from the query. No query was asked before: "
    "answers are kept. A typed search waits 120 ms more for the next letter."
)

SEEN = """
new MutationObserver((_, watch) => {
  if (!document.querySelector("#list .row:not(.loading)")) return;
  watch.disconnect();
  requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.firstRows = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
"""Notes when the first rows have been painted, in milliseconds from the start of the navigation."""


def view() -> list[str]:
    """Milliseconds of an answer, and from asking until rows are drawn."""
    with tempfile.TemporaryDirectory() as directory, served(write_run(Path(directory))) as (home, pid):
        size = (Path(directory) / "runs" / RUN / "outputs.jsonl").stat().st_size / 1e6
        lines = [f"{PAIRS:,} judged pairs, {size:.0f} MB, medians of {TIMES} by the clock.", ""]
        first = answered(f"{home}data/outputs/{RUN}.json")
        while not json.load(urllib.request.urlopen(f"{home}data/outputs/{RUN}.json"))["ready"]:
            time.sleep(0.1)
        lines += ["| what | CPU ms of the server | over HTTP, ms | in Chromium until drawn, ms |", "|---|---|---|---|"]
        drawn = in_browser(home)
        lines.append(f"| the first rows, no index there yet (once) | | {first:.0f} | |")
        for name, query in {"the first rows": "", **QUERIES}.items():
            wall, cpu = asked(home, query, pid)
            lines.append(f"| {name} | {cpu:.0f} | {wall:.0f} | {cell(drawn.get(query))} |")
    return [*lines, "", NOTE]


def cell(value: float | None) -> str:
    return "no Chromium" if value is None else f"{value:.0f}"


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


def answered(address: str) -> float:
    """Milliseconds until an answer is there whole."""
    begin = time.perf_counter()
    with urllib.request.urlopen(address) as answer:
        answer.read()
    return 1000 * (time.perf_counter() - begin)


def asked(home: str, query: str, pid: int) -> tuple[float, float]:
    """Milliseconds of a query: the median by the clock, and the server's CPU in the mean."""
    begin = cpu_seconds(pid)
    wall = [answered(f"{home}data/outputs/{RUN}.json?{varied(query, number)}") for number in range(TIMES)]
    return statistics.median(wall), 1000 * (cpu_seconds(pid) - begin) / TIMES


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def varied(query: str, number: int) -> str:
    """The same query with a filter that leaves all rows, so that no answer is kept from before."""
    return f"{query}&longer_to={10**6 + number}"


def in_browser(home: str) -> dict[str, float]:
    """Milliseconds until rows are drawn, by query; "" is the page from its address on. Empty without Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        return {}
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {}
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for query in ("", *QUERIES.values()):
            for number in range(TIMES):
                page = browser.new_page()
                page.set_default_timeout(120_000)
                page.add_init_script(SEEN)
                page.goto(f"{home}outputs/{RUN}.html" + (f"?{varied(query, TIMES + number)}" if query else ""))
                page.wait_for_selector("html[data-first-rows][data-answered]:not([data-answered=''])")
                took = page.locator("html").get_attribute("data-answered" if query else "data-first-rows")
                found.setdefault(query, []).append(float(took or "nan"))
                page.close()
        browser.close()
    return {query: statistics.median(times) for query, times in found.items()}
