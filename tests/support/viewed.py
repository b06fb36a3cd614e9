"""The view, served and opened in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from afarm_plugins.view.app import View, view_app
from afarm_plugins.view.server import take_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@contextmanager
def served(view: View) -> Iterator[str]:
    """Serve a view meanwhile, and give its address."""
    listening = take_port("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(view_app(view), log_level="error", access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(60)


@contextmanager
def opened(browser: Browser, home: str, path: str, width: int = 1280, **context: Any) -> Iterator[Page]:
    """Open a page that complains of nothing and asks nobody but the view."""
    page = browser.new_page(viewport={"width": width, "height": 800}, **context)
    page.set_default_timeout(120_000)  # a busy machine is no failure
    complaints: list[str] = []
    elsewhere: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: None if request.url.startswith(home) else elsewhere.append(request.url))
    try:
        page.goto(home + path)
        yield page
        assert complaints == []
        assert elsewhere == []
    finally:
        page.close()  # a server ends once nobody asks it
