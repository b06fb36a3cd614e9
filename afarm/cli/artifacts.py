"""`afarm artifacts`: list what is stored, verify it, delete what is unused, explain reuse."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli.console import ProgressBars, err, out
from afarm.cli.options import DEFAULT_OUTPUT_DIR, Json, OutputDir
from afarm.core.errors import StoreError, did_you_mean

if TYPE_CHECKING:
    from afarm.storage.artifacts import Store


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="What is stored, what can go, and what was reused.")
    group.command("list")(list_artifacts)
    group.command("gc")(gc)
    group.command("why")(why)
    group.command("verify")(verify)
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
    stored = [(stage, other) for stage in store.stages() for other in store.keys(stage)]
    artifact = store.find(*_only(store, stored, key))
    assert artifact is not None  # its key is stored
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


def verify(
    keys: Annotated[
        list[str] | None, typer.Argument(help="Keys, or their first characters; all artifacts without one.")
    ] = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete damaged ones: the next run makes them again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare every byte of the artifacts with what was written, and name the damaged ones.

    Exits with 1 if a damaged one is left. A run makes the same check, but reads only files whose time of change has
    moved.
    """
    store = _open(output_dir)
    stored = [(stage, key) for stage in store.stages() for key in store.keys(stage)]
    wanted = [_only(store, stored, key) for key in keys] if keys else stored
    rows: list[dict[str, Any]] = []
    for stage, key in ProgressBars(err())(wanted, "artifacts"):
        label, damages = store.inspect(stage, key)
        if damages and remove:
            store.remove(stage, key)
        rows.append(
            {"stage": stage, "key": key, "label": label, "damages": damages, "removed": remove and bool(damages)}
        )
    damaged = [row for row in rows if row["damages"]]
    if as_json:
        sys.stdout.write(json.dumps({"checked": len(rows), "damaged": damaged}, ensure_ascii=False) + "\n")
    else:
        for row in damaged:
            name = f"{row['stage']}/{row['key']}" + (f" ({row['label']})" if row["label"] else "")
            out().print(f"{name}: {'; '.join(row['damages'])}", highlight=False, soft_wrap=True, markup=False)
        done = "none is damaged" if not damaged else f"{len(damaged)} damaged"
        done += ", deleted: the next run makes them again" if damaged and remove else ""
        done += " (--remove deletes them: the next run makes them again)" if damaged and not remove else ""
        out().print(f"{len(rows)} artifacts checked, {done}.", highlight=False, soft_wrap=True)
    if damaged and not remove:
        raise typer.Exit(1)


def _only(store: Store, stored: Sequence[tuple[str, str]], key: str) -> tuple[str, str]:
    """Return the one artifact of those `stored` whose key begins so. Raises `StoreError` if none does."""
    wanted = key.rpartition("/")[2]
    if not wanted:
        raise StoreError("name an artifact by its key, or its first characters: `afarm artifacts list` shows them")
    fitting = [(stage, other) for stage, other in stored if other.startswith(wanted)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise StoreError(f"{key!r} fits {', '.join('/'.join(names) for names in fitting)}: give more characters")
    raise StoreError(f"no artifact {key!r} in {store.root}.{did_you_mean(key, [other for _, other in stored])}")


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
