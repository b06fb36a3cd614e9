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
    options = options.judging_two()
    if _names_a_judge(options):
        return options
    # The default recipe's judge knows the tasks of its own data set only.
    return replace(options, settings=[f"judge.*={TEXT_JUDGE}", *(options.settings or [])])


def _names_a_judge(options: EvaluateOptions) -> bool:
    return bool(options.judge) or options.recipe is not None


def head_to_head(farm: Farm, files: tuple[Path, Path], options: EvaluateOptions) -> HeadToHead:
    """The comparison of the two. Systems are called as their rows say, or as their files where that tells nothing.

    Tells on stderr who judges where that was left open and a judge is asked.

    Raises `DataError` naming the file, the row and the field that is wrong.
    """
    from afarm.files import read_outputs, require_distinct
    from afarm.interfaces import AnnotateContext

    mine, theirs = (require_distinct(read_outputs(path), str(path)) for path in files)
    said = [rows[0].generator for rows in (mine, theirs)]
    system, other = said if said[0] != said[1] else ("", "")
    compared = farm.head_to_head(mine, theirs, names=(system or files[0].stem, other or files[1].stem))
    context = AnnotateContext(0, farm.ask)  # a seed that no comparison has, so that none of its answers is known
    if not _names_a_judge(options) and farm.builder.annotator(compared.annotator).plan(compared.pairs[:1], context):
        err().print(f"[dim]Unless you name a judge with --judge, it is {TEXT_JUDGE}, a formula.[/]", highlight=False)
    return compared
