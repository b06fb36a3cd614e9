"""`afarm inspect read` and `afarm inspect write`."""

# Annotations are evaluated here: Typer reads them.

from pathlib import Path
from typing import Annotated

import typer

from afarm.cli.options import (
    DEFAULT_OUTPUT_DIR,
    Json,
    LedgerPlace,
    OutputDir,
    complete_runs,
    err,
    markup,
    option,
    out,
    print_json,
    print_table,
    write_examples,
)

POLICIES = ["error", "drop"]


def add_commands(app: typer.Typer) -> None:
    group = typer.Typer(help="Read logs of Inspect, and write evaluations as such.", no_args_is_help=True)
    group.callback()(lambda: None)
    reading = write_examples(
        "inspect read",
        "logs/LOG.eval -o mine.jsonl",
        "logs/LOG.eval -o mine.jsonl --epoch 1 --on-unusable drop",
        "logs/LOG.eval -o verdicts.jsonl --scorer model_graded_qa",
    )
    group.command("read", no_args_is_help=True, epilog=reading)(read)
    writing = write_examples("inspect write", "evaluate-mine-vs-theirs", "RUN RUN --log-dir logs")
    group.command("write", no_args_is_help=True, epilog=writing)(write)
    app.add_typer(group, name="inspect")


def read(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A log of Inspect, .eval or .json.")],
    into: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The rows are written here, as JSON lines.")
    ],
    epoch: Annotated[int | None, option("--epoch N", "The epoch to read.", None, "the only one", min=1)] = None,
    name: Annotated[str | None, option("--name NAME", "What the system is called.", None, "the log's model")] = None,
    scorer: Annotated[
        str | None,
        option("--scorer NAME", "Write this scorer's verdicts on output and target, as stored annotations."),
    ] = None,
    on_unusable: Annotated[
        str, option("--on-unusable POLICY", "Samples that have no output to judge: error, or drop.", POLICIES)
    ] = "error",
    as_json: Json = False,
) -> None:
    """Read a log's outputs into a file that `afarm evaluate` takes."""
    from afarm import ConfigError, write_rows
    from afarm_inspect.samples import Found, choose_epoch, make_rows, read_header

    if on_unusable not in POLICIES:
        raise ConfigError([f"--on-unusable {on_unusable!r} is no policy: choose from {', '.join(POLICIES)}"])
    if into.suffix != ".jsonl":
        raise ConfigError(
            [f"--output {into}: rows are written as JSON lines: name it {into.with_suffix('.jsonl').name}"]
        )
    if into.exists():
        raise ConfigError([f"--output {into}: is there already; delete it, or name another file"])
    header = read_header(log)
    chosen = choose_epoch(header, epoch, log)
    system = name or header.eval.model
    found = Found()
    write_rows(into, make_rows(log, header, chosen, system, scorer, on_unusable == "drop", found))
    notes = [*found.problems, *found.notes]
    if as_json:
        print_json({"file": str(into), "system": system, "rows": found.rows, "notes": notes})
        return
    for note in notes:
        err().print(f"[yellow]{markup(note)}[/]")
    what = f"verdicts of {scorer} on {system}" if scorer else f"outputs of {system}"
    given = f"--annotations {into}" if scorer else f"{into} --reference FILE --judge NAME"
    out().print(markup(f"{into}: {found.rows:,} {what}\nNext: afarm evaluate {given}"))


def write(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Finished runs, by name or directory.", autocompletion=complete_runs),
    ],
    log_dir: Annotated[Path, option("--log-dir DIR", "The folder that logs are written to.")] = Path("logs"),
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    ledger: LedgerPlace = None,
    as_json: Json = False,
) -> None:
    """Write the evaluations of runs as logs of Inspect, one for each system and reference."""
    from afarm.results import open_run
    from afarm_inspect.logs import read_answers, read_evaluations, read_figures, to_log, write_log

    rows = []
    for name in runs:
        run = open_run(name, output_dir, ledger)
        for evaluation in read_evaluations(run):
            answers = read_answers(run, evaluation.judgements)
            if not answers and any(judged.preference.completion for judged in evaluation.judgements):
                lacks = f"{run.ledger} has no answer of this run: its log lacks the judge's words, tokens and prices"
                err().print(f"[yellow]{markup(f'{run.name}: {lacks}')}[/]")
            made = to_log(run, evaluation, answers)
            place = {"log": str(write_log(made, log_dir)), "run": run.name}
            compared = {"system": evaluation.system, "reference": evaluation.reference, "samples": len(made.samples)}
            rows.append({**place, **compared, **read_figures(made)})
    if as_json:
        print_json(rows)
        return
    columns = {"system": False, "reference": False, "samples": True, "mean": True, "stderr": True}
    print_table(out(), "Logs of Inspect", columns, [[_cell(row.get(name)) for name in columns] for row in rows])
    for row in rows:
        out().print(markup(str(row["log"])), soft_wrap=True)
    out().print(markup(f"Look: inspect view --log-dir {log_dir}"))


def _cell(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)
