"""Sources of results: a finished run, a leaderboard's file, and a file of `afarm judge bench`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from afarm import NORMAL_95, ConfigError, DataError, Instruction, JudgedPair, read_user_text
from afarm.results import (
    RECORD,
    WIN_RATE,
    EvaluationProtocol,
    StoredRun,
    are_formulas,
    finite_number,
    flag_sentences,
    main_metric,
    open_run,
    read_boards,
    read_preferences,
    warnings,
    win_rate_interval,
)
from afarm_interchange.systems import BenchRow, Evaluation, Figure, Sample, System

AGRESTI_COULL = "t interval after two added wins and losses (Agresti and Coull 1998)"
NORMAL = "1.96 standard errors to either side"
WILSON = "Wilson, for as many independent values as the error clustered by instruction amounts to"
OF_THE_HUB = re.compile(r"hf:([^:/]+/[^:/]+)")
FORMULA = "the formula "
METHODS = {"human": "human", "rule": "rule", "noise": "noise"}
"""How a label was found, by its source; a judge's may be a formula's."""
COUNTS = ("n_total", "n_wins", "n_wins_base", "n_draws", "n_unparsed", "n_refused", "coverage", "avg_length")
"""Metrics beside a win rate that go along."""
GENERATION = {"temperature": "temperature", "top_p": "top_p", "max_new_tokens": "max_tokens"}
BENCH = (
    *("consistent", "first", "draws", "unparsed", "agreement", "between_people", "brier", "ece"),
    *("dollars", "seconds", "right_per_dollar"),
)
"""Figures of a measured judge that have no direction of their own, or are no percentages."""
TIES = "ties"
"""RewardBench 2's subset whose score is no mean of rows."""
AROUND_TIES = (-1.0, 101.0)
"""Its bounds in percent: a term of it lies between −0.01 and 0.01."""


def read_source(source: str, output_dir: Path, board: int | None, samples: bool = True) -> list[System]:
    """Read the systems of a run (by name or directory), a board's file or a file of `afarm judge bench`.

    `board` is the number of a board, from 1, of a file that has several. Without `samples`, outputs and judgements are
    left out. Raises `DataError`, naming what is wrong and the command that mends it.
    """
    path = Path(source)
    if path.is_file() and path.name != RECORD:
        document = _read_document(path)
        if "boards" in document:
            return read_board(source, board)
        _require_none(board, source)
        if "judges" in document and "benchmark" in document:
            return read_bench(document, source, samples)
        raise DataError(
            f"{source}: is neither a board (`afarm leaderboard --output board.json`) nor measured judges (`afarm judge "
            "bench … --output bench.json`); a run is named by its name or its directory"
        )
    _require_none(board, source)
    return [read_run(open_run(source, output_dir), samples)]


def _require_none(board: int | None, source: str) -> None:
    if board is not None:
        raise ConfigError([f"--board {board}: goes with a file of boards, and {source} is none"])


def _read_document(path: Path) -> Mapping[str, Any]:
    import json

    try:
        document = json.loads(read_user_text(path))
    except (ValueError, RecursionError, OSError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise DataError(f"{path}: must hold a JSON object, not {type(document).__name__}")
    return document


# ------------------------------------------------------------------------------------------------------------- a run


def read_run(run: StoredRun, samples: bool = True) -> System:
    """Read the system of a finished run: an evaluation for each reference, the main one first."""
    record = run.record
    record.require_results()
    by_reference: dict[str, list[Any]] = {}
    for result in record.results:
        by_reference.setdefault(result.reference, []).append(result)
    found = [_evaluation_of_run(run, rows) for rows in by_reference.values()]
    evaluations = tuple(one for one in found if one.figures)
    if not evaluations:
        raise DataError(
            f"{run.name}: has no win rate, so there is nothing to export: `afarm evaluate` and `afarm run` make one "
            "(the evaluator win_rate)"
        )
    if samples:
        evaluations = tuple(_with_samples(run, one) for one in evaluations)
    config = record.section("config")
    evaluate = config.get("evaluate")
    generation = evaluate if isinstance(evaluate, Mapping) else {}
    method, files = record.get("method"), record.section("files")
    data = str(config.get("eval_set") or config.get("dataset") or files.get("reference") or "")
    on_hub = OF_THE_HUB.match(data)
    details = {name: record.get(name) for name in ("recipe", "method", "seed")}
    details |= {"run": run.name, "base_model": _name_only(config.get("model") or "") if method else ""}
    return System(
        record.results[0].system or run.name,
        evaluations,
        on_hub[1] if on_hub else _name_only(data),
        on_hub[1] if on_hub else "",
        finite_number(record.get("finished")) or 0.0,
        str(record.get("afarm_version") or "unknown"),
        bool(method),
        {name: str(value) for name, value in details.items() if value not in (None, "")},
        {theirs: number for ours, theirs in GENERATION.items() if (number := finite_number(generation.get(ours)))}
        if method
        else {},
    )


def _figure(
    name: str,
    value: float,
    error: float | None,
    n: float | None,
    between: Sequence[float] | None = None,
    method: str = "",
) -> Figure:
    """Make a figure in percent; one with an error alone has 1.96 of it to either side as its interval."""
    if between is None and not method and error is not None:
        between = max(0.0, value - NORMAL_95 * error), min(100.0, value + NORMAL_95 * error)
        method = NORMAL
    low, high = between or (None, None)
    return Figure(name, value, error, low, high, None if n is None else round(n), method if between else "")


def _evaluation_of_run(run: StoredRun, rows: Sequence[Any]) -> Evaluation:
    """Make an evaluation of the results against one reference; without figures if none is a win rate."""
    first, figures, others = rows[0], list[Figure](), dict[str, str]()
    protocol = EvaluationProtocol.from_row(first.protocol)
    for row in rows:
        main = main_metric(row.evaluator, row.metrics)
        if main is None:
            continue
        if main.is_win_rate:
            made = (win_rate_interval(row.metrics), AGRESTI_COULL) if main.name == WIN_RATE else ()
            n = finite_number(row.metrics.get("n_total"))
            figures.append(_figure(main.name, main.value, main.error, n, *made))
        else:
            others[main.name] = main.text
        others |= warnings(row.metrics)
        if main.name == WIN_RATE:
            counts = {name: finite_number(row.metrics.get(name)) for name in COUNTS}
            others |= {name: f"{count:g}" for name, count in counts.items() if count is not None}
    formulas = are_formulas(run.record)
    flags = list(dict.fromkeys(flag for row in rows for flag in flag_sentences(row.red_flags)))
    details = {**_protocol_details(protocol), **others, "red_flags": "; ".join(flags)}
    return Evaluation(
        f"against {first.reference}",
        tuple(figures),
        str(run.record.get("judged_by") or protocol.who_judged),
        protocol.annotator,
        tuple(dict.fromkeys(judge for judge in protocol.judges.values() if not formulas.get(judge))),
        {name: text for name, text in details.items() if text},
    )


def _protocol_details(protocol: EvaluationProtocol) -> dict[str, str]:
    noise = protocol.label_noise
    return {
        "reference": protocol.reference,
        "annotator": _name_only(protocol.annotator),
        "annotator_settings": protocol.asked,
        "annotator_settings_digest": protocol.settings,
        "annotator_prompts_digest": protocol.source,
        "instructions_digest": protocol.instructions,
        "reference_outputs_digest": protocol.reference_outputs,
        "label_noise": f"{noise:g}" if noise else "",
        "shift_of_the_judge": protocol.drift,
    }


def _name_only(value: object) -> str:
    """Write a value; of a path on this machine its last part alone."""
    text = str(value)
    return Path(text).name if re.match(r"(/|~|\.{1,2}/|[A-Za-z]:\\)", text) else text


def _with_samples(run: StoredRun, evaluation: Evaluation) -> Evaluation:
    formulas, answers = are_formulas(run.record), run.answers()
    samples = [_sample(judged, formulas, answers) for judged in _judged(run, evaluation.details.get("reference", ""))]
    return replace(evaluation, samples=tuple(filter(None, samples)), of_figure=WIN_RATE)


def _judged(run: StoredRun, reference: str) -> list[JudgedPair]:
    """Return the judgements against one reference. Raises `DataError` if their artifact is gone."""
    kinds = ("evaluate", "compare", "stored annotations")
    stages = [str(stage.get("stage")) for stage in run.record.stages if stage.get("kind") in kinds]
    named = [stage for stage in stages if stage.endswith((f" against {reference}", f" with {reference}"))]
    chosen = (named or stages)[:1]
    return [one for stage in chosen for one in read_preferences(run.artifact(stage) / "judgements.jsonl")]


def _sample(judged: JudgedPair, formulas: Mapping[str, bool], answers: Mapping[str, Any]) -> Sample | None:
    """Make a sample of a judgement, whose second output is the system's; None without a verdict."""
    pair, preference, task = judged.pair, judged.preference, judged.pair.instruction
    if judged.win is None:
        return None
    is_formula = formulas.get(preference.judge, not preference.judge and bool(formulas) and all(formulas.values()))
    said = [answers[key].text for key in preference.completion.split(",") if key in answers]
    row = judged.to_row()
    shown_first = {"12": pair.generator_1, "21": pair.generator_2}.get(preference.order, "")
    details = {
        "reference_model": pair.generator_1,
        "preference": row["preference"],
        "annotator": _name_only(judged.annotator),
        "member": preference.member,
        "judge": preference.judge,
        "order": preference.order,
        "shown_first": shown_first,
        "outcome": preference.outcome,
        "source": preference.source,
        "dataset": task.dataset,
        "occurrence": pair.occurrence or "",
        "votes": "; ".join(f"{name}: {win}" for name, win in preference.votes),
        "judge_answer": "\n\n".join(said) if not is_formula else "",
        "finish_reason": pair.finish_reason_2,
        "reference_finish_reason": pair.finish_reason_1,
    }
    verdict = "draw" if judged.win == 0.5 else f"prefers {'output' if judged.win > 0.5 else 'reference'}"
    return Sample(
        task.id,
        "\n\n".join(filter(None, (task.instruction, task.input))),
        (pair.output_2,),
        (pair.output_1,),
        judged.win,
        METHODS.get(preference.source) or ("formula" if is_formula else "llm_judge"),
        verdict,
        task.messages,
        (),
        {name: str(value) for name, value in details.items() if value not in (None, "")},
    )


# ----------------------------------------------------------------------------------------------------------- a board


def read_board(source: str, number: int | None) -> list[System]:
    """Read the systems of one board of a file. Raises `DataError` if it has several and none is named."""
    boards, _ = read_boards([source])
    boards = [board for board in boards if board.entries]
    if not boards:
        raise DataError(f"{source}: its boards have no systems")
    if number is None and len(boards) > 1:
        listed = "\n".join(f"  --board {place}: {board.heading}" for place, board in enumerate(boards, start=1))
        raise DataError(
            f"{source}: has {len(boards)} boards, judged in different ways, and figures of one cannot stand beside "
            f"those of another: choose one\n{listed}"
        )
    if number is not None and not 1 <= number <= len(boards):
        raise ConfigError([f"--board {number}: {source} has {len(boards)}"])
    board = boards[(number or 1) - 1]
    if not board.protocol.known:
        raise DataError(f"{source}: its board does not say who judged: {board.note or board.heading}")
    who = board.protocol.who_judged
    judges = () if who.startswith(FORMULA) else tuple(dict.fromkeys(board.protocol.judges.values()))
    systems = []
    for entry in board.entries:
        figures = _board_figures(entry)
        details = {
            **_protocol_details(board.protocol),
            **{name: f"{value:g}" for name in ("wins", "losses", "draws", "unparsed", "coverage", "length")
               if (value := getattr(entry, name)) is not None},
            **{name: f"{metric.value:g}" for name, metric in entry.metrics.items()},
            "seeds": ", ".join(map(str, entry.seeds)),
            "red_flags": "; ".join(entry.flags),
        }  # fmt: skip
        name = f"against {board.protocol.reference}"
        filled = {name: text for name, text in details.items() if text}
        evaluation = Evaluation(name, figures, who, board.protocol.annotator, judges, filled)
        if figures:
            version = board.protocol.version or "unknown"
            systems.append(
                System(entry.system, (evaluation,), created=entry.source.created, version=version, of_board=True)
            )
    if not systems:
        raise DataError(f"{source}: no system of its board has a win rate")
    return systems


def _board_figures(entry: Any) -> tuple[Figure, ...]:
    found, n = [], entry.instructions or entry.n
    if entry.win_rate is not None:
        method = "Student's t over seeds" if len(entry.win_rates) > 1 else AGRESTI_COULL
        found.append(_figure(WIN_RATE, entry.win_rate, entry.standard_error, n, entry.interval, method))
    if (value := entry.length_controlled) is not None:
        found.append(_figure("length_controlled_winrate", value, entry.length_controlled_error, n))
    return tuple(found)


# ----------------------------------------------------------------------------------------------- benchmarks of judges


def read_bench(document: Mapping[str, Any], source: str, samples: bool = True) -> list[System]:
    """Read the judges that `afarm judge bench` measured.

    Raises `DataError` naming the field that is wrong.
    """
    judges, rows = document["judges"], document.get("items", [])
    if not isinstance(judges, list) or not judges or not all(isinstance(one, dict) for one in judges):
        raise DataError(f"{source}: 'judges' must be a list of measured judges; `afarm judge bench` writes it afresh")
    if not isinstance(rows, list):
        raise DataError(f"{source}: 'items' must be a list of rows; `afarm judge bench` writes it afresh")
    items = [_bench_row(row, f"{source}: row {number}") for number, row in enumerate(rows)]
    benchmark = str(document["benchmark"])
    name = {"RewardBench 2": "allenai/reward-bench-2", "JudgeBench": "ScalerLab/JudgeBench"}.get(benchmark, "")
    found = []
    for place, judge in enumerate(judges):
        where = f"{source}: judge {place}"
        figures = tuple(_bench_figures(judge, where))
        if not figures or not isinstance(judge.get("name"), str):
            raise DataError(f"{where}: has no name or no score; `afarm judge bench` writes it afresh")
        details = {one: f"{judge[one]:g}" for one in BENCH if finite_number(judge.get(one)) is not None}
        asked = judge.get("judges")
        details["scoring"] = str(document.get("score") or "")
        details["asked"] = ", ".join(map(str, asked)) if isinstance(asked, list) else ""
        made = tuple(_bench_samples(judge["name"], items)) if samples else ()
        details = {one: text for one, text in details.items() if text}
        evaluation = Evaluation("", figures, "labels of the benchmark", "", (), details, made, "score")
        found.append(
            System(
                judge["name"],
                (evaluation,),
                benchmark,
                name,
                finite_number(document.get("created")) or 0.0,
                str(document.get("afarm_version") or "unknown"),
                rows=tuple(row for row in items if judge["name"] in row.credit),
            )
        )
    return found


def _bench_row(row: Any, where: str) -> BenchRow:
    """Read a row of measured judges. Raises `DataError` naming it unless it is one."""
    try:
        task = Instruction.from_row(row)
        made = BenchRow(
            str(row["id"]),
            str(row["subset"]),
            "\n\n".join(filter(None, (task.instruction, task.input))),
            [str(text) for text in row["outputs"]],
            [int(number) for number in row["right"]],
            None if row["label"] is None else _number(row["label"]),
            {
                str(judge): [None if one is None else _number(one) for one in said]
                for judge, said in row["judges"].items()
            },
            {str(judge): _number(credit) for judge, credit in row["credit"].items()},
            task.messages,
        )
    except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{where}: is no row of `afarm judge bench --output`, which writes it afresh: {error}"
        ) from error
    inside = all(0 <= number < len(made.outputs) for number in made.right)
    if not inside or not all(0 <= credit <= 1 for credit in made.credit.values()) or made.credit.keys() - made.judges:
        raise DataError(f"{where}: a right answer is none of its outputs, or a credit does not lie between 0 and 1")
    return made


def _number(value: object) -> float:
    if (number := finite_number(value)) is None:
        raise ValueError(f"{value!r:.80} is no finite number")
    return number


def _bench_figures(judge: Mapping[str, Any], where: str) -> Iterator[Figure]:
    subsets = judge.get("subsets", {})
    if not isinstance(subsets, Mapping):
        raise DataError(f"{where}: 'subsets' must be an object; `afarm judge bench` writes it afresh")
    bounds = AROUND_TIES if any(str(name).lower() == TIES for name in subsets) else (0.0, 100.0)
    shares = {name: judge[name] for name in ("score", "accuracy") if judge.get(name) is not None}
    for name, share in {**shares, **{f"score of {subset}": share for subset, share in subsets.items()}}.items():
        held = share if isinstance(share, Mapping) else {}
        value, low, high, n = (finite_number(held.get(part)) for part in ("value", "low", "high", "n"))
        if value is None:
            raise DataError(f"{where}: {name!r} has no number as its value; `afarm judge bench` writes it afresh")
        wide = bounds if name == "score" else AROUND_TIES if name.lower().endswith(f" of {TIES}") else (0.0, 100.0)
        if not wide[0] <= value <= wide[1]:
            raise DataError(f"{where}: {name!r} is {value:g}, and must lie between {wide[0]:g} and {wide[1]:g}")
        between = None if low is None or high is None else (low, high)
        yield replace(_figure(name, value, None, n, between, WILSON), bounds=wide)


def _bench_samples(judge: str, rows: Sequence[BenchRow]) -> Iterator[Sample]:
    for row in rows:
        if judge not in row.credit:
            continue
        said = ", ".join("unread" if value is None else f"{value:g}" for value in row.judges[judge])
        details = {"subset": row.subset, "label": "" if row.label is None else f"{row.label:g}"}
        yield Sample(
            row.id,
            row.prompt,
            (said,),
            tuple(row.outputs[n] for n in row.right),
            row.credit[judge],
            "custom",
            said,
            row.turns,
            tuple(row.outputs),
            {name: text for name, text in details.items() if text},
        )
