"""`afarm alpaca-eval`: one's own model, or its outputs, beside AlpacaEval's published board."""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from afarm import ConfigError, DataError, compare_outputs, read_user_text
from afarm.cli.options import (
    DEFAULT_RECIPE,
    DryRun,
    FarmOptions,
    err,
    markup,
    option,
    out,
    print_json,
    print_table,
    record_run,
    with_options,
    write_examples,
)

HUB = "tatsu-lab/alpaca_eval"
BESIDE = 3
"""Published models shown above and below."""
LC, WIN, ERROR = "length_controlled_winrate", "win_rate", "standard_error"


class Edition(NamedTuple):
    """An edition of AlpacaEval: its reference's name, its file on the Hub, and who judged its board."""

    reference: str
    file: str
    folder: str
    judged_by: str


EDITIONS = {
    1: Edition("text_davinci_003", "alpaca_eval.json", "data_AlpacaEval", "alpaca_eval_gpt4"),
    2: Edition(
        "gpt4_1106_preview",
        "alpaca_eval_gpt4_baseline.json",
        "data_AlpacaEval_2",
        "weighted_alpaca_eval_gpt4_turbo",
    ),
}


def add_commands(app: typer.Typer) -> None:
    examples = write_examples(
        "alpaca-eval", "--model ORG/NAME --judge openai:gpt-4o", "--outputs mine.json --judge openai:gpt-4o --budget 10"
    )
    app.command("alpaca-eval", no_args_is_help=True, epilog=examples)(alpaca_eval)


@with_options
def alpaca_eval(
    outputs: Annotated[Path | None, option("--outputs FILE", "A model's outputs, in place of --model.")] = None,
    edition: Annotated[int, option("--edition", "AlpacaEval 1 or 2: the reference and the board.", min=1, max=2)] = 2,
    reference: Annotated[
        Path | None, option("--reference FILE", "The instructions with the reference's outputs.", None, "looked for")
    ] = None,
    board: Annotated[Path | None, option("--board FILE", "The published board.", None, "the package's")] = None,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Put a model on AlpacaEval's board: its win rates beside the published ones."""
    started, published = time.time(), EDITIONS[edition]
    if (outputs is None) == (options.model is None):
        raise ConfigError(["name the model (--model ID) or a file of its outputs (--outputs FILE), and not both"])
    if outputs and dry_run:
        raise ConfigError([f"--dry-run of a file: afarm evaluate {outputs} --reference FILE --judge … --dry-run"])
    against = reference or find_reference(published)
    rows, place = read_board(board, published)
    annotator = options.annotator or default_annotator(published)
    options = replace(options, annotator=None)
    if outputs:
        given = {"evaluate": {"evaluators": ["win_rate", "length_controlled"]}}
        result = compare_outputs(
            outputs,
            against,
            annotator=annotator,
            settings=[given, options.as_recipe()],
            output_dir=options.output_dir,
            ledger=options.ledger,
        )
        metrics: dict[str, Any] = {n: value for _, made in result.evaluations for n, value in made.metrics.items()}
        document: dict[str, Any] = {"judged_by": result.judged_by, "flags": [*result.flags], "metrics": metrics}
        name = result.system
    else:
        recipe = "alpaca-eval" if options.recipe in (None, DEFAULT_RECIPE) else options.recipe
        settings = [f"evaluate.annotator={annotator}", *(options.settings or [])]
        options = replace(options, recipe=recipe, eval_set=options.eval_set or str(against), settings=settings)
        if dry_run:
            options.show_plan()
            return
        with options.farm() as farm:
            record, report = record_run(farm, farm.workspace.config.method, started)
        metrics = {name: value for row in record["results"] for name, value in row["metrics"].items()}
        name, document = str(options.model), {**record, "metrics": metrics, "report": str(report)}
    if options.as_json:
        print_json({**document, "board": rows})
    screen = err() if options.as_json else out()
    show(name, metrics, rows, screen)
    screen.print(markup("\n".join(say_how(published, annotator, document, place))))


def find_reference(edition: Edition) -> Path:
    """Find the reference's outputs in the cache of the Hub. Raises `DataError` that says how to get them."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    files = sorted(cache.glob(f"datasets--{HUB.replace('/', '--')}/snapshots/*/{edition.file}"))
    if not files:
        raise DataError(
            f"the 805 instructions with the outputs of {edition.reference} are not in {cache}: fetch them with\n  hf "
            f"download {HUB} {edition.file} --repo-type dataset\nor name a file that has them: --reference FILE"
        )
    return files[-1]


def installed() -> Path | None:
    """Return the folder of the package alpaca-eval, None without. It is read, never imported."""
    package = importlib.util.find_spec("alpaca_eval")
    roots = package.submodule_search_locations if package else None
    return Path(next(iter(roots))) if roots else None


def default_annotator(edition: Edition) -> str:
    """The edition's own annotator if the package alpaca-eval is installed, else GPT-4's of AlpacaFarm."""
    root = installed()
    own = root is not None and (root / "evaluators_configs" / edition.judged_by).is_dir()
    return f"alpaca_eval:{edition.judged_by}" if own else "gpt4_4"


def read_board(board: Path | None, edition: Edition) -> tuple[dict[str, dict[str, float]], str]:
    """Return the published figures by model, and their file; none without a file and without the package."""
    if board is None and (root := installed()) is not None:
        board = root / "leaderboards" / edition.folder / f"{edition.judged_by}_leaderboard.csv"
    if board is None:
        return {}, ""
    rows = list(csv.DictReader(io.StringIO(read_user_text(board))))
    if not rows or not {"", WIN, LC} <= rows[0].keys():
        raise DataError(f"{board}: is no board of AlpacaEval, which has the columns '' (the model), {WIN} and {LC}")
    names = (WIN, ERROR, LC, "avg_length")
    try:
        return {row[""]: {name: float(row[name]) for name in names if row.get(name)} for row in rows}, str(board)
    except ValueError as error:
        raise DataError(f"{board}: a figure is no number: {error}") from error


def show(name: str, metrics: dict[str, Any], rows: dict[str, dict[str, float]], screen: Any) -> None:
    """Print the model between its neighbours on the board, by the length-controlled win rate."""
    mine = f"{name} (yours)"
    by = LC if metrics.get(LC) is not None else WIN
    every = {**{model: row for model, row in rows.items() if by in row}, mine: metrics}
    ranked = sorted(every, key=lambda model: -float(every[model][by]))
    place = ranked.index(mine)
    shown = ranked[max(0, place - BESIDE) : place + BESIDE + 1]
    figures = [[f"{every[m][f]:.2f}" if every[m].get(f) is not None else "" for f in (LC, WIN, ERROR)] for m in shown]
    lines = [
        [str(1 + ranked.index(model)) if rows else "", model, *row] for model, row in zip(shown, figures, strict=True)
    ]
    print_table(
        screen, "", {"": True, "model": False, "LC win rate": True, "win rate": True, "standard error": True}, lines
    )


def say_how(edition: Edition, annotator: str, document: dict[str, Any], place: str) -> list[str]:
    """Say who judged, against whom, if the board's figures are comparable, and what makes them doubtful."""
    lines = [f"Percent against {edition.reference}, judged by {document['judged_by']}."]
    if not place:
        lines.append("No published board here: pip install alpaca-eval brings it (it is only read), or --board FILE.")
    elif annotator.partition(":")[2] != edition.judged_by:
        lines.append(
            f"The board is {edition.judged_by}'s: another prompt, so its figures only show about where you are."
        )
    else:
        lines.append(
            f"The board is {edition.judged_by}'s, by gpt-4-1106-preview or gpt-4: another judge moves figures."
        )
    lines += map(str, document.get("flags") or ())
    return [*lines, f"Report: {document['report']}"] if "report" in document else lines
