"""`afarm traces`: the same commands among afarm's."""

from __future__ import annotations

import typer

from afarm import hookimpl


def traces(context: typer.Context) -> None:
    """Golden traces: hold a trainer's dump against one (check METHOD DUMP), or look at one (show METHOD)."""
    from afarm_golden_traces.__main__ import main

    raise typer.Exit(main(context.args or ["--help"], "afarm traces"))


@hookimpl
def register_commands(app: typer.Typer) -> None:
    """Add `afarm traces`, whose options are read by `main`."""
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command("traces", context_settings=passed_on)(traces)
