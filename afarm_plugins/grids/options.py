"""The options that every study has, and all of them together."""

from __future__ import annotations

from typing import Annotated

from afarm.cli.options import option

Seeds = Annotated[str | None, option("--seeds", "The seeds, with commas between.", default="the recipe's")]
Formats = Annotated[str | None, option("--plots FORMATS", "Plots also as png, pdf, or both with a comma between.")]
Yes = Annotated[bool, option("--yes", "Begin without asking, however many runs there are.")]

WITHOUT = {"method", "seed", "accelerate_config"}
"""The options of a farm that a study has otherwise: its grid names methods and seeds."""
