"""Rank intervals and paired differences on a leaderboard, from the judgements behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import ValidationError

from afarm.core.errors import AfarmError, DataError, attribute_failures
from afarm.core.interfaces import BuildContext, EvaluationInputs, Evaluator
from afarm.core.plugins import discover
from afarm.core.records import Evaluation, Instruction, JudgedPair, Row
from afarm.evaluation.annotation_files import annotated_systems
from afarm.evaluation.boards.board import Entry, Leaderboard, Metric, ranked, read_main_metric
from afarm.evaluation.metrics import finite_number, warnings
from afarm.evaluation.spilled_rows import read_each, stored_inputs
from afarm.storage.record_fields import require_evaluation
from afarm.storage.rows import preferences_on_disk

if TYPE_CHECKING:
    from afarm.evaluation.statistics.intervals import Floats


Sections = Mapping[str, Mapping[str, Any]]
"""Settings by the name of their evaluator."""


def with_ranks(board: Leaderboard) -> tuple[Leaderboard, list[str]]:
    """Add rank intervals and differences to `board`; returns it with obstacles as sentences.

    Differences are to the first system that has judgements, on the instructions that both have. Systems without
    judgements at hand keep their rank and have no interval. The board is unchanged if fewer than two systems have
    judgements, if it is unknown how they were judged, or if it is not in the order of win rates. Raises `DataError`
    naming the file and row of a judgement that cannot be read.
    """
    if not board.protocol.known or board.order:
        return board, []
    wins = board.wins
    if wins is None and any(_stored(entry) for entry in board.entries):
        from afarm.evaluation.win_table import wins as collect

        wins = collect(pair for entry in board.entries for pair in judgements(entry))
    if wins is None or len(wins.systems) < 2:
        return board, []
    board = ranked(replace(board, wins=wins))
    table = dict(zip(wins.systems, wins.table, strict=True))
    usable = {e.system: e for e in board.entries if e.system in table and (table[e.system] >= 0).sum() > 1}
    if len(usable) < 2:
        return board, []
    gaps = _differences({name: table[name] for name in usable})
    with_rank = [entry.system for entry in board.entries if not entry.partial]
    intervals: dict[str, dict[str, int]] = {}
    obstacles = []
    if missing := [name for name in with_rank if name not in usable]:
        # Among the others alone, a rank would be too good.
        obstacles = [f"no ranks with intervals for {', '.join(missing)}: no judgements are at hand"]
    elif with_rank:
        from afarm.evaluation.statistics.rank_intervals import rank_intervals

        ranks = rank_intervals([table[name] for name in with_rank])
        intervals = {n: {"rank_low": r.low, "rank_high": r.high} for n, r in zip(with_rank, ranks, strict=True)}
    fields = {name: {**intervals.get(name, {}), **gaps.get(name, {})} for name in usable}
    return replace(board, entries=tuple(replace(e, **fields.get(e.system, {})) for e in board.entries)), obstacles


def _differences(table: Mapping[str, Floats]) -> dict[str, dict[str, Any]]:
    """Each system's difference to the first of `table`, in points, as fields of an entry."""
    from afarm.evaluation.statistics.paired import paired_differences

    leader, fields = next(iter(table)), {}
    for name, gap in zip(table, paired_differences(list(table.values()), 0, best=True), strict=True):
        if gap is not None:
            ends = {"": gap.value, "_low": gap.low, "_high": gap.high}
            points = {f"difference{end}": None if value is None else 100 * value for end, value in ends.items()}
            detectable = 100 * gap.detectable if gap.detectable else None  # without any spread nothing is told
            fields[name] = {**points, "p_value": gap.adjusted, "difference_to": leader, "detectable": detectable}
    return fields


def _stored(entry: Entry) -> bool:
    return bool(entry.source.judgements) and Path(entry.source.judgements).is_file()


def judgements(entry: Entry) -> Iterator[JudgedPair]:
    """Stream the stored judgements of an entry, its system and reference called as the board calls them."""
    for judged in read_each(Path(entry.source.judgements)) if _stored(entry) else ():
        pair = replace(judged.pair, generator_1=entry.source.reference or "reference", generator_2=entry.system)
        yield replace(judged, pair=pair)


def without_texts(judged: JudgedPair, held: dict[Instruction, Instruction]) -> JudgedPair:
    """Copy a judgement with empty outputs, under its instruction as it is `held` once for all."""
    instruction = held.setdefault(judged.pair.instruction, judged.pair.instruction)
    return replace(judged, pair=replace(judged.pair, instruction=instruction, output_1="", output_2=""))


def stored_rows(files: Sequence[Path], directory: Path) -> dict[tuple[str, str], Path]:
    """Spill the rows of annotation files to `directory`, one file per (id of the protocol, system)."""
    return {(one.protocol.id, one.system): one.rows for one in annotated_systems(files, directory)}


def evaluated(
    board: Leaderboard,
    names: Sequence[str],
    stored: Mapping[tuple[str, str], Path] | None = None,
    settings: Sections | None = None,
) -> Leaderboard:
    """Add the metrics of the evaluators `names` over the judgements of the board's runs, or `stored_rows`.

    `settings` are those of evaluators, by name. Raises `DataError` if there are none, and as `with_metrics` does.
    """
    paths = {system: path for (id, system), path in (stored or {}).items() if id == board.protocol.id}
    for name in dict.fromkeys(names):
        if looks_at_all_systems(name):
            held: dict[Instruction, Instruction] = {}
            rows = [without_texts(row, held) for entry in board.entries for row in judgements(entry)]
            rows = rows or [without_texts(row, held) for path in paths.values() for row in read_each(path)]
            board = with_metrics(board, name, rows, settings) if rows else _refuse(board, name)
        else:
            board = _with_metrics_of_each(board, name, paths, settings)
    return board


def _refuse(board: Leaderboard, name: str) -> NoReturn:
    raise DataError(f"{board.heading}: {name}: no judgements are at hand for this: give runs or annotations")


def evaluator_class(name: str) -> type[Evaluator] | None:
    """The class of the evaluator `name`, None for any other name."""
    try:
        found: type[Evaluator] = discover(check_configs=False).get("evaluators", name).load()
    except AfarmError:
        return None
    return found


def looks_at_all_systems(name: str) -> bool:
    """Return True for an evaluator over all systems of a leaderboard, False for any other name."""
    return bool(getattr(evaluator_class(name), "many", False))


def _evaluator(name: str, sections: Sections | None) -> Evaluator:
    component = discover(check_configs=False).get("evaluators", name)
    build = component.load()
    try:
        settings = component.settings((sections or {}).get(component.name))
    except ValidationError as error:
        [first, *_] = error.errors()
        setting = ".".join(map(str, (component.name, *first["loc"])))
        how = f"--set {component.name}.SETTING=VALUE; all settings: afarm settings {component.name}"
        raise DataError(f"evaluator {name!r}: {setting}: {first['msg']}: {how}") from error
    if component.spec:
        with attribute_failures("evaluators", name, build):
            made: Evaluator = build(
                settings, name.partition(":")[2], BuildContext(reward_model=partial(_no_model, name))
            )
        return made
    return build() if settings is None else build(settings)


def _no_model(evaluator: str, name: str) -> NoReturn:
    raise DataError(f"evaluator {evaluator!r} needs the reward model {name!r}: name it in evaluate.evaluators of a run")


def _with_metrics_of_each(
    board: Leaderboard, name: str, paths: Mapping[str, Path], settings: Sections | None
) -> Leaderboard:
    """Add the metric of an evaluator of one system to each entry that has judgements."""
    evaluator, plugins = _evaluator(name, settings), discover(check_configs=False)
    component, entries = plugins.get("evaluators", name), []
    made: list[Evaluation] = []
    if lacking := sorted(evaluator.needs - {"judgements", "ratings"}):
        raise DataError(f"evaluator {name!r} needs {', '.join(lacking)}: evaluate a method with it")
    for entry in board.entries:
        path = paths.get(entry.system)
        judged: Sequence[JudgedPair] = list(judgements(entry)) if path is None else preferences_on_disk(path)
        if judged:
            with attribute_failures("evaluators", name, evaluator):
                returned = evaluator.evaluate(stored_inputs(entry.system, judged))
            made.append(require_evaluation(returned, name, plugins.registry, component, entry.system, evaluator))
            metric = read_main_metric(name, made[-1].metrics)
            if metric and name == "length_controlled":
                entry = replace(
                    entry,
                    length_controlled=metric.value,
                    length_controlled_error=metric.error,
                    length_controlled_source=str(made[-1].metrics.get("lc_source") or ""),
                    length_controlled_warning=metric.flag,
                )
            elif metric and name != "win_rate":  # which it has
                entry = replace(entry, metrics={**entry.metrics, name: metric})
        entries.append(entry)
    if not made:
        _refuse(board, name)
    if not any(entry.figure(name) is not None for entry in entries):
        why = dict.fromkeys(text for evaluation in made for text in warnings(evaluation.metrics).values())
        says = "".join(f": {text}" for text in why)
        raise DataError(f"{board.heading}: evaluator {name!r} gave no figure of any system{says}")
    return replace(board, entries=tuple(entries))


def with_metrics(
    board: Leaderboard, name: str, rows: Sequence[JudgedPair], settings: Sections | None = None
) -> Leaderboard:
    """Add the metric of the evaluator `name` over `rows`, without a system's rows against itself.

    Raises `DataError` for an evaluator that does not look at all systems at once, and what the evaluator raises itself.
    """
    evaluator = _evaluator(name, settings)
    if not evaluator.many:
        raise DataError(f"evaluator {name!r} looks at one system: it ranks no systems that met each other")
    met = [row for row in rows if row.pair.generator_1 != row.pair.generator_2]
    with attribute_failures("evaluators", name, evaluator):
        by_system = _metrics(name, evaluator.evaluate(EvaluationInputs("", (), judgements=met)).rows)
    entries = [
        replace(entry, metrics={**entry.metrics, name: by_system[entry.system]}) if entry.system in by_system else entry
        for entry in board.entries
    ]
    return replace(board, entries=tuple(entries))


def _metrics(name: str, rows: Iterable[Row]) -> dict[str, Metric]:
    """Each system's metric and interval: the column named as the evaluator, else `elo` or `strength`."""
    metrics = {}
    for row in rows:
        columns = (name, name.partition(":")[0].rpartition("/")[2], "elo", "strength")
        main = next((column for column in columns if finite_number(row.get(column)) is not None), None)
        if main is not None:
            ends = ("low", "high") if main == "strength" else (f"{main}_low", f"{main}_high")
            low, high = (finite_number(row.get(end)) for end in ends)
            n, flag = row.get("n_total"), str(row.get("flag") or "")
            metrics[str(row["system"])] = Metric(row[main], low=low, high=high, n=n, flag=flag)
    return metrics
