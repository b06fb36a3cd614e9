"""`afarm artifacts`: list what is stored, verify it, delete what is unused, explain reuse."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from afarm.cli.command_list import OWN
from afarm.cli.completion import complete_artifacts
from afarm.cli.console import err, out, print_json
from afarm.cli.progress import ProgressBars
from afarm.cli.shared_options import DEFAULT_OUTPUT_DIR, Json, OutputDir, option, write_examples
from afarm.cli.tables import print_table
from afarm.core.errors import ConfigError, StoreError
from afarm.storage.artifacts import Artifact, Store
from afarm.storage.contents import META
from afarm.storage.disk import last_change, tree_size
from afarm.storage.reuse import flatten, nearest
from afarm.storage.shared_store import SharedStore, open_shared_store
from afarm.storage.text import markup


def add_commands(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help=OWN["artifacts"].summary)
    group.command("list", epilog=write_examples("artifacts list", "", "--output-dir afarm-runs"))(list_artifacts)
    group.command("gc", epilog=write_examples("artifacts gc", "", "--yes --days 30"))(gc)
    group.command("why", epilog=write_examples("artifacts why", "1a2b3c4d", "1a2b --output-dir afarm-runs"))(why)
    group.command("verify", epilog=write_examples("artifacts verify", "", "1a2b3c4d"))(verify)
    app.add_typer(group, name="artifacts")


def _open(output_dir: Path) -> Store:
    if not output_dir.is_dir():
        wrong = "is a file" if output_dir.exists() else "does not exist"
        raise StoreError(f"{output_dir} {wrong}: name the directory of your runs with --output-dir")
    return Store(output_dir)


def list_artifacts(output_dir: OutputDir = DEFAULT_OUTPUT_DIR, as_json: Json = False) -> None:
    """List all artifacts: stage with its method, seed, key, age, size, and the runs that use them."""
    store = _open(output_dir)
    uses = store.uses()
    rows = [_row(store, store.artifacts / stage / key, uses) for stage, key in _stored(store)]
    rows += [_row(store, partial, {}) for partial in store.partials()]
    if as_json:
        print_json(rows)
    elif rows:
        _show_list(rows, list(uses))
    else:
        err().print(f"No artifacts in {markup(str(output_dir))} (--output-dir).")


def _stored(store: Store) -> list[tuple[str, str]]:
    """List the kinds of stage and the keys of all artifacts, the oldest of each kind first."""
    stored = [(stage, key) for stage in store.stages() for key in store.keys(stage)]
    return sorted(stored, key=lambda names: (names[0], last_change(store.artifacts.joinpath(*names, META)), names[1]))


def _row(store: Store, path: Path, uses: Mapping[str, Collection[str]]) -> dict[str, Any]:
    """Describe an artifact as a row of JSON; one whose metadata cannot be read is "damaged"."""
    stage, key, state = path.parent.name, path.stem, "unfinished" if path.suffix == ".partial" else "damaged"
    row: dict[str, Any] = {"stage": stage, "key": key, "label": stage, "method": None, "seed": None, "state": state}
    row |= {"created": None, "seconds": None, "bytes": tree_size(path), "path": str(path)}
    row["runs"] = [run for run, names in uses.items() if f"{stage}/{key}" in names]
    with suppress(StoreError):
        if state == "damaged" and (artifact := store.find(stage, key)):
            label, fields = artifact.meta["label"] or stage, artifact.key_fields
            method = str(fields["method"]["name"]) if stage == "train" else None  # other stages are shared by methods
            if stage in ("outputs", "evaluate"):
                method = label.removeprefix(f"{stage} ").partition(" ")[0]
            row |= {"label": label, "method": method, "seed": fields.get("seed")}
            row |= {"state": "finished", "created": artifact.meta["created"], "seconds": artifact.meta["seconds"]}
    return row


def _ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers shortly, as "1-3,5"."""
    grouped = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in grouped]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _show_list(rows: Sequence[Mapping[str, Any]], runs: Sequence[str]) -> None:
    from rich.filesize import decimal

    using = [run for run in runs if any(run in row["runs"] for row in rows)]
    numbers = {run: number for number, run in enumerate(using, start=1)}
    cells = []
    for row in rows:
        made = row["state"]
        if row["created"] is not None:
            made = time.strftime("%d %b %H:%M", time.localtime(row["created"]))
        used = _ranges([numbers[run] for run in row["runs"]]) or "none"
        seed = "" if row["seed"] is None else str(row["seed"])
        cells.append([row["label"], seed, row["key"], made, decimal(row["bytes"]), used])
    columns = {"stage": False, **dict.fromkeys(("seed", "key", "made", "size", "runs"), True)}
    print_table(out(), "", columns, cells)
    for run, number in numbers.items():
        out().print(f"run {number}: {run}", markup=False)


def gc(
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    yes: Annotated[bool, option("--yes", "Delete; without it, only show what would go.")] = False,
    unfinished: Annotated[bool, option("--unfinished", "Also what killed stages left to go on from.")] = False,
    days: Annotated[float, option("--days", "Spare what is younger: a run may still be using it.")] = 1.0,
    shared: Annotated[
        str | None, option("--store URL|DIR", "Instead, delete uploads to this shared store that were never finished.")
    ] = None,
) -> None:
    """Delete artifacts that no finished run uses. The ledger of paid answers is never touched."""
    if shared is not None:
        _delete_uploads(shared, yes, days)
        return
    store = _open(output_dir)
    newest, keep = time.time() - days * 86400, store.in_use()
    unused = [a for a in store.all() if a.name not in keep]
    going = [a.path for a in unused if a.meta["created"] <= newest]
    spared, open_ones = len(unused) - len(going), 0
    if unfinished:
        left = store.abandoned(time.time())
        old = store.abandoned(newest)
        going, spared = going + old, spared + len(left) - len(old)
    freed = sum(tree_size(path) for path in going)
    for path in going:
        out().print(str(path.relative_to(store.root)))
        if yes and path.suffix == ".partial":
            shutil.rmtree(path)
        elif yes:
            open_ones += not store.remove(path.parent.name, path.name)
    _show_freed(f"{len(going)} artifacts", freed, yes)
    if open_ones:
        out().print(f"{open_ones} of these are in use by an open run, and so not deleted: stop it, then repeat this.")
    if spared:
        out().print(f"{spared} that no run uses are spared: younger than {days:g} days (--days 0 takes them too).")


def _delete_uploads(url: str, yes: bool, days: float) -> None:
    if days * 86400 < SharedStore.abandoned_after:
        raise ConfigError([f"--days {days:g}: an upload to a shared store may still be going on within a day"])
    store = open_shared_store(url)
    going = store.abandoned(days * 86400)
    for upload in sorted(going):
        out().print(upload, markup=False)
        if yes:
            store.delete_upload(upload)
    _show_freed(f"{len(going)} uploads that were never finished", sum(going.values()), yes)


def _show_freed(what: str, freed: int, yes: bool) -> None:
    from rich.filesize import decimal

    out().print(f"{what}, {decimal(freed)} {'freed' if yes else 'could be freed (--yes deletes)'}.")


def why(
    key: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_artifacts, help="The key, or its first characters (`afarm artifacts list`)."
        ),
    ],
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
) -> None:
    """Show what an artifact was made from, and what sets it apart from its nearest relative."""
    from afarm.experiment.own_preferences import describe_pairs

    store = _open(output_dir)
    artifact = store.find(*_only(store, key))
    assert artifact is not None  # its key is stored
    label = artifact.meta["label"] or artifact.stage
    out().print(f"[bold]{markup(artifact.name)}[/] ({markup(label)}) was made from")
    for name, value in flatten(artifact.key_fields).items():
        out().print(f"  {name}: {value}", markup=False)
    if artifact.stage in ("preferences", "feedback"):
        out().print(describe_pairs(artifact.meta["summary"]), markup=False)
    runs = [run for run, names in store.uses().items() if artifact.name in names]
    out().print(f"Used by: {', '.join(runs) or 'no finished run'}", markup=False)
    for line in _relation(store, artifact, label):
        out().print(line, markup=False)


def _relation(store: Store, artifact: Artifact, label: str) -> Iterator[str]:
    """Say what sets an artifact apart from the nearest of its label, or else of its kind."""
    others = [other for other in store.of_stage(artifact.stage) if other.key != artifact.key]
    own = [other for other in others if other.meta["label"] == artifact.meta["label"]]
    relative = nearest(artifact.key_fields, own or others)
    if not own and (others or label != artifact.stage):
        yield f"It is the only artifact of {label!r}: there was none that it could have been reused for."
    if relative is None:
        if not others:
            yield f"There is no other artifact of the kind {artifact.stage!r} to compare it with."
        yield "It is reused whenever all of the above is the same."
        return
    other, differences = relative
    name = f"{other.name} ({other.meta['label'] or other.stage})"
    count = f"{len(differences)} difference{'s' if len(differences) > 1 else ''}"
    yield f"Its nearest relative is {name}, with {count} (there → here):"
    yield from (f"  {line}" for line in differences)


def verify(
    keys: Annotated[
        list[str] | None,
        typer.Argument(autocompletion=complete_artifacts, help="Keys, or their first characters; else all artifacts."),
    ] = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    remove: Annotated[bool, option("--remove", "Delete damaged ones: the next run makes them again.")] = False,
    as_json: Json = False,
) -> None:
    """Compare every byte of the artifacts with what was written, and name the damaged ones.

    Exits with 1 if a damaged one is left. A run makes the same check, but reads only files whose size or time changed.
    """
    store = _open(output_dir)
    wanted = [_only(store, key) for key in keys] if keys else _stored(store)
    rows: list[dict[str, Any]] = []
    for stage, key in ProgressBars(err())(wanted, "artifacts"):
        label, damages = store.inspect(stage, key)
        removed = bool(damages) and remove and store.remove(stage, key)
        rows.append({"stage": stage, "key": key, "label": label, "damages": damages, "removed": removed})
    damaged = [row for row in rows if row["damages"]]
    in_use = [row for row in damaged if remove and not row["removed"]]
    if as_json:
        print_json({"checked": len(rows), "damaged": damaged})
    else:
        for row in damaged:
            name = f"{row['stage']}/{row['key']}" + (f" ({row['label']})" if row["label"] else "")
            left = "; in use by an open run, and so not deleted" if row in in_use else ""
            out().print(f"{name}: {'; '.join(row['damages'])}{left}", markup=False)
        done = "none is damaged" if not damaged else f"{len(damaged)} damaged"
        done += ", deleted: the next run makes them again" if damaged and remove and not in_use else ""
        done += f", {len(damaged) - len(in_use)} deleted: stop the run, then repeat this" if in_use else ""
        done += " (--remove deletes them: the next run makes them again)" if damaged and not remove else ""
        out().print(f"{len(rows)} artifacts checked, {done}.")
    if damaged and (in_use or not remove):
        raise typer.Exit(1)


def _only(store: Store, key: str) -> tuple[str, str]:
    """Return stage and key of the only artifact whose key begins so. Raises `StoreError`."""
    stored, wanted = _stored(store), key.rpartition("/")[2]
    if not wanted:
        raise StoreError("name an artifact by its key, or its first characters: `afarm artifacts list` shows them")
    fitting = [(stage, other) for stage, other in stored if other.startswith(wanted)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise StoreError(f"{key!r} fits {', '.join('/'.join(names) for names in fitting)}: give more characters")
    near = get_close_matches(wanted, [other for _, other in stored], cutoff=0.7)
    meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    command = f"afarm artifacts list --output-dir {shlex.quote(str(store.root))}"
    raise StoreError(f"no artifact {key!r} in {store.root}.{meant} `{command}` shows what is there")
