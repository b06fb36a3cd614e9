"""The command line: a thin face on `afarm.Farm`. The only part of afarm that reads the environment."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from afarm.cli import launch
from afarm.cli.command_list import STEPS
from afarm.cli.commands import Commands
from afarm.cli.completion import VARIABLE
from afarm.cli.console import document_alone, err, one_interrupt
from afarm.cli.progress import take_down_bars
from afarm.cli.shared_options import option
from afarm.core.errors import AfarmError, ConfigError, PluginError
from afarm.storage.named_code import name_code
from afarm.storage.text import markup, without_keys

INTERRUPTED = 130
"""The exit code of a command that was stopped with Ctrl-C, as shells have it."""


TRACEBACK = "AFARM_TRACEBACK"
"""The variable that, set to anything, shows where in the code an error was raised."""


DOCUMENTS = {"--json", "--format"}
"""The options of afarm's commands, and of its plugins', that write a document to stdout."""


WIDEST_HELP = 110
"""Characters of a line of help, if the terminal has room: longer ones are hard to read."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from afarm import __version__

        typer.echo(f"afarm {__version__}")
        raise typer.Exit


def make_app() -> typer.Typer:
    """The application, which imports a command when it is called."""
    app = typer.Typer(
        name="afarm",
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich tables in --help cost more time than all the rest of the start
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST_HELP},
    )
    app.callback()(about)
    return app


TOGETHER = {"run", "compare", "evaluate", *STEPS}
"""The commands that train, beside those of methods: in these alone others than the first of several processes join."""


def about(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version of afarm.", is_eager=True, callback=_show_version)
    ] = False,
    plugin_file: Annotated[
        list[Path] | None,
        option("--plugin-file FILE", "Also load this Python file as a plugin; with any command, repeatable."),
    ] = None,
    disable_plugin: Annotated[
        list[str] | None,
        option("--disable-plugin NAME", "Do as if this plugin were not installed; with any command, repeatable."),
    ] = None,
) -> None:
    """A wind tunnel for learning from human feedback: from samples and preferences to a win rate."""
    if launch.process_info().is_main_process or context.invoked_subcommand in TOGETHER:
        return
    assert isinstance(context.command, Commands)
    if context.invoked_subcommand not in context.command.methods:
        raise typer.Exit


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line.

    Exit codes: 0 done, 1 a problem that is explained, 2 wrong usage, 130 interrupted.
    A second Ctrl-C ends the process at once.
    """
    if VARIABLE in os.environ:  # what it says would stand in the line that is being typed
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    given = sys.argv[1:] if arguments is None else arguments
    words = {word.partition("=")[0] for word in given}
    name_code(given)
    try:
        try:
            with launch.only_the_first_speaks(), document_alone(bool(words & DOCUMENTS)), one_interrupt():
                return make_app()(arguments, prog_name="afarm", standalone_mode=True)
        finally:
            take_down_bars()
            sys.stdout.flush()
    except AfarmError as error:
        if isinstance(error, ConfigError) and not launch.process_info().is_main_process:
            sys.exit(1)  # each finds the same, and the first has said it
        if os.environ.get(TRACEBACK):
            traceback.print_exception(error)
        plugin_failed = isinstance(error, PluginError) and not isinstance(error.__cause__, AfarmError | None)
        _fail(f"{error}\n{TRACEBACK}=1 shows where." if plugin_failed and not os.environ.get(TRACEBACK) else str(error))
    except OSError as error:
        # What stdout could not take would be tried again at exit, with a traceback.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        if isinstance(error, BrokenPipeError):  # its reader has seen enough
            sys.exit(1)
        _fail(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    except (KeyboardInterrupt, SystemExit) as stop:
        # Typer turns an interrupt inside a command into an exit with 130.
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:
            raise
        if launch.process_info().is_main_process:
            err().print("\nStopped. Nothing finished is lost: run the same command to go on.")
        sys.exit(INTERRUPTED)


def _fail(message: str) -> NoReturn:
    message = _from_clone(message) if "pip install " in message else message
    who = f"Error in process {launch.process_info().rank}" if launch.process_info().is_distributed else "Error"
    err().print(f"[bold red]{who}:[/] {markup(without_keys(message))}")
    sys.exit(1)


def _from_clone(message: str) -> str:
    """Make install commands name the clone that afarm runs from, if any: no index needs to have it."""
    import importlib.metadata
    import json
    import re
    from urllib.parse import unquote, urlparse

    found = json.loads(importlib.metadata.distribution("afarm").read_text("direct_url.json") or "{}")
    if not found.get("dir_info", {}).get("editable"):
        return message
    clone = Path(unquote(urlparse(found["url"]).path))
    message = re.sub(r"pip install 'afarm(\[\w+\])'", rf"pip install -e '{clone}\1'", message)

    def of_clone(command: re.Match[str]) -> str:
        package = clone / "plugins-contrib" / command[1]
        return f"pip install '{package}'" if package.is_dir() else command[0]

    return re.sub(r"pip install (afarm-[\w-]+)", of_clone, message)
