"""`afarm export`: a policy, its preferences and outputs for other software, in a folder or on the Hub."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from afarm.cli import completion
from afarm.cli.console import err, out
from afarm.cli.options import DEFAULT_OUTPUT_DIR, Json, OutputDir
from afarm.core.errors import ConfigError


def add_to(app: typer.Typer) -> None:
    app.command("export")(export_policy)


def export_policy(
    run: Annotated[
        str, typer.Argument(autocompletion=completion.runs, help="A run by its name, its directory or its run.json.")
    ],
    directory: Annotated[
        Path | None, typer.Argument(help="A new or empty folder; none is kept if only pushed.", metavar="[DIR]")
    ] = None,
    push_to_hub: Annotated[
        str | None,
        typer.Option("--push-to-hub", help="Also upload it to this model repository of the Hub.", metavar="OWNER/NAME"),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make the repository private, if it is new.")] = False,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    as_json: Json = False,
) -> None:
    """Write a run's policy for transformers, its preferences for TRL and its outputs for AlpacaEval."""
    import tempfile

    from afarm.experiment.export import export_run
    from afarm.storage.hub import push_folder, require_token
    from afarm.storage.runs import find_run, read_run

    if directory is None and push_to_hub is None:
        raise ConfigError(["export takes a folder, or a repository: afarm export RUN DIR, or --push-to-hub OWNER/NAME"])
    record = read_run(find_run(run, output_dir))
    if push_to_hub:
        require_token(push_to_hub)  # before the work
    with tempfile.TemporaryDirectory() as passing:
        written = export_run(record, directory or Path(passing) / record.name)
        address = push_folder(written, push_to_hub, private=private) if push_to_hub else ""
        files = sorted(str(path.relative_to(written)) for path in written.rglob("*") if path.is_file())
    if as_json:
        row = {
            "run": record.name,
            "path": str(directory) if directory else None,
            "url": address or None,
            "files": files,
        }
        sys.stdout.write(json.dumps(row) + "\n")
        return
    for name in files:
        err().print(f"  {name}", highlight=False, markup=False)
    for place in filter(None, (str(directory) if directory else "", address)):
        out().print(place, soft_wrap=True, highlight=False, markup=False)
