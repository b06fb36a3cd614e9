"""`afarm leaderboard`: systems from runs, boards and annotations, beside comparable ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from afarm.cli.console import console_on, err, out, write_document
from afarm.cli.shared_options import DEFAULT_OUTPUT_DIR, Json, OutputDir, option
from afarm.core.errors import ConfigError, DataError, StoreError
from afarm.storage.disk import write_whole
from afarm.storage.rows import why_no_file
from afarm.storage.text import markup, one_line

if TYPE_CHECKING:
    from rich.console import Console

    from afarm.evaluation.boards import Leaderboard
    from afarm.evaluation.boards.correlation import Agreement


Format = Literal["terminal", "markdown", "csv", "json", "html"]

DIFFERENT_BOARDS = "Win rates of different boards cannot be compared."

SUFFIXES: Mapping[str, Format] = {".md": "markdown", ".csv": "csv", ".json": "json", ".html": "html"}


Evaluators = Annotated[
    list[str] | None,
    option("--evaluator", "Also the figures of this evaluator, from judgements; repeatable.", "evaluators"),
]
Orders = Annotated[
    list[str] | None,
    option(
        "--order-by FIGURE",
        "The figure to rank and correlate by: length_controlled, an evaluator's, a table's column; "
        "repeatable: a board goes by the first it has. By bradley_terry or elo, annotations make one board of all "
        "that met.",
        "evaluators",
    ),
]


def with_evaluators(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command an option for each evaluator that takes a spec.

    `--people FILE` is `--evaluator people:FILE`. One that is called like an option of the command's own, or like
    another package's, is found by `--evaluator` alone.
    """
    from afarm.core.plugins import discover

    hints, registry = get_type_hints(command, include_extras=True), discover(check_configs=False).registry
    own = inspect.signature(command).parameters.values()
    parameters = {p.name: p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in own}
    brought = {c.name.replace("-", "_"): c for c in registry if c.kind == "evaluators" and c.spec}
    brought = {p: c for p, c in brought.items() if p not in parameters and c.name in registry.list_names(c)}
    for name, component in brought.items():
        about = option(f"--{component.name} {component.spec}", component.summary, rich_help_panel="By plugins")
        annotation = Annotated[list[str] | None, about]
        parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def call(**given: Any) -> None:
        added = [f"{c.name}:{spec}" for name, c in brought.items() for spec in given.pop(name) or ()]
        command(**{**given, "evaluator": [*(given["evaluator"] or ()), *added]})

    call.__doc__ = command.__doc__
    call.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: p.annotation for name, p in parameters.items()}
    return call


def leaderboard(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="Directories of runs, boards (.json), AlpacaEval leaderboards (.csv), annotations, or `paper`; "
            "unless any is named, the runs of --output-dir.",
            metavar="SOURCE",
        ),
    ] = None,
    annotations: Annotated[
        list[str] | None, option("--annotations", "A file of stored annotations; repeatable.")
    ] = None,
    ranks: Annotated[
        bool, option("--ranks", "Read the judgements of runs as well: ranks with intervals, differences.")
    ] = False,
    evaluator: Evaluators = None,
    settings: Annotated[list[str] | None, option("--set NAME=VALUE", "An evaluator's setting; repeatable.")] = None,
    order_by: Orders = None,
    correlate: Annotated[
        bool, option("--correlate", "How far each two boards agree on the systems that both have.")
    ] = False,
    chosen: Annotated[
        Format | None, option("--format", "What to print or write; unless it is given, what --output ends in.")
    ] = None,
    output: Annotated[
        Path | None, option("--output", "Write it here instead: a file in .md, .csv, .json or .html.")
    ] = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    as_json: Json = False,
) -> None:
    """Show all evaluated systems, in one board for each way of judging them."""
    from afarm.evaluation.boards import read_boards
    from afarm.evaluation.boards.correlation import agreements
    from afarm.evaluation.boards.ranking import with_ranks
    from afarm.evaluation.boards.sources import REFERENCE_BOARDS

    form = _format("json" if as_json and chosen is None else chosen, output)
    problems = {
        "--format html makes a page: --output FILE says where": form == "html" and output is None,
        f"--json and --format {form}: choose one": as_json and form != "json",
        "--correlate: a table of CSV has no place for correlations; --format json has": correlate and form == "csv",
    }
    if any(problems.values()):
        raise ConfigError([problem for problem, is_there in problems.items() if is_there])
    if not (sources or annotations or output_dir.is_dir()):
        raise StoreError(f"{output_dir} does not exist: name the directory of your runs with --output-dir, or sources")
    given = sources or ([] if annotations else [str(output_dir)])
    for source in given:
        if not Path(source).exists() and source not in REFERENCE_BOARDS:
            raise DataError(
                f"{source}: no such file: name a directory of runs, which `afarm run` and `afarm evaluate` make, a "
                f"board, a file of annotations, or {' or '.join(REFERENCE_BOARDS)}"
            )
    named = {name.partition(":")[0]: name for name in evaluator or ()}  # --people FILE --order-by people
    order_by = [named.get(name, name) for name in order_by or ()]
    sections = _sections(settings or [], [*(evaluator or []), *order_by])
    boards, left_out = read_boards(given, annotations or [], order_by, evaluator or (), sections)
    if not boards:
        raise DataError(_why_no_board(given, left_out))
    for number, board in enumerate(boards):
        if ranks or correlate or board.wins is not None:
            boards[number], said = with_ranks(board)
            left_out += said
    boards, lacking = _with_figures(boards, evaluator or [], order_by, [*given, *(annotations or [])], sections)
    left_out += lacking
    found = list(agreements(boards)) if correlate else []
    if correlate and not found:
        raise DataError("no two of these boards have three systems of the same name: there is nothing to correlate")
    if form == "terminal":
        _show(boards, found, ranks)
    elif output is None:
        write_document(_written(boards, left_out, found, form))
    else:
        write_whole(output, _written(boards, left_out, found, form), "choose another --output")
        err().print(f"Written to {output}", markup=False)
    if form != "json":  # it holds them
        for line in left_out:
            err().print(f"[yellow]Left out:[/] {markup(line)}")


def _why_no_board(sources: Sequence[str], left_out: Sequence[str]) -> str:
    for directory in map(Path, sources):
        if directory.is_dir() and not (directory / "runs").is_dir():
            return f"{directory}: is {why_no_file(directory, 'annotation')}"
    return "\n".join([f"{', '.join(sources)}: no run with a win rate; `afarm run` makes one", *left_out])


def _format(chosen: Format | None, output: Path | None) -> Format:
    """Choose the format. Raises `ConfigError` if the name of the file does not say what to write."""
    if output is None or chosen not in (None, "terminal"):
        return chosen or "terminal"
    form = None if chosen else SUFFIXES.get(output.suffix.lower())
    if form is None:
        raise ConfigError([f"--output {output}: say what to write with --format markdown, csv, json or html"])
    return form


def _sections(settings: Sequence[str], evaluators: Sequence[str]) -> dict[str, Any]:
    """Read settings by evaluator. Raises `ConfigError` for one of an evaluator that is not asked for."""
    from afarm.experiment.recipe import merge, parse_override

    sections: dict[str, Any] = {}
    names = {name.partition(":")[0].rpartition("/")[2] for name in evaluators}
    for text in settings:
        read = parse_override(text)
        if not (read.keys() <= names and all(isinstance(value, Mapping) for value in read.values())):
            known = ", ".join(sorted(names)) or "none, --evaluator NAME does"
            raise ConfigError([f"--set {text}: give NAME.SETTING=VALUE of an evaluator asked for here: {known}"])
        sections = merge(sections, read)
    return sections


def _with_figures(
    boards: list[Leaderboard],
    evaluators: Sequence[str],
    orders: Sequence[str],
    sources: Sequence[str],
    sections: Mapping[str, Any],
) -> tuple[list[Leaderboard], list[str]]:
    """Add evaluators' figures, order the boards, and say which lack one. Raises `DataError` if all do."""
    from afarm.evaluation.boards.ranking import evaluated, looks_at_all_systems, stored_rows
    from afarm.evaluation.boards.sources import holds_annotations, in_order

    names = [*evaluators, *(name for name in orders if not _has(boards, name) and looks_at_all_systems(name))]
    anew = any(name in sections and not looks_at_all_systems(name) for name in names)  # a run stored its own settings'
    complete = [not anew and all(_has([board], name) for name in names) for board in boards]
    files = [Path(source) for source in dict.fromkeys(sources) if holds_annotations(Path(source))] if names else []
    found, lacking = [], []
    with TemporaryDirectory() as directory:
        stored = {} if all(complete) else stored_rows(files, Path(directory))
        for board, is_complete in zip(boards, complete, strict=True):
            try:
                found.append(board if is_complete else evaluated(board, names, stored, sections))
            except DataError as error:
                lacking.append(str(error))
                found.append(board)
    if len(lacking) == len(boards):
        raise DataError("\n".join(lacking))
    return in_order(found, orders) if orders else found, lacking


def _has(boards: Sequence[Leaderboard], figure: str) -> bool:
    return any(entry.figure(figure) is not None for board in boards for entry in board.entries)


def _written(boards: Sequence[Leaderboard], left_out: Sequence[str], found: Sequence[Agreement], form: Format) -> str:
    from afarm.evaluation.boards import from_csv, rendering

    if form == "csv":
        return from_csv.as_csv(boards)
    if form == "json":
        return rendering.as_json(boards, left_out, found)
    from afarm.report.leaderboard_page import markdown_leaderboards, render_leaderboards

    return render_leaderboards(boards, left_out, found) if form == "html" else markdown_leaderboards(boards, found)


def show_board(console: Console, board: Leaderboard, elsewhere: str = "--format markdown shows all") -> None:
    """Print a board with remarks and red flags; `elsewhere` names the place of columns that have no room."""
    from rich import box
    from rich.table import Table

    from afarm.evaluation.boards.rendering import answer, columns, fitting, flags, remarks

    every = columns(board)
    shown, width = fitting(board, every, console.width if console.is_terminal else None)
    console.print(one_line(board.heading, 300), style="italic", markup=False)
    console.print(one_line(answer(board), 600), style="bold", soft_wrap=True, markup=False)
    table = Table(box=box.SIMPLE)
    for column in shown:
        table.add_column(column.heading, justify="right" if column.number else "left", overflow="fold", no_wrap=True)
    for entry in board.entries:
        table.add_row(*(markup(column.cell(entry) or "") for column in shown))
    # rich takes the width of a terminal that it does not know for 80, unless it is given the height as well
    console_on(file=console.file, width=width, height=console.height).print(table)
    spared = [column.heading.removesuffix(", %") for column in every if column not in shown]
    lines = [*remarks(board), *(f"{title}: {page}" for title, page in board.pages.items())]
    lines += [f"Flag: {sentence}" for sentence in flags(board)]
    lines += [f"No room for {', '.join(spared)}: {elsewhere}."] if spared else []
    for line in lines:
        console.print(one_line(line, 600), soft_wrap=True, markup=False)


def _show(boards: Sequence[Leaderboard], found: Sequence[Agreement], ranks: bool) -> None:
    from afarm.evaluation.boards.rendering import legend

    for board in boards:
        show_board(out(), board)
    lines = [f"\n{legend(boards)}", *([DIFFERENT_BOARDS] * (len(boards) > 1))]
    if not ranks and any(entry.source.judgements for board in boards for entry in board.entries):
        lines.append("--ranks reads the judgements too: ranks with intervals, and differences.")
    lines += [one_line(f"{a.first} and {a.second}: {a.sentence}", 1000) for a in found]
    for line in lines:
        out().print(line, markup=False)
