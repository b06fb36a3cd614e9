"""The door for commands of plugins: options, the farm they describe, consoles, plans, tables.

A command prints its result on `out()` and all else on `err()`; with `Json` the result is one document by `print_json`,
and whatever else is printed to stdout meanwhile goes to stderr.
"""

from typing import TYPE_CHECKING

from afarm.core import open_door

if TYPE_CHECKING:
    from afarm.cli.completion import complete_names as complete_names
    from afarm.cli.completion import complete_recipes as complete_recipes
    from afarm.cli.completion import complete_runs as complete_runs
    from afarm.cli.console import command_line as command_line
    from afarm.cli.console import err as err
    from afarm.cli.console import out as out
    from afarm.cli.console import print_json as print_json
    from afarm.cli.farm_options import FarmOptions as FarmOptions
    from afarm.cli.farm_options import record_run as record_run
    from afarm.cli.farm_options import with_options as with_options
    from afarm.cli.help_pages import build_commands as build_commands
    from afarm.cli.launch import LOCAL as LOCAL
    from afarm.cli.launchers import LauncherName as LauncherName
    from afarm.cli.launchers import build_launcher as build_launcher
    from afarm.cli.launchers import launch_stages as launch_stages
    from afarm.cli.launchers import preview_launch as preview_launch
    from afarm.cli.plans import show_plan as show_plan
    from afarm.cli.plans import warn_of_budget as warn_of_budget
    from afarm.cli.shared_options import DEFAULT_OUTPUT_DIR as DEFAULT_OUTPUT_DIR
    from afarm.cli.shared_options import DEFAULT_RECIPE as DEFAULT_RECIPE
    from afarm.cli.shared_options import LABELS as LABELS
    from afarm.cli.shared_options import LABELS_HELP as LABELS_HELP
    from afarm.cli.shared_options import RECIPE_HELP as RECIPE_HELP
    from afarm.cli.shared_options import DryRun as DryRun
    from afarm.cli.shared_options import Json as Json
    from afarm.cli.shared_options import LedgerPlace as LedgerPlace
    from afarm.cli.shared_options import OutputDir as OutputDir
    from afarm.cli.shared_options import option as option
    from afarm.cli.shared_options import parse_seeds as parse_seeds
    from afarm.cli.shared_options import write_examples as write_examples
    from afarm.cli.tables import print_table as print_table
    from afarm.storage.text import dollars as dollars
    from afarm.storage.text import markup as markup
    from afarm.storage.text import without_passwords as without_passwords
else:
    __all__, __getattr__, __dir__ = open_door(__name__)
