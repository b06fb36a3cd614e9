"""Result screens of systems compared with a reference: one in full, several as a leaderboard."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from afarm.cli import human_labels
from afarm.cli.console import err, out, print_json
from afarm.cli.leaderboard import show_board
from afarm.cli.run import format_error, outcomes, result_row, spent, warn_of_simulation
from afarm.core.errors import PluginError
from afarm.evaluation.boards import Leaderboard, group
from afarm.evaluation.boards.ranking import evaluated, with_ranks
from afarm.evaluation.boards.sources import boards_of_runs
from afarm.evaluation.decisions import decision_sentences
from afarm.evaluation.matching import Coverage
from afarm.evaluation.metrics import BY_PEOPLE, undetectable_difference, win_rate_interval
from afarm.evaluation.red_flags import red_flag_lines
from afarm.report.run import degraded
from afarm.storage.runs import is_simulated
from afarm.storage.text import one_line

UNASKED = "no judge LLM was asked. A gain is a gain in what this annotator goes by: a formula, a reward model, or noise"
JUDGED = "Judged by {}"
STORED = "stored annotations, no judge was asked"

Record = Mapping[str, Any]

LONGEST_LINE = 2000
"""Characters."""


def present(
    found: Sequence[tuple[Record, Path]], together: Sequence[str], as_json: bool, among_others: bool = False
) -> None:
    """The records with their directories: on the screen, or as JSON on stdout and the screen on stderr.

    `together` names evaluators that look at all systems at once. As JSON, one that was `among_others` stands in a list
    as they would, had they a result.
    """
    console = err() if as_json else out()
    records = [record for record, _ in found]
    several = len(found) > 1
    boards = _boards([directory for _, directory in found], together, console) if several or together else []
    if as_json:
        whole = [_as_json(record, directory) for record, directory in found]
        rows = {"boards": [board.to_row() for board in boards]} if boards else {}
        told = {"systems": whole, **rows} if several or among_others else {**whole[0], **rows}
        print_json(told)
    if len(found) == 1:
        _show_one(console, records[0])
    for board in boards:
        show_board(console, board)
    if len(boards) > 1:
        console.print("Win rates of different boards cannot be compared.")
    if several:
        _tell(console, _lines_of_several(records))
    warn_of_simulation(console, records[0])
    _tell(console, [f"Report: {page}" for _, directory in found if (page := _report(directory))])
    if without := [directory for _, directory in found if not _report(directory)]:
        runs = without[0].parent
        command = f"afarm report {shlex.quote(without[0].name)} --output-dir {shlex.quote(str(runs.parent))}"
        _tell(console, [f"No reports of {len(without)} systems at once (they lie in {runs}); one each with: {command}"])


def _boards(directories: Sequence[Path], together: Sequence[str], console: Console) -> list[Leaderboard]:
    """The systems of these runs, those together that can be compared."""
    boards = group(board for directory in directories for board in boards_of_runs(directory)[0])
    try:
        boards = [with_ranks(board)[0] for board in boards]
    except PluginError as error:
        _tell(console, [f"No intervals of ranks, and no tests: {error}"])
    return [evaluated(board, together) if together else board for board in boards]


def _report(directory: Path) -> str | None:
    page = directory / "report.html"
    return str(page) if page.is_file() else None


def _as_json(record: Record, directory: Path) -> dict[str, Any]:
    main = record["results"][0]
    return {
        **record,
        **{name: main[name] for name in ("system", "reference", "metrics", "degraded")},
        "interval": win_rate_interval(main["metrics"]),
        "simulated": is_simulated(record),
        "report": _report(directory),
    }


def _show_one(console: Console, record: Record) -> None:
    main, *others = record["results"]
    metrics, further = main["metrics"], [result for result in others if result["evaluator"] != BY_PEOPLE]
    bounds, rate = win_rate_interval(metrics), f"{metrics['win_rate']:.1f} %{format_error(metrics)}"
    rate += f", 95 % interval {bounds[0]:.1f} to {bounds[1]:.1f}," if bounds else ""
    lines = [
        f"{main['system']}: win rate {rate} against {main['reference']}",
        *([f"Not clear from 50 %: {blind}"] if (blind := undetectable_difference(metrics)) else []),
        outcomes(metrics),
        *(": ".join(result_row(result, main["reference"])) for result in further),
        *(f"{label.capitalize()}: {line}" for label, line in red_flag_lines(main.get("red_flags"))),
        *_lines(record),
    ]
    _tell(console, lines)


def _lines_of_several(records: Sequence[Record]) -> list[str]:
    """The lines of each system after its name, with annotator and reference where these differ.

    What several share is said once.
    """
    by_line: dict[str, list[str]] = {}
    all_by = Counter(JUDGED.format(record["annotator"]) for record in records)
    references = {record["results"][0]["reference"] for record in records}
    for record in records:
        main = record["results"][0]
        name = f"{main['system']} by {record['annotator']}" if len(all_by) > 1 else main["system"]
        name += f" against {main['reference']}" if len(references) > 1 else ""
        for line in _lines(record):
            by_line.setdefault(line, []).append(name)
    return [
        line if len(names) in (len(records), all_by[line.partition(": ")[0]]) else f"{', '.join(names)}: {line}"
        for line, names in by_line.items()
    ]


def _lines(record: Record) -> list[str]:
    """Lines on a system beside its metrics and red flags: decisions, coverage, degradation, cost."""
    decision = record.get("until")
    paid = STORED if record.get("stored") else spent(record["spend"]) if record["judges"] else UNASKED
    return [
        *(f"{line[0].upper()}{line[1:]}" for line in (decision_sentences(decision) if decision else [])),
        f"Compared: {Coverage.from_row(record['coverage']).sentence}",
        *human_labels.lines(record["results"]),
        *(f"Degraded: {line}" for line in degraded(record["stages"])),
        f"{JUDGED.format(record['annotator'])}: {paid}",
    ]


def _tell(console: Console, lines: Sequence[str]) -> None:
    for line in lines:  # with names that files of anybody's gave
        console.print(one_line(line, LONGEST_LINE), markup=False)
