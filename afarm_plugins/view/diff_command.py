"""`afarm diff`: the differences between two runs, and if a flip comes from the label or the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from afarm.cli.options import (
    DEFAULT_OUTPUT_DIR,
    Json,
    OutputDir,
    complete_runs,
    option,
    out,
    print_json,
    write_examples,
)

if TYPE_CHECKING:
    from afarm_plugins.view.run_diff import Diff

Run = Annotated[
    str, typer.Argument(autocompletion=complete_runs, help="A run by its name, first letters or directory.")
]

SAYS = {"label": "the label changed", "policy": "the policy changed", "reference": "the reference changed"}


def add_commands(app: typer.Typer) -> None:
    examples = "toy-ppo-pool-seed42-1a2b3c toy-dpo-pool-seed42-4d5e6f", "one/run.json other/run.json --flips 3"
    page = write_examples("diff", *examples)
    app.command("diff", epilog=page, no_args_is_help=True, rich_help_panel="The pipeline")(diff)


def diff(
    first: Run,
    second: Run,
    flips: Annotated[int, option("--flips", "Flipped instructions to list.", min=0)] = 10,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    as_json: Json = False,
) -> None:
    """Show what sets two runs apart: settings, versions, judging, figures, and flipped instructions."""
    from afarm.results import find_run
    from afarm_plugins.view.run_diff import diff_runs

    found = diff_runs(find_run(first, output_dir), find_run(second, output_dir))
    if as_json:
        print_json(found.to_row())
    else:
        _show(found, flips)


def _show(found: Diff, flips: int) -> None:
    from afarm.report import one_line

    def say(line: str) -> None:
        out().print(line, markup=False)

    say(f"{found.runs[0]} → {found.runs[1]}")
    for title, lines in (
        ("Settings", found.settings),
        ("Versions", found.versions),
        ("Stages made from something else", found.stages),
        ("Their win rates cannot be compared", found.incomparable),
    ):
        if lines:
            say("\n  ".join([f"\n{title}:", *lines]))
    if found.metrics:
        say("\nFigures:")
        for name, *figures in found.metrics:
            was, now = ("–" if value is None else f"{value:.4g}" for value in figures)
            say(f"  {name}: {was} → {now}")
    shared = f"{found.shared} with a usable label in both"
    if found.only_first or found.only_second:
        shared += f", {found.only_first} only in the first, {found.only_second} only in the second"
    if found.difference is not None:
        error = "" if found.standard_error is None else f" ± {found.standard_error:.2f}"
        shared += f"; paired difference {found.difference:+.2f}{error} points"
    say(f"\nInstructions: {shared}")
    for reason, part in found.contributions.items():
        if part.changed:
            say(f"  {SAYS[reason]}: {part.changed} instructions, {part.flips} flips, {part.points:+.2f} points")
    if not found.changes and found.shared:
        say("  nothing changed: the same outputs and labels")
    flipped = [change for change in found.changes if change.flip]
    for change in flipped[:flips]:
        was, now = (
            "unparsed" if win is None else "won" if win > 0.5 else "lost" if win < 0.5 else "drawn"
            for win in (change.before, change.now)
        )
        say(f"  {was} → {now} ({SAYS[change.reason]}): {one_line(change.instruction, 100)}")
    if len(flipped) > flips:
        say(f"  and {len(flipped) - flips} more (--flips {len(flipped)}, or --json)")
