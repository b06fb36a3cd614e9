"""`afarm export`: a policy, its preferences and outputs for other software, in a folder or on the Hub."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from afarm.cli.completion import complete_runs
from afarm.cli.console import err, out, print_json
from afarm.cli.shared_options import DEFAULT_OUTPUT_DIR, Json, OutputDir, option
from afarm.core.errors import ConfigError
from afarm.storage.runs import find_run, read_run, run_directories

FORMS = "afarm export RUN DIR, or afarm export RUN --push-to-hub OWNER/NAME"
SHOWN_RUNS = 5
"""Runs that are named if none was, the newest first."""


def export_policy(
    run: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_runs, help="A run by its name, first letters or directory.", metavar="RUN"
        ),
    ] = None,
    directory: Annotated[
        Path | None, typer.Argument(help="A new or empty folder; none is kept if only pushed.", metavar="DIR")
    ] = None,
    push_to_hub: Annotated[
        str | None, option("--push-to-hub OWNER/NAME", "Also upload it to this model repository of the Hub.")
    ] = None,
    private: Annotated[bool, option("--private", "Make the repository private, if it is new.")] = False,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    as_json: Json = False,
) -> None:
    """Write a run's policy for transformers, its preferences for TRL and its outputs for AlpacaEval."""
    from afarm.experiment.export import export_run
    from afarm.storage.hub import push_folder, require_token

    if run is None:
        runs = sorted(run_directories(output_dir / "runs"), key=lambda run: -run.stat().st_mtime)
        there = f" There is none in {output_dir} (--output-dir): `afarm run` makes one"
        if runs:
            names = ", ".join(run.name for run in runs[:SHOWN_RUNS])
            more = f", and {len(runs) - SHOWN_RUNS} more" if len(runs) > SHOWN_RUNS else ""
            there = f" In {output_dir} (--output-dir), newest first: {names}{more}"
        raise ConfigError(f"name the run to export: {FORMS}.{there}")
    found = find_run(run, output_dir)
    if directory is None and push_to_hub is None:
        raise ConfigError(f"name a folder or a repository to export to: {FORMS}")
    record = read_run(found)
    if push_to_hub:
        require_token(push_to_hub)  # before the work
    with TemporaryDirectory() as passing:
        written = export_run(record, directory or Path(passing) / record.name)
        address = push_folder(written, push_to_hub, private=private) if push_to_hub else None
        files = sorted(str(path.relative_to(written)) for path in written.rglob("*") if path.is_file())
    path = str(directory) if directory else None
    if as_json:
        print_json({"run": record.name, "path": path, "url": address, "files": files})
        return
    for name in files:
        err().print(f"  {name}", markup=False)
    for place in filter(None, (path, address)):
        out().print(place, markup=False)
