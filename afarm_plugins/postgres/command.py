"""`afarm ledger-copy`: a ledger copied to another place, such as a server that machines share."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from afarm.cli.options import DEFAULT_OUTPUT_DIR, LedgerPlace, OutputDir, err, write_examples


def add_commands(app: typer.Typer) -> None:
    app.command(
        "ledger-copy",
        epilog=write_examples("ledger-copy", "postgresql://me@lab/afarm", "copy.sqlite --output-dir afarm-runs"),
        rich_help_panel="Judges and their cost",
    )(ledger_copy)


def ledger_copy(
    to: Annotated[str, typer.Argument(help="The new ledger: postgresql://HOST/DATABASE, or a file.", metavar="TO")],
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    ledger: LedgerPlace = None,
) -> None:
    """Copy all answers, judgements and spending of a ledger into a new one, on a server or in a file."""
    from afarm import StoreError
    from afarm.results import Ledger, Store, is_there, redact_place
    from afarm_plugins.postgres.ledger_copy import copy_ledger

    place = ledger or Store(output_dir).ledger_path
    if not is_there(place):
        where = f"at {redact_place(place)}" if ledger else f"in {output_dir}"
        raise StoreError(
            f"no ledger {where}: nothing has been asked of a judge there; name another with --output-dir or --ledger"
        )
    with Ledger(place) as opened:
        count = copy_ledger(opened, to)
        there = shlex.quote(redact_place(to))
        text = (
            f"{count:,} answers, with their judgements and all spending, are copied to {there}.\n"
            f"{opened.database.name} is left as it is: from now on give --ledger {there}, or answers go to both."
        )
    err().print(text, markup=False)
