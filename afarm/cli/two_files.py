"""Two files of outputs on the command line: the arguments, who judges them, and the comparison they ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afarm.cli.console import err
from afarm.cli.options import EvaluateOptions, option_of, refuse_stray
from afarm.errors import ConfigError

if TYPE_CHECKING:
    from afarm.head_to_head import HeadToHead
    from afarm.pipeline import Farm

TEXT_JUDGE = "offline:text_utility"
"""Who judges two files of outputs where neither a judge nor a recipe is named."""

Outputs = Annotated[Path | None, typer.Argument(help="A file of outputs to evaluate, instead of a method's.")]
Reference = Annotated[Path | None, typer.Option("--reference", help="The file of reference outputs.")]


def given(outputs: Path | None, reference: Path | None) -> tuple[Path, Path] | None:
    """Both files, or None where neither is named. Raises `ConfigError` where one is missing."""
    if outputs is None:
        if reference is not None:
            raise ConfigError(["--reference needs a file of outputs before it"])
        return None
    if not outputs.exists() and option_of(str(outputs)):
        refuse_stray(str(outputs))
    if reference is None:
        raise ConfigError([f"{outputs} needs something to be compared with: --reference FILE"])
    return outputs, reference


def judging(options: EvaluateOptions) -> EvaluateOptions:
    """The options as they are meant with two files: --annotator judges them, and nobody labels training pairs."""
    options = options.judging_by(options.annotator)
    if options.judge or options.recipe is not None:
        return options
    # The default recipe's judge knows the tasks of its own data set only.
    err().print(f"[dim]Unless you name a judge with --judge, it is {TEXT_JUDGE}, a formula.[/]", highlight=False)
    return replace(options, settings=[f"judge.*={TEXT_JUDGE}", *(options.settings or [])])


def head_to_head(farm: Farm, files: tuple[Path, Path]) -> HeadToHead:
    """The comparison of the two. Systems are called as their rows say, or as their files where that tells nothing.

    Raises `DataError` naming the file, the row and the field that is wrong.
    """
    from afarm.files import read_outputs, require_distinct

    mine, theirs = (require_distinct(read_outputs(path), str(path)) for path in files)
    said = [rows[0].generator for rows in (mine, theirs)]
    system, other = said if said[0] != said[1] else ("", "")
    return farm.head_to_head(mine, theirs, names=(system or files[0].stem, other or files[1].stem))
