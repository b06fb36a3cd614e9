"""`afarm cost`, and what `--dry-run` shows: what a run would do and buy, from its real prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from afarm.cli.console import out
from afarm.cli.options import FarmOptions, with_options

if TYPE_CHECKING:
    from afarm.pipeline import Farm
    from afarm.plan import PlannedStage


def add_to(app: typer.Typer) -> None:
    app.command("cost")(cost)


@with_options
def cost(options: FarmOptions) -> None:
    """Estimate what the judges of a run would cost, and send nothing."""
    with options.only_look() as farm:
        show_plan(farm, farm.config.method, options.as_json, all_stages=False)


def show_plan(
    farm: Farm, method: str, as_json: bool, all_stages: bool = True, planned: Sequence[PlannedStage] | None = None
) -> None:
    """The stages of a run, or those `planned`, and what each judge would be asked; without `all_stages`, only those
    that ask."""
    from afarm.plan import by_judge, plan

    planned = plan(farm, method) if planned is None else planned
    if as_json:
        sys.stdout.write(json.dumps(_as_json(method, planned)) + "\n")
        return
    if all_stages:
        _show_stages(farm, method, planned)
    if any(stage.judges for stage in planned):
        _show_judges(planned)
    totals = by_judge(planned)
    calls = sum(total.calls for total in totals)
    expected, most = (sum(x or 0.0 for x in (getattr(t, name) for t in totals)) for name in ("dollars", "most_dollars"))
    unknown = [total.judge for total in totals if total.most_dollars is None]
    plus = f", plus the calls of {' and '.join(unknown)}, whose price is unknown (--price)" if unknown else ""
    out().print(
        f"About {calls:,} judge calls: ${expected:.2f} expected, at most ${most:.2f}{plus}. Nothing was sent.",
        highlight=False,
        soft_wrap=True,
    )


def _as_json(method: str, planned: Sequence[PlannedStage]) -> dict[str, object]:
    from afarm.plan import by_judge

    stages = [{**asdict(stage), "calls": stage.calls, "dollars": stage.dollars} for stage in planned]
    return {"method": method, "stages": stages, "judges": [asdict(total) for total in by_judge(planned)]}


def _show_stages(farm: Farm, method: str, planned: Sequence[PlannedStage]) -> None:
    from rich.table import Table

    table = Table(title=f"Plan: {farm.settings.recipe} · {method} (nothing is run)", title_justify="left")
    for column in ("stage", "do", "judge calls", "at most", "why"):
        table.add_column(column, justify="right" if column in ("judge calls", "at most") else "left")
    for p in planned:
        price = _dollars(p.dollars)
        asks = p.calls > 0
        table.add_row(
            p.label, "reuse" if p.reused else "run", str(p.calls) if asks else "", price if asks else "", p.why
        )
    out().print(table)


def _show_judges(planned: Sequence[PlannedStage]) -> None:
    from rich import box
    from rich.table import Table

    from afarm.plan import by_judge

    table = Table(title="Judges", title_justify="left", box=box.SIMPLE)
    for column in ("stage", "judge"):
        table.add_column(column, overflow="fold")
    for column in ("calls", "tokens in", "out", "at most", "dollars", "at most"):
        table.add_column(column, justify="right")
    rows = [(stage.label, estimate) for stage in planned for estimate in stage.judges]
    totals = by_judge(planned)
    if len(rows) > len(totals):
        rows += [("all", total) for total in totals]
    for label, e in rows:
        tokens = (f"{e.calls:,}", f"{e.input_tokens:,}", f"{e.output_tokens:,}", f"{e.most_output_tokens:,}")
        table.add_row(label, e.judge, *tokens, _dollars(e.dollars), _dollars(e.most_dollars))
    out().print(table)


def _dollars(amount: float | None) -> str:
    return "unknown" if amount is None else f"${amount:.2f}"
