"""The view, served and opened in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import uvicorn
from opened_page import new_page

from afarm import StoreError
from afarm_plugins.view.app import View, view_app
from afarm_plugins.view.server import take_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@cache
def own_port() -> int:
    """The port of all views of this process: a browser compiles a page's scripts anew for a new address."""
    with take_port("127.0.0.1", 0) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def served(view: View) -> Iterator[str]:
    """Serve a view meanwhile, and give its address."""
    try:
        listening = take_port("127.0.0.1", own_port())
    except StoreError:  # a view that is served meanwhile has it
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
def opened(browser: Browser, home: str, path: str, width: int = 1280, scheme: str = "light") -> Iterator[Page]:
    """Open a page that complains of nothing and asks nobody but the view."""
    page = new_page(browser, width, 800, scheme)
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
        page.evaluate("localStorage.clear()")
        page.goto(f"{home}static/view.css")  # which asks the server no more, so that it can end
