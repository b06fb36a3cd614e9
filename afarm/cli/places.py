"""The options that say where things are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_OUTPUT_DIR = Path("afarm-runs")
"""The output directory unless one is named."""

OutputDir = Annotated[Path, typer.Option("--output-dir", help="Where everything is kept.")]
"""The parameter of a command that has --output-dir."""
LedgerPlace = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="Where answers of judges are kept: postgresql://HOST/DATABASE for several machines, or a file.",
        metavar="URL|FILE",
    ),
]
"""The parameter of a command that has --ledger, None by default."""
StorePlace = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Where artifacts are shared with other machines: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a directory.",
        metavar="URL|DIR",
    ),
]
