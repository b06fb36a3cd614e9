"""`afarm bundle` packs a run or a study; `afarm replay` makes its tables again, without a key."""

from __future__ import annotations

import os
import tempfile
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from afarm import DataError, did_you_mean
from afarm.cli.options import (
    DEFAULT_OUTPUT_DIR,
    Json,
    LedgerPlace,
    OutputDir,
    complete_runs,
    err,
    markup,
    option,
    out,
    print_json,
    write_examples,
)

ENDING = ".afarm.zip"

SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Parts of the names of environment variables whose values never go into a bundle."""


def add_commands(app: typer.Typer) -> None:
    app.command("bundle", epilog=write_examples("bundle", "toy-ppo-pool-seed42-a12a78", "sweep-1f02ab --out mine.zip"))(
        bundle
    )
    app.command("replay", epilog=write_examples("replay", "mine.afarm.zip", "mine.afarm.zip --into again"))(replay)


def bundle(
    name: Annotated[
        str, typer.Argument(autocompletion=complete_runs, help="A run or a study: its name, or its directory.")
    ],
    to: Annotated[Path | None, option("--out", "The file; NAME.afarm.zip here, if not given.", dir_okay=False)] = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    ledger: LedgerPlace = None,
    as_json: Json = False,
) -> None:
    """Pack a run or a study with its outputs, labels and answers, to be replayed without a key."""
    from afarm_plugins.bundles.archive import write_archive
    from afarm_plugins.bundles.packing import require_no_secret

    about, files = _contents(name, output_dir, ledger)
    secrets = [value for variable, value in os.environ.items() if any(part in variable.upper() for part in SECRET)]
    require_no_secret(files, secrets)
    path = to or Path(f"{about['name']}{ENDING}")
    draft = path.with_name(f"{path.name}.partial")
    try:
        write_archive(draft, {**about, "afarm": version("afarm")}, files)
        found, size = _replayed(draft, None), draft.stat().st_size
        if same := not _differs(found):
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    if as_json:
        print_json({"bundle": str(path), "bytes": size, "files": len(files), **_as_json(found)})
    elif same:
        out().print(f"Bundle: {path} ({size:,} bytes, {len(files)} files)", markup=False)
    if not same:
        raise DataError(
            f"nothing was written: a bundle of {about['name']} would not replay. If another afarm made it, or it was "
            "changed since, the command that made it writes its page afresh; then bundle again"
        )
    err().print(f"Replay it anywhere: afarm replay {path.name}")


def replay(
    file: Annotated[Path, typer.Argument(help="A bundle.", dir_okay=False)],
    into: Annotated[
        Path | None, option("--into", "An empty directory for all that is made again; kept.", file_okay=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Make labels, figures and tables of a bundle again from its answers; compare byte by byte."""
    if into is not None and into.exists() and any(into.iterdir()):
        raise DataError(f"{into} is not empty: name another directory with --into")
    found = _replayed(file, into)
    if as_json:
        print_json(_as_json(found))
    if _differs(found):
        raise typer.Exit(1)


def _contents(name: str, output_dir: Path, ledger: Any) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return what a bundle of a run or a study is about, and its files."""
    from afarm import read_run, run_directories
    from afarm.experiments import STUDY
    from afarm.results import RECORD, Ledger, Store, is_there
    from afarm_plugins.bundles.packing import pack_run, pack_study

    place = ledger or Store(output_dir).ledger_path
    places = [Path(name), output_dir / "runs" / name, output_dir / "studies" / name]
    with Ledger(place) if is_there(place) else nullcontext() as opened:
        for directory in places:
            if (directory / RECORD).is_file():
                record = read_run(directory)
                return {"kind": "run", "name": record.name}, pack_run(output_dir, record, opened)
            if (directory / STUDY).is_file():
                return {"kind": "study", "name": directory.name}, pack_study(output_dir, directory, opened)
    known = [path.name for path in run_directories(output_dir / "runs")]
    known += sorted(path.parent.name for path in (output_dir / "studies").glob(f"*/{STUDY}"))
    near = did_you_mean(name, known) or " `afarm run` and `afarm study` make one"
    raise DataError(f"no run and no study {name!r} in {output_dir} (--output-dir).{near}")


def _replayed(file: Path, into: Path | None) -> dict[str, str]:
    from afarm_plugins.bundles.archive import unpack_archive
    from afarm_plugins.bundles.replay import make_again

    with tempfile.TemporaryDirectory(prefix="afarm-replay-") as scratch:
        unpacked = Path(scratch) / "bundle"
        unpacked.mkdir()
        manifest = unpack_archive(file, unpacked)
        found = make_again(unpacked, into or Path(scratch) / "again")
        if not found:
            raise DataError(f"{file}: holds nothing that can be made again: {manifest.get('name')!r:.60}")
        return found


def _differs(found: dict[str, str]) -> bool:
    """Tell what is not the same, if anything is."""
    told = _as_json(found)
    for what, difference in told["differs"].items():
        err().print(f"[red]Not the same:[/] {markup(what)}: {markup(difference)}")
    for what in told["kept"]:
        err().print(f"Taken as they are, not made again: {markup(what)} (labels from files, or that need a model)")
    err().print(f"{len(told['same'])} of {len(found) - len(told['kept'])} made again byte for byte.")
    return bool(told["differs"])


def _as_json(found: dict[str, str]) -> dict[str, Any]:
    from afarm_plugins.bundles.replay import KEPT

    return {
        "same": [what for what, difference in found.items() if not difference],
        "kept": [what for what, difference in found.items() if difference == KEPT],
        "differs": {what: difference for what, difference in found.items() if difference not in ("", KEPT)},
    }
