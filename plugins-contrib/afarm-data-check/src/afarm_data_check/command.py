"""`afarm data check`: the screen, the JSON document, the cleaned file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli.options import (
    LABELS,
    LABELS_HELP,
    Json,
    err,
    markup,
    option,
    out,
    print_json,
    print_table,
    write_examples,
)

if TYPE_CHECKING:
    from afarm_data_check.checks import Checked

BY_DEFAULT = "both ways,near duplicates,evaluated,equal once cut"
FLIPPED = "likely flipped"
MOST_FEATURES = 5
CACHED = "datasets--tatsu-lab--alpaca_eval/snapshots/*/alpaca_eval.json"


def add_commands(app: typer.Typer) -> None:
    data = typer.Typer(help="Look at data before something is trained on it.", no_args_is_help=True)
    data.callback()(lambda: None)
    examples = write_examples(
        "data check",
        "mine.jsonl",
        "mine.jsonl --against text_davinci_003.json --write clean.jsonl",
        "hf:OWNER/NAME:train",
    )
    data.command("check", no_args_is_help=True, epilog=examples)(check)
    app.add_typer(data, name="data")


def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Preferences, in any form that --preferences reads.")],
    against: Annotated[
        list[str] | None,
        option("--against FILE", "Instructions that are evaluated on; repeatable.", None, "AlpacaEval's, if cached"),
    ] = None,
    cut: Annotated[
        int | None, option("--cut N", "Characters of an output that training keeps (a token has about four).", min=1)
    ] = None,
    write: Annotated[Path | None, option("--write CLEAN", "Write the rows that are left here, as JSON lines.")] = None,
    drop: Annotated[
        str, option("--drop NAMES", f"What --write leaves out, of the checks' names; '{FLIPPED}' only if it is named.")
    ] = BY_DEFAULT,
    labels: Annotated[str, option(LABELS, LABELS_HELP)] = "",
    as_json: Json = False,
) -> None:
    """Find duplicates, prompts evaluated on, labels that length explains, and flips in preferences."""
    from afarm import ConfigError
    from afarm_data_check.checks import check_rows

    names = [name.strip() for name in drop.split(",") if name.strip()]
    known = [*BY_DEFAULT.split(","), FLIPPED]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError([f"--drop {name!r} is no check: choose from {', '.join(known)}" for name in unknown])
    if write and write.exists() and write.samefile(file):
        raise ConfigError([f"--write {write}: that is the file that is checked, draws and all: name another"])
    checked = check_rows(file, _files(against), cut, labels)
    dropped = choose(checked, names)
    if write:
        write_clean(checked, dropped, write)
    if as_json:
        print_json(as_document(checked, dropped))
    else:
        show(file, checked, against)
    if write:
        left, gone = len(checked.rows) - len(dropped), f"{beside(write)}: the {len(dropped):,} dropped, with why"
        screen = err() if as_json else out()
        screen.print(markup(f"\n{write}: {left:,} rows; {gone}. Broken rows, draws and unlabelled pairs: in neither."))


def _files(against: Sequence[str] | None) -> list[str]:
    """The files of instructions that are evaluated on; without any, AlpacaEval's in the cache of the Hub."""
    import os

    if against:
        return list(against)
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return [str(path) for path in sorted(cache.glob(CACHED))[:1]]


def choose(checked: Checked, names: Sequence[str]) -> dict[int, str]:
    """The rows to drop, by place, with why."""
    dropped: dict[int, str] = {}
    for found in checked.findings:
        name = "evaluated" if found.name.startswith("in ") else found.name
        for place in found.drop if name in names else ():
            dropped.setdefault(place, found.name if name != "evaluated" else f"evaluated on: {found.name}")
    return dropped


def beside(write: Path) -> Path:
    return write.with_name(f"{write.stem}.dropped.jsonl")


def write_clean(checked: Checked, dropped: Mapping[int, str], write: Path) -> None:
    """Write the rows that are left, and those that are not beside them with their places and why."""
    from afarm import write_rows

    write_rows(write, (row.raw for place, row in enumerate(checked.rows) if place not in dropped))
    gone = ({"place": checked.rows[p].place, "why": why, "row": checked.rows[p].raw} for p, why in dropped.items())
    write_rows(beside(write), gone)


def as_document(checked: Checked, dropped: Mapping[int, str]) -> dict[str, Any]:
    flips = checked.flips
    found = {f.name: {"rows": f.count, "places": [checked.rows[p].place for p in f.drop]} for f in checked.findings}
    model = flips and {
        **{name: getattr(flips, name) for name in ("accuracy", "planted", "recall", "false_alarms", "precision")}
    }
    return {
        "pairs": len(checked.rows),
        "draws": checked.drawn,
        "findings": found,
        "explained_by": [asdict(one) for one in checked.told],
        "flips": model,
        "dropped": len(dropped),
    }


def show(file: str, checked: Checked, against: Sequence[str] | None) -> None:
    from afarm_data_check.checks import describe
    from afarm_data_check.flips import FEWEST

    screen = out()
    drawn = f", {checked.drawn:,} draws or pairs without a label" if checked.drawn else ""
    screen.print(markup(f"{file}: {len(checked.rows):,} pairs{drawn}"))
    rows = [[f.name, f"{f.count:,}", f.says] for f in checked.findings]
    print_table(screen, "", {"check": False, "found": True, "": False}, rows)
    for found in checked.findings:
        for example in found.examples:
            screen.print(markup(f"  {found.name}: {example}"))
    if not any(f.name.startswith("in ") for f in checked.findings):
        screen.print("Prompts were held against nothing that is evaluated on: name a file with --against FILE.")
    screen.print("\nWhat explains the labels without reading them (95% interval; half is nothing):")
    for one in checked.told[: 1 + MOST_FEATURES]:
        screen.print(markup(f"  {describe(one)}" if one.n else f"  {one.feature}: no pair differs"))
    if flips := checked.flips:
        told = f"it has {flips.accuracy:.0%} of these labels right"
        planted = f"Of {flips.planted} labels that were flipped on purpose it found {flips.recall:.0%}"
        screen.print(
            f"\nLikely flips are told by a logistic regression on words and length, out of fold: {told}. {planted}, "
            f"and suspected {flips.false_alarms:.1%} of the others: if 5% of labels were flipped, at least "
            f"{flips.precision:.0%} of its suspects would be."
        )
    else:
        screen.print(f"\nLikely flips: {FEWEST} pairs are needed to fit a model.")
