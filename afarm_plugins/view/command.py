"""`afarm view`: one local page over output directories."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from afarm import ConfigError, PluginError
from afarm.cli.options import DEFAULT_OUTPUT_DIR, LedgerPlace, err, markup, option, write_examples


def add_commands(app: typer.Typer) -> None:
    app.command("view", epilog=write_examples("view", "", "afarm-runs --export pages"))(view)


def view(
    output_dirs: Annotated[
        list[Path] | None, typer.Argument(help="Output directories; afarm-runs if none is given.", show_default=False)
    ] = None,
    host: Annotated[
        str, option("--host", "The address that is listened on; others reach any but 127.0.0.1.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, option("--port", "0 for any free one.", None, "8640, or the next free one", min=0, max=65535)
    ] = None,
    allow_host: Annotated[
        list[str] | None, option("--allow-host NAME", "A further name that it answers to; repeatable.")
    ] = None,
    allow_stop: Annotated[
        bool, option("--allow-stop", "Let the page stop runs of this machine, as Ctrl-C does.")
    ] = False,
    export: Annotated[
        Path | None, option("--export DIR", "Write the pages as files for a web server, and end.")
    ] = None,
    ledger: LedgerPlace = None,
) -> None:
    """Look at runs as they go, their outputs, votes, artifacts and costs, in a page on this machine."""
    try:
        from afarm_plugins.view.app import View
        from afarm_plugins.view.server import is_loopback, serve, take_port
    except ModuleNotFoundError as error:
        raise PluginError(f"afarm view needs {error.name}: pip install 'afarm[view]'") from error

    directories = output_dirs or [DEFAULT_OUTPUT_DIR]
    if allow_stop and not is_loopback(host):
        raise ConfigError([f"--allow-stop and --host {host} contradict each other: others would stop your runs"])
    seen = View(directories, ledger, allow_stop)
    for directory in directories:
        if not directory.is_dir():
            err().print(f"[yellow]{markup(str(directory))} is not there yet: what is made in it will be shown.[/]")
    if export is not None:
        from afarm_plugins.view.export import write_pages

        count = write_pages(seen, export)
        serve_them = shlex.join(["python", "-m", "http.server", "-d", str(export)])
        told = f"{count} files written to {export}: give them to a web server, such as `{serve_them}`."
        err().print(told, markup=False)
        return
    listening = take_port(host, port)
    if not is_loopback(host):
        err().print(f"[yellow]Whoever reaches {markup(host)} can read all prompts, outputs and costs here.[/]")

    def ready(address: str) -> None:
        err().print(f"View: {address} (Ctrl-C ends it)", markup=False)

    serve(seen, listening, allow_host or [], ready)
