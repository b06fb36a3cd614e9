"""`afarm best-of-n`: win rate, reward and KL bound of several n, from one run of the largest."""

# Annotations are evaluated here, by Typer.

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm import ConfigError
from afarm.cli.options import (
    DryRun,
    FarmOptions,
    command_line,
    err,
    option,
    out,
    print_json,
    warn_of_budget,
    with_options,
    write_examples,
)

if TYPE_CHECKING:
    from afarm import Farm

NUMBERS = [1, 4, 16, 64]


def add_commands(app: typer.Typer) -> None:
    examples = write_examples("best-of-n", "--n 1 --n 4", "--n 16 --seed 1")
    app.command("best-of-n", epilog=examples)(with_options(best_of_n, without={"method"}))


def best_of_n(
    n: Annotated[
        list[str] | None, option("--n", "An n to evaluate, or several with commas between; repeatable.")
    ] = None,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Evaluate best-of-n at several n, from one run of the largest (1, 4, 16, 64 unless --n is given)."""
    numbers = _numbers(n) if n else NUMBERS
    sampling = [*(options.settings or []), f"best_of_n.n={numbers[-1]}", "best_of_n.keep_scores=true"]
    options = replace(options, method="best_of_n", settings=sampling)
    if dry_run:
        options.show_plan(evaluations=len(numbers))
        return
    from afarm.experiments import GridProgress, plan_run
    from afarm.report import PAGE, ShownStudy, can_draw, write_study
    from afarm_plugins.best_of_n.curve import curve_findings

    with options.farm() as farm:
        workspace = farm.workspace
        warn_of_budget(workspace, lambda: plan_run(workspace, "best_of_n", len(numbers)))
        rows = []
        if not options.as_json:
            out().print(f"{'n':>5}  {'KL at most':>10}  {'reward':>7}  {'win rate':>16}")
        for row in curve(farm, numbers):
            rows.append(row)
            if not options.as_json:
                rate = f"{row['win_rate']:.1f} % ± {row['standard_error']:.1f}"
                out().print(f"{row['n']:>5}  {row['kl_bound']:>10.2f}  {row['reward']:>7.2f}  {rate:>16}")
        judges = {judge.identity for judge in workspace.judges.by_role.values() if judge.simulated}
        progress, formats = GridProgress((), simulated=judges), ("svg",) if can_draw() else ()
        name = f"best-of-n-{workspace.run_name()}"
        study = ShownStudy(name, command_line(), progress, curve_findings(rows), formats)
        page = write_study(options.output_dir / "studies" / name, study).with_name(PAGE)
        if options.as_json:
            print_json(rows)
        (err() if options.as_json else out()).print(f"Page: {page}", markup=False)


def _numbers(texts: list[str]) -> list[int]:
    """Read whole numbers from 1, also several with commas between. Raises `ConfigError`."""
    found = [part.strip() for text in texts for part in text.split(",")]
    if wrong := [part for part in found if not (part.isascii() and part.isdigit() and int(part))]:
        raise ConfigError(f"--n {wrong[0]!r}: whole numbers from 1, with commas between, such as --n 1,4,16")
    return sorted({int(part) for part in found})


def curve(farm: "Farm", numbers: list[int]) -> Iterator[dict[str, Any]]:
    """Yield for each n `n`, `kl_bound` (nats), `reward` (the mean of the winners'), and all metrics.

    All are compared with the starting policy's outputs, decoded as every system is.
    """
    from afarm import compare_outputs  # loads the whole experiment, which --help does without
    from afarm_plugins.best_of_n.subsets import best_of, kl_bound

    outputs, reference = farm.outputs("best_of_n"), farm.outputs(farm.workspace.start_name)
    for n in numbers:
        winners = best_of(outputs, n)
        result = compare_outputs(winners, reference, farm=farm)
        found = {k: v for _, evaluation in result.evaluations for k, v in evaluation.metrics.items()}
        reward = sum(row.details["score"] for row in winners) / len(winners)
        yield {**found, "n": n, "kl_bound": kl_bound(n), "reward": reward}
