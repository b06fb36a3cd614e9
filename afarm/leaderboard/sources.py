"""Boards from wherever results are: a folder of runs, a shared board, an AlpacaEval leaderboard, stored annotations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError, did_you_mean
from afarm.evaluation.metrics import main_figure, number, warnings
from afarm.evaluation.protocol import EvaluationProtocol
from afarm.evaluation.red_flags import flag_sentences
from afarm.leaderboard.board import Entry, Leaderboard, Metric, Source, ranked
from afarm.leaderboard.from_annotations import boards_of_annotations
from afarm.leaderboard.from_csv import COLUMNS, COUNTS, TABLES, imported
from afarm.leaderboard.from_round_robin import round_robins
from afarm.leaderboard.merging import group

REFERENCE_BOARDS = {"paper": "paper.json"}
"""Boards that ship with afarm, by the name that stands for them."""
NO_PROTOCOL = "results that say nothing of how they were judged: no two of them may be compared"
FIGURES = ("win_rate", "length_controlled")
"""The evaluators whose figures an entry has fields for."""


def read_boards(
    sources: Sequence[Path | str],
    annotations: Sequence[Path | str] = (),
    order: str = "",
    evaluators: Sequence[str] = (),
) -> tuple[list[Leaderboard], list[str]]:
    """The boards of `sources` and of files of stored `annotations`, one a protocol, and, in sentences, what is not
    in them.

    A source is a directory of runs, the name of a board that ships ("paper"), or a file: a board (.json), an AlpacaEval
    leaderboard (.csv) or annotations. With `order`, the name of an evaluator over all systems, annotations make a board
    of all systems that met, in its order and with the figures of `evaluators` beside. Raises `DataError` naming the
    file, the row and the field that cannot be read.
    """
    boards: list[Leaderboard] = []
    left_out: list[str] = []
    judged = [Path(file) for file in annotations]
    for source in sources:
        path = Path(source)
        if path.is_dir():
            found, lacking = boards_of_runs(path)
            boards += found
            left_out += lacking
        elif str(source) in REFERENCE_BOARDS and not path.exists():
            boards += reference_boards(str(source))
        elif path.name.endswith(TABLES):
            boards += imported(path)
        elif holds_annotations(path):
            judged.append(path)
        else:
            boards += _shared_boards(path)
    if order:
        boards += round_robins(judged, order, evaluators)
    elif judged:
        boards += boards_of_annotations(judged)
    return group(boards), left_out


# ------------------------------------------------------------------------------------------------------------ runs


def boards_of_runs(directory: Path) -> tuple[list[Leaderboard], list[str]]:
    """The results of all runs below `directory` (that of all runs, that of `runs`, or a single run's), from the small
    `run.json` of each; and the runs that cannot be read or have no win rate, with the reason."""
    found: dict[str, list[Entry]] = {}
    protocols: dict[str, EvaluationProtocol] = {}
    left_out = []
    records = [directory / "run.json"] if (directory / "run.json").is_file() else _records(directory)
    for path in records:
        try:
            results = list(_results(path))
        except (DataError, OSError, ValueError) as error:
            left_out.append(f"{path}: {error}")
            continue
        if not results:
            left_out.append(f"{path.parent.name}: it has no win rate")
        for protocol, entry in results:
            protocols[protocol.id] = protocol
            found.setdefault(protocol.id, []).append(entry)
    return [
        ranked(Leaderboard(protocols[key], tuple(entries), "" if protocols[key].known else NO_PROTOCOL))
        for key, entries in found.items()
    ], left_out


def _records(directory: Path) -> list[Path]:
    runs = directory / "runs" if (directory / "runs").is_dir() else directory
    return sorted(runs.glob("*/run.json"))


def _results(path: Path) -> Iterator[tuple[EvaluationProtocol, Entry]]:
    """One entry for each reference that a run's system was compared with."""
    record = json.loads(path.read_text(encoding="utf-8"))
    given = record.get("results") if isinstance(record, Mapping) else None
    if not isinstance(given, list):
        raise DataError("is no record of a run: the same `afarm` command writes it afresh")
    by_reference: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in given:
        if isinstance(row, Mapping) and isinstance(row.get("metrics"), Mapping):
            by_reference.setdefault((str(row.get("system")), str(row.get("reference"))), []).append(row)
    for players, rows in by_reference.items():
        entry = _entry(players, rows, record)
        if entry is not None:
            # Only the pairs of the first comparison lie beside the record; and where judging stopped at a moment that
            # suited it, ranks would be too sure.
            has_pairs = players == next(iter(by_reference)) and not record.get("until")
            pairs = str(path.parent / "outputs.jsonl") if has_pairs else ""
            source = Source(str(path.parent), pairs, players[1], number(record.get("created")) or 0)
            yield EvaluationProtocol.from_row(rows[0].get("protocol")), replace(entry, source=source)


def _entry(players: tuple[str, str], rows: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> Entry | None:
    """What the results of one system against one reference say; None without a win rate."""
    metrics: dict[str, Any] = {}
    for row in rows:
        metrics = {**row["metrics"], **metrics}
    if metrics.get("lc_sampling_error") is not None:  # AlpacaEval's own leaves out the uncertainty of the fit
        metrics["lc_standard_error"] = metrics["lc_sampling_error"]
    known = _known({name: metrics.get(column) for name, column in COLUMNS.items()})
    if not 0 <= known.get("win_rate", -1) <= 100:
        return None
    if refused := _count(metrics.get("n_refused")):
        known["unparsed"] = known.get("unparsed", 0) + refused
    coverage, until, guards = _row(record, "coverage"), _row(record, "until"), rows[0].get("guards")
    further, warning = _further(rows) if coverage else {}, str(metrics.get("lc_warning") or "")
    noted = {f"{name}: {text}" for row in rows if (name := row.get("evaluator")) in further for text in _warnings(row)}
    noted.add(f"length_controlled: {warning}")
    entry = Entry(
        players[0],
        **known,
        length_controlled_source=str(metrics.get("lc_source") or ""),
        length_controlled_warning=warning,
        prefers_longer=_value(guards, "prefers_longer"),
        prefers_lists=_value(guards, "prefers_lists"),
        flags=tuple(sentence for sentence in flag_sentences(guards) if sentence not in noted),
        figures=further,
        of=_count(coverage.get("reference")),
    )
    return replace(entry, stopped_early=(entry.asked or 0) < (_count(until.get("of")) or 0))


def _row(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What a record says under `name`; empty where it says nothing, as a run that made its outputs itself of their
    `coverage`."""
    found = record.get(name)
    return found if isinstance(found, Mapping) else {}


def _further(rows: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """The main figures of other evaluators. They are comparable where they follow from outputs and judgements, as
    between files: those of a run's own reward model are not."""
    found = {}
    for row in rows:
        name, metrics = str(row.get("evaluator")), row["metrics"]
        main = None if name in FIGURES else main_figure(name, metrics)
        if main is not None:
            n, flag = _count(metrics.get("n_total")), "; ".join(_warnings(row))
            found[name] = Metric(main.value, main.error, n=n, flag=flag)
    return found


def _warnings(row: Mapping[str, Any]) -> list[str]:
    return list(warnings(row["metrics"]).values())


def _value(guards: Any, name: str) -> float | None:
    figure = guards.get(name) if isinstance(guards, Mapping) else None
    return number(figure.get("value")) if isinstance(figure, Mapping) else None


def _count(value: Any) -> int | None:
    known = number(value)
    return None if known is None else round(known)


def _known(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an entry that are finite numbers."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if number(value) is not None:
            found[name] = round(value) if name in COUNTS else float(value)
    return found


# ----------------------------------------------------------------------------------------------------------- files


def reference_boards(name: str) -> list[Leaderboard]:
    """The boards that ship under `name`. Raises `DataError` for a name that there is not."""
    if name not in REFERENCE_BOARDS:
        raise DataError(f"no board called {name!r} ships with afarm.{did_you_mean(name, REFERENCE_BOARDS)}")
    text = resources.files("afarm.leaderboard").joinpath(REFERENCE_BOARDS[name]).read_text(encoding="utf-8")
    return [
        Leaderboard.from_row(row, f"{name}, board {number}") for number, row in enumerate(json.loads(text)["boards"])
    ]


def holds_annotations(path: Path) -> bool:
    """Whether `path` can only be a file of annotations: no directory, no table, and no object in JSON."""
    if path.is_dir() or path.name.endswith(TABLES):
        return False
    if path.suffix != ".json" or not path.is_file():
        return str(path) not in REFERENCE_BOARDS
    with path.open("rb") as handle:
        return handle.read(64).lstrip()[:1] != b"{"


def _shared_boards(path: Path) -> list[Leaderboard]:
    """The boards in a file as `afarm leaderboard --format json` writes it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(found.get("boards"), list):
        raise DataError(f"{path}: holds no boards: `afarm leaderboard --format json --output FILE` writes such a file")
    return [Leaderboard.from_row(row, f"{path}: board {number}") for number, row in enumerate(found["boards"])]
