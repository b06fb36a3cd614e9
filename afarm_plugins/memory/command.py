"""`afarm memory`: the memory of each stage of a run on a card, by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from afarm.cli.options import (
    DEFAULT_RECIPE,
    RECIPE_HELP,
    Json,
    complete_recipes,
    markup,
    option,
    out,
    print_json,
    write_examples,
)


def add_commands(app: typer.Typer) -> None:
    app.command(
        "memory",
        epilog=write_examples(
            "memory", "--recipe paper --gpus 8", "--recipe paper --set ppo.lora={} --set backend.dtype=bfloat16"
        ),
    )(memory)


def memory(
    recipe: Annotated[str, option("--recipe", RECIPE_HELP, complete_recipes)] = DEFAULT_RECIPE,
    method: Annotated[str | None, option("--method", "The method, if not the recipe's.", "methods")] = None,
    model: Annotated[str | None, option("--model", "The base model, if not the recipe's.")] = None,
    settings: Annotated[list[str] | None, option("--set", "Change a setting: SECTION.NAME=VALUE; repeatable.")] = None,
    gpus: Annotated[int, option("--gpus", "Processes with a card each; several shard all.", min=1)] = 1,
    card: Annotated[float, option("--card", "Gigabytes of a card.", min=0.1)] = 80,
    offload: Annotated[bool, option("--offload", "Shards wait on the host, as with fsdp2_offload.")] = False,
    as_json: Json = False,
) -> None:
    """Show what each stage of a run holds on a card, by arithmetic, and what to change if it does not fit.

    With `--offload` also what each process has on the host. Exits with 1 if a stage does not fit.
    """
    from afarm.experiments import discover
    from afarm_plugins.memory.advice import changes_that_help
    from afarm_plugins.memory.estimate import PARTS
    from afarm_plugins.memory.stages import GB, Choices

    given: list[Any] = [{name: value for name, value in (("method", method), ("model", model)) if value}]
    choices = Choices(recipe, (*given, *(settings or [])), gpus, discover(), offload)
    resolved, rows = choices.settled(), []
    for stage in choices.stages():
        fullest = stage.fullest()
        fits = fullest.total <= card * GB
        change = "" if fits else changes_that_help(stage, fullest, resolved.run.backend, choices, card * GB)
        rows.append(
            {"stage": stage.label, "moment": fullest.moment, **{name: getattr(fullest, name) for name in PARTS}}
            | {"total": fullest.total, "host": fullest.host, "fits": fits, "change": change}
        )
    if as_json:
        print_json(rows)
    else:
        out().print(
            f"[bold]{resolved.recipe}[/] on {gpus} × {card:g} GB, {resolved.run.model}, {resolved.run.backend.dtype}: "
            f"GB on each card at the fullest moment, {'and of each process on the host, ' * offload}by arithmetic",
        )
        _print_table(rows, [*PARTS, "total", *["host"] * offload])
        if offload:
            most = max(row["host"] for row in rows)
            said = f"{gpus} processes on one machine: up to {gpus * most / GB:,.0f} GB on its host, beside mapped files"
            out().print(said)
    if not all(row["fits"] for row in rows):
        raise typer.Exit(1)


def _print_table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    from afarm_plugins.memory.stages import GB

    wide = max(len(f"{row['stage']} ({row['moment']})") for row in rows)
    out().print(" " * wide + "".join(f"{name:>12}" for name in names))
    for row in rows:
        figures = "".join(f"{row[name] / GB:12.1f}" for name in names)
        verdict = "" if row["fits"] else f"  [red]does not fit[/]: {markup(row['change'])}"
        out().print(f"{row['stage']} ({row['moment']})".ljust(wide) + figures + verdict)
