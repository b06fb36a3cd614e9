"""`afarm regressions`: what got worse while the mean got better, of stored runs."""

# Annotations are evaluated here, by Typer.

from typing import Annotated

import typer

from afarm.cli.options import (
    DEFAULT_OUTPUT_DIR,
    Json,
    OutputDir,
    complete_runs,
    option,
    out,
    print_json,
    print_table,
    write_examples,
)


def add_commands(app: typer.Typer) -> None:
    examples = write_examples("regressions", "RUN", "RUN RUN RUN --categories FILE", "RUN --json")
    app.command("regressions", epilog=examples)(regressions)


def regressions(
    runs: Annotated[
        list[str],
        typer.Argument(
            autocompletion=complete_runs,
            help="A run by its name, first letters or directory; or several of one system, of other seeds.",
            metavar="RUN",
        ),
    ],
    categories: Annotated[
        str,
        option("--categories FILE", "A file with the category of each prompt, instead of data sets.", default=False),
    ] = "",
    limit: Annotated[int, option("--limit N", "Lost instructions to show; --json has all.", min=0)] = 20,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    as_json: Json = False,
) -> None:
    """List categories and instructions where a policy lost to its reference, though the mean may have risen."""
    from afarm.results import open_run
    from afarm_neighbours.regressions import find_regressions, read_categories, show_rate, show_task

    opened = [open_run(run, output_dir) for run in runs]
    found = find_regressions(opened, read_categories(categories) if categories else None)
    if as_json:
        print_json(found.to_row())
        return
    for sentence in found.sentences():
        out().print(sentence, markup=False)
    columns = {"category": False, "instructions": True, "won": True, "lost": True, "win rate, %": True, "q": True}
    rows = [[t.name, str(t.count), str(t.won), str(t.lost), show_rate(t), f"{t.q:.2g}"] for t in found.categories]
    if rows:
        print_table(out(), f"By category, judged by {found.judged_by}", columns, rows)
    if shown := found.lost[:limit]:
        cells = [
            [f"{one.tally.lost} of {one.tally.count}", one.category, *map(_short, (show_task(one.instruction), *texts))]
            for one in shown
            for texts in [(one.reference_output, one.output)]
        ]
        heads = {"lost": True, "category": False, "instruction": False, found.reference: False, found.system: False}
        print_table(out(), f"Lost instructions, {len(shown)} of {len(found.lost)}", heads, cells)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"
