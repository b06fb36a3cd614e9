"""The command line: a thin face on `afarm.Farm`. The only part of afarm that reads the environment."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import typer

from afarm.cli import annotators, artifacts, cost, ledger, listing, run, steps
from afarm.cli.console import err, escape
from afarm.errors import AfarmError
from afarm.plugins import discover

INTERRUPTED = 130
"""The exit code of a command that was stopped with Ctrl-C, as shells have it."""


def make_app() -> typer.Typer:
    """The application, with the commands that plugins add."""
    app = typer.Typer(
        name="afarm",
        help="A wind tunnel for learning from human feedback: samples, preferences, reward model, policy, win rate.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich tables in --help cost more time than all the rest of the start
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for part in (run, steps, cost, ledger, artifacts, listing, annotators):
        part.add_to(app)
    for problem in discover(check_configs=False).add_commands(app):
        err().print(f"[yellow]Warning:[/] {escape(problem)}", highlight=False, soft_wrap=True)
    return app


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line. Exit codes: 0 done, 1 a problem that is explained, 2 wrong usage, 130 interrupted."""
    try:
        try:
            return make_app()(arguments, standalone_mode=True)
        finally:
            sys.stdout.flush()
    except AfarmError as error:
        _fail(str(error))
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
        err().print("\nStopped. Nothing finished is lost: run the same command to go on.")
        sys.exit(INTERRUPTED)


def _fail(message: str) -> NoReturn:
    err().print(f"[bold red]Error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(1)
