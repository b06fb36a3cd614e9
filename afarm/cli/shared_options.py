"""Options that several commands share, and the words for reading them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from afarm.cli.completion import complete_names
from afarm.core.errors import ConfigError

Completion = str | list[str] | Callable[..., Any] | None
"""How the shell completes a value: a function of words, the words, or the kind of the components to name."""


def option(shown: str, help: str, complete: Completion = None, default: str | bool = True, **more: Any) -> Any:
    """Make an option as its help shows it: "--seed N", N for the value. `default` is the default shown."""
    name, _, metavar = shown.partition(" ")
    if isinstance(complete, str):
        complete = complete_names(complete)
    elif isinstance(complete, list):
        words, complete = complete, lambda: words
    return typer.Option(name, metavar=metavar or None, help=help, autocompletion=complete, show_default=default, **more)


model_option = partial(option, rich_help_panel="Method and model")
output_option = partial(option, rich_help_panel="Output")


def option_field(*shown: Any, value: Any = None, **more: Any) -> Any:
    """Make a field of `FarmOptions` with its default `value`; the rest is what help says, as for `option`."""
    return field(default=value, metadata={"option": option(*shown, **more)})


model_field = partial(option_field, rich_help_panel="Method and model")
data_field = partial(option_field, rich_help_panel="Data")
judge_field = partial(option_field, rich_help_panel="Judges")
money_field = partial(option_field, rich_help_panel="Money and speed")

OF_RECIPE = "the recipe's"
"""The default that help shows for a setting that every recipe gives."""

LABELS = "--labels FIRST,SECOND[,DRAW]"
"""The option that names the labels of a file."""
LABELS_HELP = "The labels in files for the first output, the second and a draw, if not 1,2,0: 0,1, or A,B,tie."
"""Its help."""

DEFAULT_OUTPUT_DIR = Path("afarm-runs")
"""The output directory of a command that is given none."""

DEFAULT_RECIPE = "toy"
"""The recipe of a command that is given none."""

RECIPE_HELP = "A recipe by name (`afarm recipes`), or a YAML file."
"""The help of an option --recipe."""

OutputDir = Annotated[Path, output_option("--output-dir DIR", "Where everything is kept.")]
"""The option --output-dir; its default is `DEFAULT_OUTPUT_DIR`."""

LedgerPlace = Annotated[
    str | None,
    output_option(
        "--ledger URL|FILE",
        "Where answers of judges are kept: postgresql://HOST/DATABASE for several machines, or a file.",
    ),
]
"""The option --ledger: a database's address, a file, or None for the one in the output directory."""

StorePlace = Annotated[
    str | None,
    output_option(
        "--store URL|DIR",
        "Where artifacts are shared with other machines: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a directory.",
    ),
]

DryRun = Annotated[bool, output_option("--dry-run", "Show what would be done and bought, and do nothing.")]
"""The parameter of a command that has --dry-run, False by default; see `FarmOptions.show_plan`."""

Json = Annotated[bool, output_option("--json", "Print the result as JSON on stdout, all else on stderr.")]
"""The option --json, False by default: print the result with `print_json`, and all else on `err()`."""


def write_examples(command: str, *arguments: str) -> str:
    """Write the `epilog` of a command's help: calls of it, each given as the words after `afarm COMMAND`."""
    calls = [f"afarm {command} {words}".rstrip() for words in arguments]
    return "\n".join(["\b", "Examples:", *(f"  {call}" for call in calls)])  # \b: Click keeps the lines as they are


def parse_seeds(text: str) -> list[int]:
    """Read the seeds of --seeds. Raises `ConfigError` for what is no list of different whole numbers."""
    from afarm.experiment.method_comparison import refuse_repeats

    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError([f"--seeds {text!r}: whole numbers with commas between, such as 42,43,44"]) from None
    refuse_repeats(seeds, "--seeds")
    return seeds
