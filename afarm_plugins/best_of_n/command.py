"""`afarm best-of-n`: the win rate, the reward and the KL bound of several n, from one run of the largest."""

# Annotations are evaluated here, by Typer.

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from afarm import Farm

NUMBERS = [1, 4, 16, 64]


def add_to(app: typer.Typer) -> None:
    app.command("best-of-n")(best_of_n)


def best_of_n(
    n: Annotated[list[int] | None, typer.Option("--n", min=1, help="An n to evaluate; repeatable.")] = None,
    recipe: Annotated[
        str, typer.Option("--recipe", help="A recipe by name (`afarm recipes`), or a YAML file.")
    ] = "toy",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting, as section.name=value; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    output_dir: Annotated[Path, typer.Option("--output-dir", help="Where everything is kept.")] = Path("afarm-runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each n.")] = False,
) -> None:
    """Evaluate best-of-n at several n, from one run of the largest (1, 4, 16 and 64 unless --n says otherwise)."""
    from afarm import Farm

    numbers = sorted(set(n or NUMBERS))
    sampling = {"best_of_n": {"n": numbers[-1], "keep_scores": True}}
    with Farm(
        recipe,
        settings=[*(settings or []), sampling],
        method="best_of_n",
        output_dir=output_dir,
        tell=lambda text: typer.echo(text, err=True),
        on_stage=lambda label, run: typer.echo(f"{label} …", err=True) if run is None else None,
    ) as farm:
        if not as_json:
            typer.echo(f"{'n':>5}  {'KL at most':>10}  {'reward':>7}  {'win rate':>16}")
        for row in curve(farm, numbers):
            typer.echo(json.dumps(row) if as_json else line(row))
            sys.stdout.flush()


def curve(farm: "Farm", numbers: list[int]) -> Iterator[dict[str, Any]]:
    """For each n: `n`, `kl_bound` (nats), `reward` (the mean of the winners'), and what the evaluators find.

    All are compared with the starting policy's outputs, decoded as every system is.
    """
    from afarm_plugins.best_of_n.smaller import best_of, kl_bound

    outputs, reference = farm.outputs("best_of_n"), farm.outputs(farm.start_name)
    for n in numbers:
        winners = best_of(outputs, n)
        result = farm.compare(winners, reference)
        found = {k: v for _, evaluation in result.evaluations for k, v in evaluation.metrics.items()}
        reward = sum(row.details["score"] for row in winners) / len(winners)
        yield {**found, "n": n, "kl_bound": kl_bound(n), "reward": reward}


def line(row: dict[str, Any]) -> str:
    rate = f"{row['win_rate']:.1f} % ± {row['standard_error']:.1f}"
    return f"{row['n']:>5}  {row['kl_bound']:>10.2f}  {row['reward']:>7.2f}  {rate:>16}"
