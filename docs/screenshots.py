"""Take the screenshots of the README and the pages: `make screenshots`.

It runs the experiment of `make demo` in `build/screenshots`, or reuses it, and opens its report and the view in
Chromium.
"""

from __future__ import annotations

import json
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

LABEL = {
    "label.png": {
        "instruction": "Explain to a ten-year-old why the sky is blue.",
        "output_1": "Sunlight looks white, but it is a mix of all the colours of the rainbow. When it reaches the "
        "air, tiny bits of air bounce the blue light around much more than the red light. So wherever "
        "you look up, some of that bouncing blue light comes to your eyes, and the sky looks blue.\n\nIn"
        " the evening the light has to travel through much more air. Most of the blue has bounced away "
        "before it gets to you, and what is left is orange and red.",
        "output_2": "The sky is blue because of Rayleigh scattering, whose intensity goes with the inverse fourth "
        "power of the wavelength. Since blue light has a shorter wavelength than red light, it is "
        "scattered more strongly by molecules of nitrogen and oxygen.",
    }
}
"""Pairs on the page of `afarm label`, by the file that shows them."""


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
        for name, pair in LABEL.items():
            with labelled(pair) as address:
                page.goto(address)
                page.click("summary")  # of the guideline, which is open before the first pair
                page.screenshot(path=IMAGES / name)
        browser.close()


@contextmanager
def labelled(pair: dict[str, str]) -> Iterator[str]:
    """Serve the page of a pair meanwhile, from the package in this clone, and give its address."""
    with take_port("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
    file = RUNS / "pair.jsonl"
    file.write_text(json.dumps(pair) + "\n", encoding="utf-8")
    file.with_name("pair.people.sqlite").unlink(missing_ok=True)
    source = str(Path(__file__).parents[1] / "plugins-contrib" / "afarm-people" / "src")
    code = f"import sys; sys.path.insert(0, {source!r}); import afarm_people.command as c, typer; app = typer.Typer(); "
    code += "c.add_commands(app); app.callback()(lambda: None); app()"
    command = [sys.executable, "-c", code, "label", str(file), "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = next(line for line in process.stdout if str(port) in line)
        yield next(word for word in line.split() if word.startswith("http"))
        process.terminate()


if __name__ == "__main__":
    take()
