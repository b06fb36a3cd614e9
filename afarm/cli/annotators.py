"""`afarm annotators compare`: agreement, bias, variance, price and preferences of annotators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afarm.cli.command_list import OWN
from afarm.cli.console import err, out, print_json
from afarm.cli.shared_options import DEFAULT_OUTPUT_DIR, Json, LedgerPlace, OutputDir, write_examples
from afarm.core.errors import ConfigError
from afarm.storage.text import markup, one_line

if TYPE_CHECKING:
    from rich.table import Table

    from afarm.evaluation.agreement import AnnotatorReport, Profile
    from afarm.evaluation.labels import Label
    from afarm.evaluation.metrics import Estimate

Column = tuple[str, "Callable[[Profile], Estimate | None]", str]
"""Heading, the estimate, and the format of its value and error."""

QUALITY: tuple[Column, ...] = (
    ("agreement %", lambda p: p.agreement, ".1f"),
    ("bias %", lambda p: p.bias, ".1f"),
    ("variance %", lambda p: p.variance, ".1f"),
    ("unparsed %", lambda p: p.unparsed, ".1f"),
    ("$ per 1,000", lambda p: p.price, ".2f"),
    ("s per 1,000", lambda p: p.seconds, ".0f"),
    ("Spearman", lambda p: p.spearman, ".2f"),
    ("Pearson", lambda p: p.pearson, ".2f"),
)
PREFERENCES: tuple[Column, ...] = (
    ("longer", lambda p: p.prefers_longer, ".2f"),
    ("lists", lambda p: p.prefers_lists, ".2f"),
    ("output_1", lambda p: p.prefers_first, ".2f"),
    ("first shown", lambda p: p.prefers_first_shown, ".2f"),
    ("own family", lambda p: p.prefers_own_family, ".2f"),
)


WIDE = 4
"""Annotators up to which a matrix with errors fits a terminal."""


def add_commands(app: typer.Typer) -> None:
    group = typer.Typer(help=OWN["annotators"].summary)
    group.command(
        "compare", epilog=write_examples("annotators compare", "labels.jsonl", "gpt4.json --humans people.json")
    )(compare_labels)
    app.add_typer(group, name="annotators")


def compare_labels(
    files: Annotated[
        list[Path], typer.Argument(help="Files with one row per label: preferences, annotations; .json, .jsonl, .gz.")
    ],
    humans: Annotated[
        list[str] | None,
        typer.Option("--humans", help="An annotator or a file whose labels are people's; repeatable.", metavar="NAME"),
    ] = None,
    by_member: Annotated[bool, typer.Option("--by-member", help="A pool's members apart.")] = False,
    by_file: Annotated[bool, typer.Option("--by-file", help="Each file's labels are another annotator's.")] = False,
    family: Annotated[
        list[str] | None,
        typer.Option(
            "--family", help="The model family of an annotator, judge or system; repeatable.", metavar="NAME=FAMILY"
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            "--labels",
            help="The labels in files for the first output, the second and a draw, if not 1,2,0: 0,1, or A,B,tie.",
            metavar="FIRST,SECOND[,DRAW]",
            show_default=False,
        ),
    ] = "",
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page with plots here.")] = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    ledger: LedgerPlace = None,
    as_json: Json = False,
) -> None:
    """Compare annotators: agreement with people and each other, bias, variance, price, what they prefer."""
    from afarm.evaluation.agreement import compare_annotators
    from afarm.evaluation.labels import read_labels

    families = _families(family or [])
    labels = read_labels(files, humans or [], by_member, by_file, scale)
    comparison = compare_annotators(_with_prices(labels, ledger or output_dir / "ledger.sqlite"), families)
    if html is not None:
        from afarm.report.annotators_page import write

        write(comparison, [str(file) for file in files], html)
    if as_json:
        print_json(comparison.to_json())
    else:
        _present(comparison)
    if html is not None:
        err().print(f"Plots: {html}", highlight=False, markup=False, soft_wrap=True)


def _families(given: Sequence[str]) -> dict[str, str]:
    """Parse --family options. Raises `ConfigError` for one that is not NAME=FAMILY."""
    named = [text.rpartition("=") for text in given]
    wrong = [f"--family {''.join(parts)}: the form is NAME=FAMILY" for parts in named if not parts[0] or not parts[2]]
    if wrong:
        raise ConfigError(wrong)
    return {name: family for name, _, family in named}


def _with_prices(labels: dict[str, list[Label]], place: Path | str) -> dict[str, list[Label]]:
    """Add prices from the ledger at `place` to afarm's own labels."""
    from afarm.evaluation.labels import with_prices
    from afarm.judging.database import is_there
    from afarm.judging.ledger import Ledger

    if not any(label.completion for given in labels.values() for label in given) or not is_there(place):
        return labels
    with Ledger(place) as ledger:
        return with_prices(labels, ledger.completions)


def _present(comparison: AnnotatorReport) -> None:
    profiles = comparison.profiles
    out().print(_table("Quality and price, ± standard error", QUALITY, profiles))
    if any(figure(profile) for profile in profiles for _, figure, _ in PREFERENCES):
        out().print(_table("Share of choices for …", PREFERENCES, profiles))
    if comparison.matrix:
        out().print(_matrix(comparison))
    else:
        out().print("No pair has two labels, so neither variance nor mutual agreement can be known.", style="dim")
    if all(profile.agreement is None for profile in profiles):
        out().print(
            "No human labels here, so agreement with people and bias cannot be known: name them with --humans.",
            style="dim",
        )
    for note in comparison.notes():
        out().print(markup(note), style="dim")


def _table(title: str, columns: Sequence[Column], profiles: Sequence[Profile]) -> Table:
    """One row per annotator, without the columns that nobody has an estimate for."""
    shown = [column for column in columns if any(column[1](profile) for profile in profiles)]
    table = _empty(title, ["annotator", "pairs", "labels", *(heading for heading, _, _ in shown)])
    for profile in profiles:
        figures = [estimate_text(figure(profile), form) for _, figure, form in shown]
        table.add_row(markup(one_line(profile.annotator)), str(profile.pairs), str(profile.labels), *figures)
    return table


def _matrix(comparison: AnnotatorReport) -> Table:
    """The matrix of mutual agreement, with errors and pairs if there is room for them."""
    names = [profile.annotator for profile in comparison.profiles]
    many = len(names) > WIDE
    title = "Agreement of one label with another, %" + ("" if many else " ± standard error (pairs)")
    headings = (
        [str(number) for number in range(1, len(names) + 1)] if many else [markup(one_line(name)) for name in names]
    )
    table = _empty(title, ["", *headings])
    table.padding = (0, 1 if many else 2, 0, 0)
    for number, one in enumerate(names, start=1):
        figures = [comparison.agreement(one, other) for other in names]
        cells = [(f"{f.value:.0f}" if many else f"{estimate_text(f, '.1f')} ({f.n})") if f else "-" for f in figures]
        table.add_row(f"{number} {markup(one_line(one))}" if many else markup(one_line(one)), *cells)
    return table


def _empty(title: str, headings: Sequence[str]) -> Table:
    from rich.table import Column, Table

    columns = [Column(heading, justify="right" if i else "left", overflow="fold") for i, heading in enumerate(headings)]
    return Table(*columns, title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))


def estimate_text(figure: Estimate | None, form: str) -> str:
    """Write a value with its error, a dash if there is none."""
    if figure is None:
        return "-"
    error = "" if figure.error is None else f" ±{figure.error:{form}}"
    return f"{figure.value:{form}}{error}"
