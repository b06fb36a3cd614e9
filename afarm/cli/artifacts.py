"""`afarm artifacts`: list stored artifacts, delete unused ones, explain why one was or was not reused."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afarm.cli.console import out
from afarm.cli.options import DEFAULT_OUTPUT_DIR, OutputDir
from afarm.core.errors import StoreError, did_you_mean

if TYPE_CHECKING:
    from afarm.storage.artifacts import Artifact, Store


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="What is stored, what can go, and what was reused.")
    group.command("list")(list_artifacts)
    group.command("gc")(gc)
    group.command("why")(why)
    app.add_typer(group, name="artifacts")


def _open(output_dir: Path) -> Store:
    from afarm.storage.artifacts import Store

    if output_dir.exists() and not output_dir.is_dir():
        raise StoreError(f"{output_dir} is a file: name the directory of your runs with --output-dir")
    if not output_dir.exists():
        raise StoreError(f"{output_dir} does not exist: name the directory of your runs with --output-dir")
    return Store(output_dir)


def list_artifacts(output_dir: OutputDir = DEFAULT_OUTPUT_DIR) -> None:
    """List all artifacts, with their size, their age and whether a finished run uses them."""
    from rich.table import Column, Table

    from afarm.storage.disk import tree_size

    store = _open(output_dir)
    used = store.in_use()
    columns = [Column(name, no_wrap=True) for name in ("stage", "key", "made", "took", "size", "used")]
    table = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for artifact in store.all():
        made = time.strftime("%d %b %H:%M", time.localtime(artifact.meta["created"]))
        took, size = f"{artifact.meta['seconds']:.1f} s", _size(tree_size(artifact.path))
        table.add_row(artifact.stage, artifact.key, made, took, size, "yes" if artifact.name in used else "no")
    for partial in store.partials():
        table.add_row(partial.parent.name, partial.stem, "unfinished", "", _size(tree_size(partial)), "no")
    out().print(table)


def gc(
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, only show what would go.")] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also what killed stages left to go on from.")
    ] = False,
    days: Annotated[float, typer.Option("--days", help="Spare what is younger: a run may still be using it.")] = 1.0,
) -> None:
    """Delete artifacts that no finished run uses. The ledger of paid answers is never touched."""
    from afarm.storage.disk import tree_size

    store = _open(output_dir)
    keep = store.in_use()
    newest = time.time() - days * 86400
    unused = [a for a in store.all() if a.name not in keep]
    going = [a.path for a in unused if a.meta["created"] <= newest]
    spared = len(unused) - len(going)
    if unfinished:
        left = store.abandoned(time.time())
        old = store.abandoned(newest)
        going, spared = going + old, spared + len(left) - len(old)
    freed = sum(tree_size(path) for path in going)
    for path in going:
        out().print(str(path.relative_to(store.root)), highlight=False)
        if yes:
            shutil.rmtree(path)
    verb = "freed" if yes else "could be freed (--yes deletes)"
    out().print(f"{len(going)} artifacts, {_size(freed)} {verb}.")
    if spared:
        out().print(
            f"{spared} that no run uses are spared, being younger than {days:g} days (--days 0 takes them too)."
        )


def why(
    key: Annotated[str, typer.Argument(help="The key, or its first characters, as `afarm artifacts list` shows it.")],
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
) -> None:
    """Show what an artifact was made from, and what sets it apart from its nearest relative."""
    from afarm.storage.reuse import flatten, nearest

    store = _open(output_dir)
    artifact = _find(store, key)
    out().print(f"[bold]{artifact.name}[/] was made from", highlight=False)
    for name, value in flatten(artifact.key_fields).items():
        out().print(f"  {name}: {value}", highlight=False, soft_wrap=True, markup=False)
    runs = [run for run, names in store.uses().items() if artifact.name in names]
    out().print(f"Used by: {', '.join(runs) or 'no finished run'}", highlight=False, soft_wrap=True)
    alike = store.of_stage(artifact.stage, artifact.meta.get("label"))
    relative = nearest(artifact.key_fields, (a for a in alike if a.key != artifact.key))
    if relative is None:
        out().print(f"There is no other {artifact.stage} artifact. It is reused whenever all of the above is the same.")
        return
    other, said = relative
    out().print(f"It was not reused for, nor made from, {other.name}, because (there → here):", highlight=False)
    for line in said:
        out().print(f"  {line}", highlight=False, soft_wrap=True, markup=False)


def _find(store: Store, key: str) -> Artifact:
    wanted = key.rpartition("/")[2]
    if not wanted:
        raise StoreError("name an artifact by its key, or its first characters: `afarm artifacts list` shows them")
    found = [a for a in store.all() if a.key.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise StoreError(f"{key!r} fits {', '.join(a.name for a in found)}: give more characters")
    raise StoreError(f"no artifact {key!r} in {store.root}.{did_you_mean(key, [a.key for a in store.all()])}")


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
