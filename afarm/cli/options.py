"""The door for commands of plugins: options, the farm they describe, consoles, plans, tables.

A command prints its result on `out()` and all else on `err()`; with `Json` the result is one document by `print_json`,
and whatever else is printed to stdout meanwhile goes to stderr.
"""

from __future__ import annotations

from afarm.cli.completion import complete_names, complete_recipes, complete_runs
from afarm.cli.console import confirm, err, out, print_json
from afarm.cli.farm_options import FarmOptions, with_options
from afarm.cli.help_pages import build_commands
from afarm.cli.launch import LOCAL
from afarm.cli.launchers import LauncherName, build_launcher, launch_stages, preview_launch
from afarm.cli.plans import show_plan, warn_of_budget
from afarm.cli.recording import command_line, record_run
from afarm.cli.shared_options import (
    DEFAULT_OUTPUT_DIR,
    DEFAULT_RECIPE,
    RECIPE_HELP,
    DryRun,
    Json,
    LedgerPlace,
    OutputDir,
    option,
    parse_seeds,
    write_examples,
)
from afarm.cli.tables import print_table
from afarm.storage.text import dollars, markup, without_passwords

__all__ = [
    "DEFAULT_OUTPUT_DIR",
    "DEFAULT_RECIPE",
    "LOCAL",
    "RECIPE_HELP",
    "DryRun",
    "FarmOptions",
    "Json",
    "LauncherName",
    "LedgerPlace",
    "OutputDir",
    "build_commands",
    "build_launcher",
    "command_line",
    "complete_names",
    "complete_recipes",
    "complete_runs",
    "confirm",
    "dollars",
    "err",
    "launch_stages",
    "markup",
    "option",
    "out",
    "parse_seeds",
    "preview_launch",
    "print_json",
    "print_table",
    "record_run",
    "show_plan",
    "warn_of_budget",
    "with_options",
    "without_passwords",
    "write_examples",
]
