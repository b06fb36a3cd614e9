"""A page opened in a real browser, with all that it complained of and asked for."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page


@cache
def own_directory() -> tempfile.TemporaryDirectory[str]:
    """Where this process puts each page that it opens: a browser compiles a page's scripts anew for a new address."""
    return tempfile.TemporaryDirectory(prefix="opened-page-")


def new_page(browser: Browser, width: int, height: int, scheme: str = "light") -> Page:
    """Open a page that knows nothing of earlier ones, in the process that holds their compiled scripts.

    The page before it stays until the next one, and keeps the process.
    """
    context = browser.contexts[0]
    page = context.new_page()
    for earlier in context.pages[:-2]:
        earlier.close()
    context.clear_cookies()
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(120_000)  # a busy machine is no failure
    return page


class OpenedPage:
    """A page with its `complaints` (console, errors, dialogs) and its `requests`."""

    def __init__(self, browser: Browser, path: Path, width: int = 1280, scheme: str = "light"):
        self.page = new_page(browser, width, 900, scheme)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self.hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self.dismiss)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = shutil.copy(path, Path(own_directory().name, "page.html")).as_uri()
        self.page.goto(self.address)

    def hear(self, message: ConsoleMessage) -> None:
        self.complaints.append(f"{message.type}: {message.text}")

    def dismiss(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def wait_for_charts(self, count: int) -> None:
        self.page.wait_for_function("n => document.querySelectorAll('.plot .main-svg .points').length >= n", arg=count)

    def is_quiet(self) -> bool:
        """Tell if it complained of nothing and fetched nothing but itself."""
        return self.complaints == [] and set(self.requests) == {self.address}
