"""`afarm diff`: the differences between two runs, and if a flip comes from the label or the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from afarm.cli.completion import complete_runs
from afarm.cli.console import out, print_json
from afarm.cli.shared_options import DEFAULT_OUTPUT_DIR, Json, OutputDir, write_examples

if TYPE_CHECKING:
    from afarm.evaluation.run_diff import Diff

Run = Annotated[
    str, typer.Argument(autocompletion=complete_runs, help="A run by its name, its directory or its run.json.")
]

SAYS = {"label": "the label changed", "policy": "the policy changed", "reference": "the reference changed"}


def add_commands(app: typer.Typer) -> None:
    app.command(
        "diff",
        no_args_is_help=True,
        epilog=write_examples(
            "diff", "toy-ppo-pool-seed42-1a2b3c toy-dpo-pool-seed42-4d5e6f", "one/run.json other/run.json --flips 3"
        ),
    )(diff)


def diff(
    first: Run,
    second: Run,
    flips: Annotated[int, typer.Option("--flips", min=0, help="Flipped instructions to list.")] = 10,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    as_json: Json = False,
) -> None:
    """Show what sets two runs apart: settings, versions, judging, figures, and flipped instructions."""
    from afarm.evaluation.run_diff import diff_runs
    from afarm.storage.runs import find_run

    found = diff_runs(find_run(first, output_dir), find_run(second, output_dir))
    if as_json:
        print_json(found.to_row())
        return
    _show(found, flips)


def _show(found: Diff, flips: int) -> None:
    def say(line: str = "") -> None:
        out().print(line, soft_wrap=True, highlight=False, markup=False)

    say(f"{found.runs[0]} → {found.runs[1]}")
    for title, lines in (
        ("Settings", found.settings),
        ("Versions", found.versions),
        ("Stages made from something else", found.stages),
        ("Their win rates cannot be compared", found.incomparable),
    ):
        if lines:
            say(f"\n{title}:")
            for line in lines:
                say(f"  {line}")
    if found.metrics:
        say("\nFigures:")
        for name, was, now in found.metrics:
            say(f"  {name}: {_figure(was)} → {_figure(now)}")
    say(f"\nInstructions: {_counted(found)}")
    for reason, part in found.contributions.items():
        if part.changed:
            say(f"  {SAYS[reason]}: {part.changed} instructions, {part.flips} flips, {part.points:+.2f} points")
    if not found.changes and found.shared:
        say("  nothing changed: the same outputs and labels")
    flipped = [change for change in found.changes if change.flip]
    for change in flipped[:flips]:
        said = " ".join(change.instruction.split())
        say(f"  {_outcome(change.before)} → {_outcome(change.now)} ({SAYS[change.reason]}): {_short(said)}")
    if len(flipped) > flips:
        say(f"  and {len(flipped) - flips} more (--flips {len(flipped)}, or --json)")


def _counted(found: Diff) -> str:
    text = f"{found.shared} with a usable label in both"
    if found.only_first or found.only_second:
        text += f", {found.only_first} only in the first, {found.only_second} only in the second"
    if found.difference is not None:
        error = "" if found.standard_error is None else f" ± {found.standard_error:.2f}"
        text += f"; paired difference {found.difference:+.2f}{error} points"
    return text


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _outcome(win: float | None) -> str:
    return "unparsed" if win is None else "won" if win > 0.5 else "lost" if win < 0.5 else "drawn"


def _short(text: str, width: int = 100) -> str:
    from afarm.storage.text import one_line

    return one_line(text, width)
