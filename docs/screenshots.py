"""Take the screenshots of the README and the pages: `make screenshots`.

It runs the experiment of `make demo` in `build/screenshots`, or reuses it, and opens its report and the view in
Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright

from afarm_plugins.view.app import View, view_app
from afarm_plugins.view.server import take_port

IMAGES = Path(__file__).parent / "images"
RUNS = Path(__file__).parents[1] / "build" / "screenshots"
DEMO = ["run", "--method", "ppo", "--annotator", "pool"]

PICTURES = {"report.png": "", "training.png": "#curves", "outputs.png": "#outputs"}
"""Places on the report's page, by the file that shows what is there."""

VIEW = {"view.png": "outputs/{run}.html?verdict=loss&order=margin"}
"""Pages of the view, by the file that shows them: a pair that was lost although its gold is higher."""


@contextmanager
def served() -> Iterator[str]:
    """Serve the view of the demo meanwhile, and give its address."""
    listening = take_port("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(view_app(View([RUNS])), log_level="error", lifespan="off"))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server.should_exit = True


def take() -> None:
    """Run the demo and write each picture. Raises `SystemExit` without Chromium."""
    chromium = shutil.which("chromium") or sys.exit("no Chromium: apt-get install chromium")
    subprocess.run([sys.executable, "-m", "afarm", *DEMO, "--output-dir", str(RUNS)], check=True)
    [report] = RUNS.glob("runs/*/report.html")
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 720}, color_scheme="light")
        page.set_default_timeout(300_000)  # of a busy machine, in milliseconds
        for name, place in PICTURES.items():
            page.goto(report.as_uri() + place)
            page.wait_for_timeout(1000)  # charts are drawn by then
            page.screenshot(path=IMAGES / name)
        with served() as home:
            for name, path in VIEW.items():
                page.goto(home + path.format(run=report.parent.name))
                page.wait_for_selector(".vote .raw")
                page.screenshot(path=IMAGES / name)
        browser.close()


if __name__ == "__main__":
    take()
