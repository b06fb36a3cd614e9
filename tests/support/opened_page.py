"""A page opened in a real browser, with all that it complained of and asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog


class OpenedPage:
    """A page with its `complaints` (console, errors, dialogs) and its `requests`."""

    def __init__(self, browser: Browser, path: Path, width: int = 1280, scheme: str = "light"):
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        self.page.set_default_timeout(120_000)  # a busy machine is no failure
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

    def is_quiet(self) -> bool:
        """Tell if it complained of nothing and fetched nothing but itself."""
        return self.complaints == [] and set(self.requests) == {self.address}
