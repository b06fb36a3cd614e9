"""`afarm interchange export` and `afarm interchange read`."""

# Annotations are evaluated here: Typer reads them.

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from afarm import ConfigError, DataError, read_user_text
from afarm.cli.options import (
    DEFAULT_OUTPUT_DIR,
    Json,
    OutputDir,
    complete_runs,
    err,
    option,
    out,
    print_json,
    print_table,
    write_examples,
)
from afarm.results import WIN_RATE, json_text

Format = Literal["eee", "hub", "rewardbench"]
SAMPLES = "_samples.jsonl"
OWN_COLUMNS = ("system", "standard_error")
"""Columns of a board that are no figures."""
FORMULAS = ("=", "+", "-", "@", "'")
"""How cells begin that a spreadsheet would run."""


def add_commands(app: typer.Typer) -> None:
    group = typer.Typer(help="Write results for other tools, and read theirs.", no_args_is_help=True)
    exporting = write_examples(
        "interchange export",
        "toy-dpo-pool-seed42-1a2b3c records/ --to eee --model-id me/policy --organization me",
        "toy-dpo-pool-seed42-1a2b3c policy/ --to hub --dataset tatsu-lab/alpaca_eval --task default",
        "bench.json results/ --to rewardbench --model-id me/reward-model",
    )
    reading = write_examples(
        "interchange read", "data/*/*/*/*.json --board theirs.csv", "UUID_samples.jsonl --outputs theirs.jsonl"
    )
    group.command("export", epilog=exporting)(export)
    group.command("read", epilog=reading)(read)
    app.add_typer(group, name="interchange")


def export(
    source: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_runs,
            help="A run by its name or directory, a board (`afarm leaderboard --output board.json`), or measured "
            "judges (`afarm judge bench … --output bench.json`).",
            metavar="SOURCE",
        ),
    ],
    directory: Annotated[Path, typer.Argument(help="Where the files go; none is overwritten.", metavar="DIR")],
    form: Annotated[
        Format,
        option(
            "--to eee|hub|rewardbench",
            "eee: Every Eval Ever's records; hub: .eval_results of a model's repository; rewardbench: results of "
            "measured judges.",
        ),
    ],
    model_id: Annotated[
        list[str] | None,
        option("--model-id [SYSTEM=]OWNER/NAME", "The model's name on the Hub, if its own is none; repeatable."),
    ] = None,
    owner: Annotated[str, option("--owner OWNER", "The owner of all systems whose names have none.", None, False)] = "",
    organization: Annotated[
        str, option("--organization NAME", "With eee: who evaluated, a person or an organization.", None, False)
    ] = "",
    relationship: Annotated[
        str,
        option(
            "--relationship WORD",
            "With eee: the evaluator and the model's maker: first_party, third_party, collaborative or other.",
            None,
            "first_party for the policy of a run, else other",
        ),
    ] = "",
    collection: Annotated[
        str, option("--collection NAME", "With eee: the folder of the evaluation.", None, "afarm-DATA")
    ] = "",
    dataset: Annotated[
        str, option("--dataset OWNER/NAME", "The evaluated data set on the Hub; hub needs it.", None, False)
    ] = "",
    task: Annotated[
        str, option("--task ID", "With hub: the task, as the data set's eval.yaml calls it.", None, False)
    ] = "",
    figure: Annotated[
        str | None, option("--figure NAME", "With hub: the figure that is the value.", None, "the first")
    ] = None,
    source_url: Annotated[
        str, option("--source-url URL", "With hub: where the evaluation can be looked up.", None, False)
    ] = "",
    board: Annotated[
        int | None, option("--board N", "Of a file with several boards, this one, from 1.", None, False, min=1)
    ] = None,
    figures_only: Annotated[
        bool, option("--figures-only", "With eee: leave out prompts, outputs and judgements.")
    ] = False,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    as_json: Json = False,
) -> None:
    """Write a run's, a board's or measured judges' results in another tool's form."""
    from dataclasses import replace

    from afarm_interchange import eval_results, every_eval_ever, reward_bench
    from afarm_interchange.places import as_part, is_part, model_ids, require_repository, write_files
    from afarm_interchange.sources import read_source

    by_form: dict[str, dict[str, object]] = {
        "eee": {"organization": organization, "relationship": relationship, "collection": collection},
        "hub": {"task": task, "figure": figure, "source-url": source_url},
        "eee and hub": {"dataset": dataset},
    }
    by_form["eee"]["figures-only"] = figures_only
    if astray := [
        f"--{name}: goes with --to {forms}, not {form}"
        for forms, given in by_form.items()
        for name, value in given.items()
        if value and form not in forms
    ]:
        raise ConfigError(astray)
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory} is a file: name a directory")
    systems = read_source(source, output_dir, board, samples=form == "eee" and not figures_only)
    if dataset:
        require_repository(dataset, "--dataset")
        systems = [replace(one, data=dataset, repository=dataset) for one in systems]
    names = [one.name for one in systems]
    files: dict[Path, str] = {}
    if form == "eee":
        if not organization.strip():
            raise ConfigError(
                ["--organization: say who evaluated, a person or an organization; the schema asks for it"]
            )
        chosen = relationship or ("first_party" if systems[0].trained_here else "other")
        if chosen not in every_eval_ever.RELATIONSHIPS:
            raise ConfigError([f"--relationship {chosen}: choose from {', '.join(every_eval_ever.RELATIONSHIPS)}"])
        folder = collection or every_eval_ever.collection_of(systems)
        if not is_part(folder):
            raise ConfigError([f"--collection {folder!r}: must be a folder's name: letters, digits, '-', '_' and '.'"])
        ids = model_ids(names, model_id or (), owner)
        records = every_eval_ever.records(systems, ids, organization.strip(), chosen, folder)
        files = {directory / place: text for place, text in records.items()}
    elif form == "hub":
        if not dataset or not task:
            raise ConfigError(
                [
                    "--to hub needs --dataset OWNER/NAME, a benchmark on the Hub, and --task ID, a task of its "
                    "eval.yaml: the Hub shows results on such data sets alone"
                ]
            )
        name = as_part(f"afarm-{dataset.partition('/')[2]}-{task}")
        several = model_ids(names, model_id or (), owner) if len(systems) > 1 else {}
        for one in systems:
            text = eval_results.entry_text(one, eval_results.choose_figure(one, figure), dataset, task, source_url)
            files[directory / several.get(one.name, "") / eval_results.FOLDER / f"{name}.yaml"] = text
    else:
        ids = model_ids(names, model_id or (), owner)
        for one in systems:
            made = reward_bench.files_of(one, ids[one.name])
            files |= {directory / place: text for place, text in made.items()}
    written = [str(path) for path in write_files(files)]
    if as_json:
        print_json({"source": source, "format": form, "files": written})
        return
    for place in written:
        out().print(place, markup=False)


def read(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Every Eval Ever's records or samples, .eval_results/*.yaml, or RewardBench's results.", metavar="FILE"
        ),
    ],
    board: Annotated[
        Path | None,
        option("--board FILE", "Write the figures of all files as a table that `afarm leaderboard` reads (.csv)."),
    ] = None,
    outputs: Annotated[
        Path | None,
        option("--outputs FILE", "Write the outputs of a file of samples, for `afarm evaluate` (.jsonl)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what files of other tools say; write them as a board, or as outputs."""
    from afarm_interchange.every_eval_ever import read_outputs
    from afarm_interchange.places import write_files

    samples = [path for path in files if path.name.endswith(SAMPLES)]
    if outputs is not None and len(samples) != 1:
        raise ConfigError([f"--outputs {outputs}: name one file of samples (UUID{SAMPLES}), not {len(samples)}"])
    if samples and outputs is None:
        raise ConfigError([f"{samples[0]}: holds samples: say where their outputs go by --outputs FILE"])
    shown: list[dict[str, Any]] = []
    for path in files:
        if path not in samples:
            shown += read_one(path)
    made: dict[Path, str] = {}
    repeats = 0
    if outputs is not None:
        rows, repeats = read_outputs(samples[0])
        made[outputs] = "".join(json_text(row) + "\n" for row in rows)
    if board is not None:
        made[board] = as_board(shown, board)
    written = [str(path) for path in write_files(made)]
    if as_json:
        print_json({"results": shown, "files": written, "repeats": repeats})
        return
    if shown:
        columns = list(dict.fromkeys(name for row in shown for name, value in row.items() if _cell(value)))
        right = {name: isinstance(shown[0].get(name), float) for name in columns}
        print_table(out(), "", right, [[_cell(row.get(name)) for name in columns] for row in shown])
    for place in written:
        err().print(f"Written to {place}", markup=False)
    if repeats:
        err().print(f"{repeats} outputs were there twice, with the same sample_id and prompt: written once")


def read_one(path: Path) -> list[dict[str, Any]]:
    """Return the results that a file of another tool holds. Raises `DataError` if it is of none."""
    from afarm_interchange import eval_results, every_eval_ever, reward_bench

    if path.suffix in (".yaml", ".yml"):
        return list(eval_results.read_entries(path))
    try:
        text = read_user_text(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: no UTF-8 text: {error}") from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON: {error}") from error
    if every_eval_ever.is_record(document):
        return list(every_eval_ever.read_figures(document, str(path)))
    if reward_bench.is_results(document):
        return list(reward_bench.read_figures(document, str(path)))
    raise DataError(
        f"{path}: is none of the known files: Every Eval Ever's records (evaluation_results, model_info), "
        "RewardBench's results (model, chat_template, shares), the Hub's .eval_results/*.yaml"
    )


def as_board(rows: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Write figures as a table: a row for each system, a column for each figure. Raises `DataError`."""
    if path.suffix != ".csv":
        raise ConfigError([f"--board {path}: must be a file in .csv, which `afarm leaderboard` reads"])
    known = [row for row in rows if "system" in row]
    if not known:
        raise DataError("--board: these files name no systems; Every Eval Ever's records and RewardBench's results do")
    evaluations = {row["evaluation"] for row in known}
    table: dict[str, dict[str, object]] = {}
    for row in known:
        column = row["metric"]
        if len(evaluations) > 1 or column in OWN_COLUMNS:
            column = f"{row['evaluation'] or 'figure'}: {column}"
        cells = table.setdefault(row["system"], {"system": _inert(row["system"])})
        if column in cells and cells[column] != row["value"]:
            raise DataError(
                f"{row['system']} has two values of {column!r}, {cells[column]:g} and {row['value']:g}: read the files "
                "of one evaluation at a time"
            )
        cells[column] = row["value"]
        if column == WIN_RATE and row.get("error") is not None:
            cells["standard_error"] = row["error"]
    columns = list(dict.fromkeys(name for cells in table.values() for name in cells))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_inert(name) for name in columns])
    writer.writerows([[cells.get(name, "") for name in columns] for cells in table.values()])
    return text.getvalue()


def _inert(text: str) -> str:
    """Write a name as a cell that no spreadsheet runs."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return f"'{shown}" if shown.startswith(FORMULAS) else shown


def _cell(value: object) -> str:
    return "" if value is None or value is False else f"{value:g}" if isinstance(value, float | int) else str(value)
