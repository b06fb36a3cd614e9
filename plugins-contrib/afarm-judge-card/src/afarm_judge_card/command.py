"""`afarm judge card`: a judge's habits, what moves it, what it agrees with, and its price."""

# Annotations are evaluated here: Typer reads them.

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from afarm import ConfigError
from afarm.cli.options import (
    DryRun,
    FarmOptions,
    complete_recipes,
    option,
    out,
    print_json,
    print_table,
    show_plan,
    with_options,
    write_examples,
)

if TYPE_CHECKING:
    from afarm.experiments import Workspace
    from afarm_judge_card.card import Card

DEFAULT_ANNOTATOR = "chatgpt_2"
"""One pair a prompt, reasons before the verdict, and no log-probabilities needed."""

HIDDEN = (
    *("method", "annotator", "both_orders", "votes", "vote", "label_noise", "judge", "reward_model", "recipe"),
    *("model", "dataset", "data", "preferences", "on_unusable", "eval_set", "accelerate_config", "store", "labels"),
)
"""Options of farms that measure nothing here, or that this command has in a form of its own."""


def add_commands(app: typer.Typer) -> None:
    group = typer.Typer()
    examples = write_examples(
        "judge card",
        "openai:gpt-4o --budget 2 --dry-run",
        "openai:gpt-4o --annotator gpt4_4 --budget 2",
        "--annotator fitted",
    )
    group.command("card", epilog=examples)(with_options(card, without=HIDDEN))
    app.add_typer(group, name="judge")


def card(
    judges: Annotated[
        list[str] | None,
        typer.Argument(
            help="The judge, as NAME:MODEL. Further ones as ROLE=NAME:MODEL, if the annotator asks several.",
            metavar="[JUDGE]",
        ),
    ] = None,
    annotator: Annotated[
        str | None,
        option("--annotator NAME", "Who asks the judge, or judges itself.", "annotators", f"{DEFAULT_ANNOTATOR}"),
    ] = None,
    limit: Annotated[
        int | None,
        option("--limit N", "Measure on the first N of the 100 pairs: cheaper, and less sure.", None, "all", min=2),
    ] = None,
    recipe: Annotated[
        str, option("--recipe NAME|FILE", "The recipe of the judge's settings.", complete_recipes)
    ] = "outputs",
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Make a judge's card: its habits, what moves it, what it agrees with, and its price."""
    from afarm.experiments import judging_checks
    from afarm_judge_card.ask import ask_all
    from afarm_judge_card.card import measure
    from afarm_judge_card.kept import keep_card
    from afarm_judge_card.pairs import read_items

    name = require_named(judges or [], annotator)
    settings = [f"evaluate.annotator={json.dumps(name)}", *(options.settings or [])]
    given = replace(options, recipe=recipe, judge=judges or None, settings=settings)
    items = read_items(limit)
    if dry_run:
        with given.dry_run(judging_checks()) as workspace:
            _show_plan(workspace, name, items, options.as_json)
        return
    with given.judging_workspace() as workspace:
        with workspace.judges.client.charge_run(_account(workspace, name)):
            answers = ask_all(workspace, name, items)
        if judges and not answers.judges:
            raise ConfigError(
                [f"--annotator {name} asks no judge, so {judges[0]} was not measured: leave one of both out"]
            )
        made = measure(workspace, name, items, answers)
    page = keep_card(made, options.output_dir)
    if options.as_json:
        print_json({**made.to_row(), "page": str(page)})
    else:
        _show(made, str(page))


def require_named(judges: Sequence[str], annotator: str | None) -> str:
    """Return the annotator to measure. Raises `ConfigError` if nobody or more than one judge is named."""
    measured = [judge for judge in judges if "=" not in judge.partition(":")[0]]
    if len(measured) > 1:
        raise ConfigError([f"a card is of one judge, and these are {len(measured)}: make one card after another"])
    if not judges and annotator is None:
        raise ConfigError(
            ["no judge to measure: name one, as `afarm judge card openai:gpt-4o`, or --annotator fitted (no call, $0)"]
        )
    return annotator or DEFAULT_ANNOTATOR


def _account(workspace: "Workspace", name: str) -> str:
    """Name the account of a card's answers, and of its budget: a killed command goes on with it."""
    asked = sorted({judge.identity for judge in workspace.judges.answering([name]).values()})
    return "-".join(["judge-card", name, *asked])


def _show_plan(workspace: "Workspace", name: str, items: "Sequence[object]", as_json: bool) -> None:
    from afarm.experiments import PlannedStage, estimates, reading_client
    from afarm_judge_card.ask import plan_all

    client = reading_client(workspace, workspace.judges.by_role)
    requests = plan_all(workspace, name, items, client)  # type: ignore[arg-type]
    planned = [PlannedStage("card", name, False, "", estimates(client, [requests]))]
    show_plan(workspace, "", as_json, planned=planned, step="judge card")


def _show(made: "Card", page: str) -> None:
    from afarm_judge_card.kept import cells, sentences, title

    rows = [[figure.says, *cells(figure)] for figure in made.figures]
    print_table(out(), title(made), {"the judge": False, "%": True, "of": True, "beside": False}, rows)
    for line in sentences(made):
        out().print(line, markup=False)
    out().print(f"Kept: {page}", markup=False, soft_wrap=True)
