"""`afarm annotators compare`: agreement, bias, variance, price and preferences of annotators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli.options import (
    DEFAULT_OUTPUT_DIR,
    LABELS,
    LABELS_HELP,
    Json,
    LedgerPlace,
    OutputDir,
    command_line,
    err,
    option,
    out,
    print_json,
    print_table,
    write_examples,
)

if TYPE_CHECKING:
    from afarm import AnnotatorReport, Estimate

WIDE = 4
"""Annotators up to which a matrix with errors fits a terminal."""


def add_commands(app: typer.Typer) -> None:
    """Add `compare` to the group `annotators`."""
    group = typer.Typer()
    group.command(
        "compare", epilog=write_examples("annotators compare", "labels.jsonl", "gpt4.json --humans people.json")
    )(compare_labels)
    app.add_typer(group, name="annotators")


def compare_labels(
    files: Annotated[
        list[Path], typer.Argument(help="Files with one row per label: preferences, annotations; .json, .jsonl, .gz.")
    ],
    humans: Annotated[
        list[str] | None, option("--humans NAME", "An annotator or a file whose labels are people's; repeatable.")
    ] = None,
    by_member: Annotated[bool, option("--by-member", "A pool's members apart.")] = False,
    by_file: Annotated[bool, option("--by-file", "Each file's labels are another annotator's.")] = False,
    family: Annotated[
        list[str] | None,
        option("--family NAME=FAMILY", "The model family of an annotator, judge or system; repeatable."),
    ] = None,
    scale: Annotated[str, option(LABELS, LABELS_HELP, None, False)] = "",
    html: Annotated[Path | None, option("--html", "Also write a page with plots here.")] = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    ledger: LedgerPlace = None,
    as_json: Json = False,
) -> None:
    """Compare annotators: agreement with people and each other, bias, variance, price, what they prefer."""
    from afarm import ConfigError, compare_annotators, read_labels, with_prices
    from afarm.results import open_ledger
    from afarm_plugins.studies.annotator_findings import write

    families = {name: of for name, _, of in (text.rpartition("=") for text in family or [])}
    if not all(name and of for name, of in families.items()):
        raise ConfigError([f"--family {' '.join(family or [])}: the form is NAME=FAMILY"])
    labels, place = read_labels(files, humans or [], by_member, by_file, scale), ledger or output_dir / "ledger.sqlite"
    if any(label.completion for given in labels.values() for label in given):
        with open_ledger(place) as opened:
            labels = with_prices(labels, opened.completions) if opened else labels
    comparison = compare_annotators(labels, families)
    if html is not None:
        write(comparison, command_line(), html)
    if as_json:
        agreement = [{"annotators": list(names), **asdict(share)} for names, share in comparison.matrix.items()]
        print_json({"annotators": list(map(asdict, comparison.profiles)), "agreement": agreement})
    else:
        _present(comparison)
    if html is not None:
        err().print(f"Plots: {html}", markup=False)


def _present(comparison: AnnotatorReport) -> None:
    from afarm_plugins.studies.annotator_findings import list_caveats

    profiles = comparison.profiles
    _print("Quality and price, ± standard error", profiles, preferences=False)
    _print("Share of choices for …", profiles, preferences=True)
    if comparison.matrix:
        _print_matrix(comparison)
    else:
        out().print("No pair has two labels, so neither variance nor mutual agreement can be known.", style="dim")
    if all(profile.agreement is None for profile in profiles):
        told = "No human labels here, so agreement with people and bias cannot be known: name them with --humans."
        out().print(told, style="dim")
    for note in list_caveats(comparison):
        out().print(note, style="dim", markup=False)


def _print(title: str, profiles: Sequence[Any], preferences: bool) -> None:
    """Print one row per annotator, without the columns that nobody has an estimate for."""
    from afarm.report import COLUMNS, PREFERENCES
    from afarm_plugins.studies.annotator_findings import HEADINGS

    known = [(name, places) for name, _, places in COLUMNS if any(getattr(profile, name) for profile in profiles)]
    shown = [(name, places) for name, places in known if (name in PREFERENCES) == preferences]
    if preferences and not shown:
        return
    headings = {"annotator": False, **dict.fromkeys(["pairs", "labels", *(HEADINGS[name] for name, _ in shown)], True)}
    rows = [
        [
            p.annotator,
            str(p.pairs),
            str(p.labels),
            *(estimate_text(getattr(p, n), f".{places}f") for n, places in shown),
        ]
        for p in profiles
    ]
    print_table(out(), title, headings, rows)


def _print_matrix(comparison: AnnotatorReport) -> None:
    """Print the matrix of mutual agreement, with errors and pairs if there is room for them."""
    names = [profile.annotator for profile in comparison.profiles]
    many = len(names) > WIDE
    rows = []
    for number, one in enumerate(names, start=1):
        figures = [comparison.agreement(one, other) for other in names]
        cells = [(f"{f.value:.0f}" if many else f"{estimate_text(f, '.1f')} ({f.n})") if f else "-" for f in figures]
        rows.append([f"{number} {one}" if many else one, *cells])
    headings = {"": False, **{str(number) if many else name: True for number, name in enumerate(names, start=1)}}
    title = "Agreement of one label with another, %" + ("" if many else " ± standard error (pairs)")
    print_table(out(), title, headings, rows)


def estimate_text(figure: Estimate | None, form: str) -> str:
    """Write a value with its error, a dash if there is none."""
    if figure is None:
        return "-"
    error = "" if figure.error is None else f" ±{figure.error:{form}}"
    return f"{figure.value:{form}}{error}"
