"""Progress in notebooks: tqdm's bars, and a line per stage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from afarm.core.interfaces import Progress, no_progress
from afarm.experiment.stage import StageRun
from afarm.experiment.workspace import OnStage, ignore

T = TypeVar("T")


def bars(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Show a bar of tqdm over `items` after a second, a widget in notebooks. Implements `Progress`."""
    from tqdm.auto import tqdm

    bar: Any = tqdm(items, desc=description, total=total, delay=1, leave=False)
    yield from bar


def tell_stage(label: str, run: StageRun | None) -> None:
    """Print a line for a stage that begins, and for one that is there."""
    if run is None:
        print(f"… {label}")
    else:
        print(f"✓ {label}" + (", reused" if run.reused else f", {run.seconds:.0f} s"))


def choose_display(progress: Progress | bool | None) -> tuple[Progress, OnStage, Callable[[str], None]]:
    """Choose what shows a farm's loops, stages and headings.

    True and False are on and off, None is on in notebooks: Jupyter, Colab and what is built on them.
    """
    if progress is None:
        ipython = sys.modules.get("IPython")
        progress = getattr(ipython.get_ipython() if ipython else None, "kernel", None) is not None
    if isinstance(progress, bool):
        return (bars, tell_stage, print) if progress else (no_progress, ignore, ignore)
    return progress, ignore, ignore
