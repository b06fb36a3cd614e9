"""Result screens: the record of a run or of a comparison in full, several systems as a leaderboard."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from afarm.cli import human_labels
from afarm.cli.console import err, out, print_json
from afarm.cli.leaderboard import DIFFERENT_BOARDS, show_board
from afarm.core.errors import PluginError
from afarm.evaluation.boards import Leaderboard, group
from afarm.evaluation.boards.ranking import evaluated, with_ranks
from afarm.evaluation.boards.sources import boards_of_runs
from afarm.evaluation.decisions import decision_sentences
from afarm.evaluation.judge_flags import accuracy_interval
from afarm.evaluation.matching import Coverage
from afarm.evaluation.metrics import (
    BY_PEOPLE,
    finite_number,
    main_metric,
    undetectable_difference,
    win_rate_interval,
    with_error,
)
from afarm.evaluation.red_flags import red_flag_lines
from afarm.evaluation.run_stages import cut_off, degraded, not_finite, sum_costs
from afarm.evaluation.who_judged import known_agreement, page_finder
from afarm.report.run import STOPPED_AT, training
from afarm.storage.runs import RunRecord, is_simulated, simulated_judges
from afarm.storage.text import dollars, markup, one_line

UNASKED = "no judge was asked: a gain is a gain in what this annotator goes by, a formula, a reward model, or noise"
LABELLED = "who labelled these pairs, no judge was asked"
STORED = "stored annotations, no judge was asked"

OUTCOMES = {"wins": "won", "wins_base": "lost", "draws": "drawn", "unparsed": "unparsed"}

Record = RunRecord

LONGEST_LINE = 2000
"""Characters."""


def present(found: Sequence[tuple[Record, Path]], together: Sequence[str], as_json: bool) -> None:
    """Show records with their directories; as JSON on stdout, then the screen goes to stderr.

    `together` names evaluators that look at all systems at once. The JSON has `systems`, a list of the records, and of
    one system its record's fields beside it.
    """
    console = err() if as_json else out()
    records = [record for record, _ in found]
    several = len(found) > 1
    boards = _boards([directory for _, directory in found], together, console) if several or together else []
    if as_json:
        whole = [_as_json(record, directory) for record, directory in found]
        rows = {"boards": [board.to_dict() for board in boards]} if boards else {}
        print_json({**({} if several else whole[0]), "systems": whole, **rows})
    if len(found) == 1:
        show_record(console, records[0])
    for board in boards:
        show_board(console, board)
    if len(boards) > 1:
        console.print(DIFFERENT_BOARDS)
    if several:
        _tell(console, _lines_of_several(records))
        warn_of_simulation(console, records[0])
    for page in filter(None, (_report(directory) for _, directory in found)):
        show_report(console, page)
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


def _report(directory: Path) -> Path | None:
    page = directory / "report.html"
    return page if page.is_file() else None


def show_report(console: Console, page: Path, title: str = "Report") -> None:
    console.print(f"{title}: {page}", style=f"link {page.resolve().as_uri()}", markup=False)


def _as_json(record: Record, directory: Path) -> dict[str, Any]:
    """The answer, who judged, then the record. "pool" judges nothing: files' annotator is who judged."""
    main = record["results"][0]
    return {
        **{name: main.get(name, "") for name in ("system", "reference", "judged_by", "metrics", "degraded")},
        "interval": win_rate_interval(main["metrics"]),
        "simulated": is_simulated(record),
        "report": str(page) if (page := _report(directory)) else None,
        **record,
        **({"annotator": record["judged_by"]} if record.get("files") and record["judges"] else {}),
    }


def show_record(console: Console, record: Record) -> None:
    """Show the numbers of a run or of a comparison, how they were made, and what they cost."""
    main = record["results"][0]
    title = f"{record.get('method', main['system'])} against {main['reference']}"
    console.print(one_line(title, LONGEST_LINE), style="italic", markup=False)
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for label, text in result_rows(record):
        warns = label in ("cut off", "not finite") or text.startswith(STOPPED_AT)
        table.add_row(markup(label), Text(one_line(text, LONGEST_LINE), "yellow" if warns else ""))
    console.print(table)
    warn_of_simulation(console, record)
    for title, page in page_finder()(record).items():
        show_report(console, page, title)


def result_rows(record: Record) -> Iterator[tuple[str, str]]:
    """Yield labels and texts: judge, win rate, other results, warnings, training, cost."""
    head, stages, results = record["headline"], record["stages"], record["results"]
    yield from _judge_rows(record)
    main = next((result for result in results if result["evaluator"] == "win_rate"), None)
    if main is not None:
        metrics = main["metrics"]
        yield "win rate", _win_rate(metrics)
        if blind := undetectable_difference(metrics):
            yield "", f"not clear from 50 %: {blind}"
        yield "", _outcomes(metrics)
        yield from red_flag_lines(main.get("red_flags"))
    for result in results:
        if result is not main and result["evaluator"] != BY_PEOPLE:
            yield result_row(result, results[0]["reference"])
    if "coverage" in record:
        yield from _comparison_rows(record)
        return
    yield from (("degraded", line) for line in degraded(stages))
    yield from (("cut off", line) for line in cut_off(stages))
    yield from (("not finite", line) for line in not_finite(stages))
    yield from (("training", line) for line in training(record.get("checkpoint", {})))
    if pairs := finite_number(record.get("reward_model", {}).get("pairs")):
        low, high = accuracy_interval(accuracy := record["reward_model"]["accuracy"], pairs)
        rate = f"{100 * accuracy:.1f} % of {pairs:,.0f} held-out labels (95 % {low:.1f} to {high:.1f})"
        yield "reward model", f"agrees with {rate}"
    if head["kl"] is not None:
        yield "KL to the start", f"{head['kl']:.3f} nats a response"
    if head["length"] is not None:
        yield "mean length", f"{head['length']:.0f} characters (reference {head['length_reference']:.0f})"
    yield "spend", _spent(record["spend"])
    ran = [f"{s['stage']} {s['seconds']:.0f} s" for s in stages if not s["reused"] and s["seconds"] >= 0.5]
    took = f"{sum_costs(stages)[0]:.0f} s to make its stages; this time {record['finished'] - record['created']:.0f} s"
    yield "time", took + (f": {', '.join(ran)}" if ran else "")
    yield "reused", f"{sum(s['reused'] for s in stages)} of {len(stages)} stages"


def _judge_rows(record: Record) -> Iterator[tuple[str, str]]:
    """Yield who judged, and how often formulas among them are known to agree with people."""
    if judged_by := record["judged_by"]:
        alone = LABELLED if judged_by == "people" else UNASKED
        asked = "" if record["judges"] else f" ({STORED if record.get('stored') else alone})"
        yield "judged by", judged_by + asked
        yield from (("", said.removeprefix(f"{judged_by} ")) for said in known_agreement(record).split("; ") if said)


def _comparison_rows(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the rows that say how two files were compared: decisions, coverage, people's labels, cost."""
    yield from (("decision", line) for line in (decision_sentences(record["until"]) if record.get("until") else ()))
    yield "compared", Coverage.from_row(record["coverage"]).sentence
    yield from human_labels.people_rows(record["results"])
    yield from (("degraded", line) for line in degraded(record["stages"]))
    if record["spend"]["calls"]:
        yield "spend", _spent(record["spend"])


def _win_rate(metrics: Mapping[str, Any]) -> str:
    """Write a win rate with its standard error, if it has one, and its interval."""
    error, bounds = metrics["standard_error"], win_rate_interval(metrics)
    text = f"{metrics['win_rate']:.1f} %" + (f" ± {error:.1f} (standard error)" if error else "")
    return text + (f", 95 % interval {bounds[0]:.1f} to {bounds[1]:.1f}" if bounds else "")


def _outcomes(metrics: Mapping[str, Any]) -> str:
    """Count the comparisons by outcome; draws that nobody judged are counted apart."""
    counts = [f"{metrics[f'n_{what}']} {word}" for what, word in OUTCOMES.items()]
    if identical := metrics.get("n_identical"):
        counts[list(OUTCOMES).index("draws")] += f" ({identical} of identical outputs, not judged)"
    return ", ".join(counts + ([f"{metrics['n_refused']} refused"] if metrics.get("n_refused") else []))


def _spent(spend: Mapping[str, Any]) -> str:
    """Say what judges cost in all, and what of that this command bought."""
    now = spend["this_time"]
    unpriced = f", {spend['unpriced_calls']} of unknown price" if spend["unpriced_calls"] else ""
    part = f" (this time {dollars(now['dollars'])} for {now['calls']})" if now["calls"] != spend["calls"] else ""
    total = f"{dollars(spend['dollars'])} for {spend['calls']} calls"
    return f"{total}{unpriced}{part}" + (f"; {now['answers_reused']} answers reused" if now["answers_reused"] else "")


def result_row(result: Mapping[str, Any], main_reference: str) -> tuple[str, str]:
    """A further evaluation in one line: its main figure, the reference's, and their paired difference."""
    metrics, name = result["metrics"], result["evaluator"]
    if name == "win_rate":
        return f"win rate, against {result['reference']}", f"{_win_rate(metrics)}. Quote that against {main_reference}"
    label = name if result["reference"] == main_reference else f"{name}, against {result['reference']}"
    found = main_metric(name, metrics)
    if found is None and next(iter(metrics.values()), "") is None:
        return label, "not defined"
    if found is None:
        shown = [f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in list(metrics.items())[:4]]
        return label, ", ".join(shown)
    text = found.text if found.name == name else f"{found.name} {found.text}"
    if found.reference is not None:
        text += f" (reference {found.reference:.3f}"
        gap = found.difference
        text += ")" if gap is None else f"; paired difference {with_error(gap, found.difference_error)})"
    said = [value for key, value in metrics.items() if isinstance(value, str) and not key.endswith("_warning")]
    return label, ", ".join([text, *said])


def _lines_of_several(records: Sequence[Record]) -> list[str]:
    """Write the rows of each comparison after its system's name; what all share is written once."""
    by_line: dict[str, list[str]] = {}
    annotators = {record["annotator"] for record in records}
    references = {record["results"][0]["reference"] for record in records}
    for record in records:
        main = record["results"][0]
        name = f"{main['system']} by {record['annotator']}" if len(annotators) > 1 else main["system"]
        name += f" against {main['reference']}" if len(references) > 1 else ""
        judge = list(_judge_rows(record))[:1]  # its agreement with people is a remark of the board
        for label, text in (*judge, *_comparison_rows(record)):
            by_line.setdefault(f"{label.capitalize()}: {text}" if label else text, []).append(name)
    return [line if len(names) == len(records) else f"{', '.join(names)}: {line}" for line, names in by_line.items()]


def warn_of_simulation(console: Console, record: Record) -> None:
    if formulas := simulated_judges(record):
        names = markup(" and the ".join(formulas))
        console.print(
            f"[yellow]The {names} judge is a formula, no person or language model: a gain is a gain in that formula.[/]"
        )


def _tell(console: Console, lines: Sequence[str]) -> None:
    for line in lines:  # with names that files of anybody's gave
        console.print(one_line(line, LONGEST_LINE), markup=False)
