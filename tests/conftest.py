"""Fixtures of several rooms. Helpers are in `tests/support`; what needs torch is imported when it is used."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from places import ROOT

if TYPE_CHECKING:
    from light_farm import Make
    from playwright.sync_api import Browser, Playwright
    from postgres_server import PostgresServer
    from said import Afarm, Said


sys.path += map(str, ROOT.glob("plugins-contrib/*/src"))  # what pytest's `pythonpath` has no pattern for

# An example that waits for the processor is no failure, and whether a change lands depends on no draw.
settings.register_profile("new draws", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same draws", settings.get_profile("new draws"), derandomize=True)
settings.load_profile("same draws")  # others: pytest --hypothesis-profile "new draws"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has what it starts in the background ignore it,
    signal.signal(signal.SIGINT, signal.default_int_handler)  # and with it whatever tests start and interrupt

MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30
"""Bytes that must be free in memory for what tests write: they make small files by the thousand, and each is synced."""

if MEMORY.is_dir():
    found = os.statvfs(MEMORY)
    if found.f_bavail * found.f_frsize > ROOM and not found.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# In one process per site the second page finds the scripts of the first compiled; and a window loads an address bar of
# several hundred scripts, unless the features are off. Playwright's own list is replaced: what matters of it is here.
OFF = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable", "PaintHolding"),
    *("MediaRouter", "OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled", "PreconnectToSearch"),
)
CHROMIUM = ["--no-sandbox", "--process-per-site", f"--disable-features={','.join(OFF)}"]

MANY_MODULES = 100

frozen_modules = 0
"""Modules that were loaded when the garbage collector was last told to leave them alone."""


def freeze_modules() -> None:
    """Keep loaded modules out of garbage collection.

    A trainer of transformers collects twice a run, which takes most of a tiny one's time once torch, transformers and
    trl are there to be searched.
    """
    global frozen_modules
    if len(sys.modules) > frozen_modules + MANY_MODULES:
        gc.collect()
        gc.freeze()
        frozen_modules = len(sys.modules)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests together that share what each worker would make: a browser, syntax trees, a model of GGUF."""
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        if item.path.parent.name == "architecture":
            item.add_marker(pytest.mark.xdist_group("architecture"))
        elif "gguf" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("gguf"))
        elif "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("browser"))


def pytest_collection_finish() -> None:
    if "light_worker" in sys.modules:
        raise pytest.UsageError("a test imports light_worker, which replaces the backend of this process for all tests")
    freeze_modules()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    freeze_modules()
    if "browser" not in getattr(nextitem, "fixturenames", ()):
        stop_browser()


def pytest_sessionfinish() -> None:
    stop_browser()


browsers: list[tuple[Playwright, Browser]] = []
"""The browser of this process, if one is started."""


def stop_browser() -> None:
    """End the browser and its event loop, which tests without one could not bear."""
    while browsers:
        started, browser = browsers.pop()
        browser.close()
        started.stop()


@pytest.fixture
def browser() -> Browser:
    """A real browser: one for all tests with one that follow each other, in whatever module."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)  # a busy machine is no failure
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("needs Chromium: apt-get install chromium")
    if not browsers:
        started = sync_playwright().start()
        browsers.append((started, started.chromium.launch(executable_path=chromium, args=CHROMIUM)))
        browsers[0][1].new_context()  # of all pages that `opened_page.new_page` opens
    return browsers[0][1]


@pytest.fixture(autouse=True)
def fresh_consoles() -> None:
    """No test inherits a console of another one, with its width and colours."""
    if console := sys.modules.get("afarm.cli.console"):
        console.out.cache_clear()
        console.err.cache_clear()


@pytest.fixture(scope="session")
def gguf() -> str:
    """SmolLM2-135M-Instruct as a GGUF file; without one, the test is skipped."""
    for place in (os.environ.get("AFARM_TEST_GGUF"), ROOT / ".cache" / "smollm2.gguf"):
        if place and Path(place).is_file():
            return str(place)
    pytest.skip("no SmolLM2 GGUF: set AFARM_TEST_GGUF, or put .cache/smollm2.gguf")


@pytest.fixture(scope="session")
def loaded_gguf(gguf: str) -> SimpleNamespace:
    """SmolLM2 as `policy`, read from GGUF, which takes a dozen seconds.

    `parsed` is how often the file was parsed for it, and `reader_is_back` tells if gguf has its own reader again.
    """
    import gguf as package
    from gguf import gguf_reader

    from afarm.backend import Backend
    from afarm.core.config import BackendConfig

    class CountingReader(package.GGUFReader):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            parsed.append(arguments)
            super().__init__(*arguments)

    parsed: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_reader, "GGUFReader", CountingReader)
        own = package.GGUFReader
        policy = Backend(BackendConfig(device="cpu")).load_policy(gguf)
        reader_is_back = package.GGUFReader is own
    return SimpleNamespace(policy=policy, parsed=len(parsed), reader_is_back=reader_is_back)


@pytest.fixture(scope="session")
def smollm2(loaded_gguf: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same model as a directory of safetensors."""
    directory = tmp_path_factory.mktemp("smollm2")
    loaded_gguf.policy.save(directory)
    return str(directory)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server; without Debian's package, the test is skipped."""
    from postgres_server import PostgresServer, why_not

    if problem := why_not():
        pytest.skip(problem)
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def new_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Path | str]:
    """A maker of places for new ledgers, of each kind of database in turn."""
    numbers = itertools.count()
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        return lambda: server.database(next(numbers))
    return lambda: tmp_path / f"ledger-{next(numbers)}.sqlite"


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Make]:
    """A maker of torch-free farms that share an output directory, as one command after the other does."""
    from light_farm import light_farm
    from light_plugin import RAN, CountingJudge

    made: list[Any] = []
    RAN.clear()
    CountingJudge.asked = 0

    def make(*settings: str, **choices: object) -> Any:
        made.append(light_farm(tmp_path, *settings, **choices))
        return made[-1]

    yield make
    for farm in made:
        farm.close()


@pytest.fixture
def policy() -> Any:
    """A tiny causal language model as a checkpoint policy."""
    from tiny_models import make_policy

    return make_policy()


@pytest.fixture(scope="session")
def light_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `sys.path` in which the light plugin is installed, one for all tests: to read another takes long."""
    site = tmp_path_factory.mktemp("site")
    (site / "light-1.2.dist-info").mkdir()
    (site / "light-1.2.dist-info" / "METADATA").write_text("Name: light\nVersion: 1.2\n")
    (site / "light-1.2.dist-info" / "entry_points.txt").write_text("[afarm]\nlight = light_plugin\n")
    return site


@pytest.fixture
def afarm(
    tmp_path: Path, light_site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Afarm:
    """Runs the command line in a directory of its own, with `light.yaml` there and the light plugin installed."""
    import yaml
    from light_farm import RECIPE, LightBackend
    from light_plugin import RAN, CountingJudge, WordPolicy
    from said import Said

    from afarm.cli import main
    from afarm.experiment.components import Components

    monkeypatch.syspath_prepend(str(light_site))
    monkeypatch.setattr(Components, "backend", property(lambda self: LightBackend(WordPolicy)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "base" / "weights").write_text("0")
    # By its bare name, SFT is the environment's own, which needs torch: start from the model as it is.
    (tmp_path / "light.yaml").write_text(yaml.safe_dump({**RECIPE, "start": "model", "model": "./base"}))
    RAN.clear()
    CountingJudge.asked = 0

    def run(*arguments: str) -> Said:
        capsys.readouterr()
        try:
            main(list(arguments))
            code = 0
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return run


@pytest.fixture
def own_site(afarm: Afarm, light_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the command line finds the light plugin, as a copy that a test may change."""
    site = shutil.copytree(light_site, tmp_path / "site")
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.fixture
def plugin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory for plugins of one file; in the end none is chosen, and no module of it is left."""
    from afarm.core.plugins import choose_plugins

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    choose_plugins()
    for name in [n for n, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(str(tmp_path))]:
        del sys.modules[name]
