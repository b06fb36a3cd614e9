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
TIMES = 5
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

    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as started:
        output_dir = write_run(Path(directory))
        size = (output_dir / "runs" / RUN / "outputs.jsonl").stat().st_size / 1e6
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(TIMES):
            with served(output_dir) as (home, pid):
                page = browser.new_page()
                page.set_default_timeout(120_000)
                for name, taken in gestures(page, home, pid):
                    found.setdefault(name, []).append(taken)
                page.close()
        browser.close()
    lines = [f"{PAIRS:,} judged pairs, {size:.0f} MB; medians of {TIMES}.", ""]
    lines += ["| gesture | until painted, ms | fastest | slowest | CPU ms of the server | of the browser |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, times in found.items():
        took = [one["took"] for one in times]
        server, browser_ms = (statistics.median(one[side] for one in times) for side in ("server", "browser"))
        clock = f"{statistics.median(took):.0f} | {min(took):.0f} | {max(took):.0f}"
        lines.append(f"| {name} | {clock} | {server:.0f} | {browser_ms:.0f} |")
    return [*lines, "", NOTE]


def gestures(page: Page, home: str, pid: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Open the page and use it: each gesture by its name, with milliseconds by the clock and of processors."""
    root, words, keyboard = page.locator("html"), page.locator("#words"), page.keyboard
    page.add_init_script(WATCH)

    def timed(name: str, act: Callable[[], object], mark: str = "took") -> tuple[str, dict[str, float]]:
        before = cpu_seconds(pid)
        act()
        if mark == "took":
            page.wait_for_selector(f"html[data-took][data-words='{words.input_value()}']")
        else:
            page.wait_for_selector(f"html[data-{mark}]")
        after = cpu_seconds(pid)
        page.wait_for_load_state("networkidle")
        took = float(root.get_attribute(f"data-{mark}") or "nan")
        return name, {"took": took, **{side: 1000 * (after[side] - before[side]) for side in after}}

    yield timed("open the page, no index there yet", lambda: page.goto(f"{home}outputs/{RUN}.html"), "first-rows")
    page.wait_for_selector("html[data-answered]:not([data-answered=''])")
    page.wait_for_load_state("networkidle")
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


def cpu_seconds(pid: int) -> dict[str, float]:
    """CPU seconds so far of the server with that number, and of all else that this process started: the browser."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(path.parent.name)] = int(fields[1])
        ticks[int(path.parent.name)] = int(fields[11]) + int(fields[12])

    def is_ours(one: int) -> bool:
        return one != pid and (parents.get(one) == os.getpid() or (one in parents and is_ours(parents[one])))

    rate = os.sysconf("SC_CLK_TCK")
    return {"server": ticks[pid] / rate, "browser": sum(ticks[one] for one in ticks if is_ours(one)) / rate}
