"""The options that every study has, and all of them together."""

from __future__ import annotations

from typing import Annotated

import typer

Seeds = Annotated[
    str | None, typer.Option("--seeds", show_default="the recipe's", help="The seeds, with commas between.")
]
Formats = Annotated[
    str | None,
    typer.Option("--plots", help="Plots also as png, pdf, or both with a comma between.", metavar="FORMATS"),
]
Yes = Annotated[bool, typer.Option("--yes", help="Begin without asking, however many runs there are.")]

WITHOUT = {"method", "seed", "accelerate_config"}
"""The options of a farm that a study has otherwise: its grid names methods and seeds."""
