"""Pairs read from a file, or drawn from stored runs where their best systems differ.

The draw goes by instruction, since systems are compared on the same ones. Instructions are of two strata: those on
which the judge's labels of the finalists differ, which tell them apart, and the others. For each draw in turn a stratum
is drawn, the first more often than its share where it has enough, then one of its instructions that is left, each
equally likely. Every row keeps what an estimate needs to weight it: `stratum`, `stratum_share` (of all instructions),
`draw_probability` (of its stratum at each draw) and `probability` (that its instruction is among those drawn).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from afarm import DataError, JudgedPair, Pair, Preference, read_labelled_pairs, seeding
from afarm.results import open_run, open_runs

ALSO = "also_by"
"""The column of further systems that gave the very same response: one label is of them all."""

KEPT = ("id", ALSO, "stratum", "stratum_share", "draw_probability", "probability", "draw_number")
"""Columns of a file of pairs that go with their labels."""

PAIR_COLUMNS = ("instruction", "input", "messages", "dataset", "output_1", "output_2", "generator_1", "generator_2")

DIFFER, SAME = "finalists differ", "finalists alike"
FOCUS = 0.75
"""The share of draws among instructions on which finalists differ, where there are enough."""


@dataclass(frozen=True, slots=True)
class ReadPairs:
    """Pairs with further columns; how many have equal outputs, and how many rows repeat one, or its texts.

    `shared` counts rows of another system whose response is the very same: one label is of both.
    """

    pairs: Sequence[tuple[Pair, Mapping[str, Any]]]
    identical: int
    repeated: int
    shared: int = 0


def read_pairs(source: str, scale: str | None = None) -> ReadPairs:
    """Read pairs, labelled or not. Raises `DataError` naming the row that is none."""
    found, identical, repeated, shared = dict[str, tuple[Pair, dict[str, Any]]](), 0, 0, 0
    for _, row, judged in read_labelled_pairs(source, scale or "1,2,0", unlabelled=True):
        pair = replace(judged[0].pair, occurrence=0)
        if pair.id not in found:
            identical += pair.identical
            found[pair.id] = pair, {name: row[name] for name in KEPT if row.get(name) is not None}
            continue
        first, extra = found[pair.id]
        is_same = (first.generator_1, first.output_1) == (pair.generator_1, pair.output_1)
        if is_same and pair.generator_2 not in (first.generator_2, *extra.get(ALSO, ())):
            extra[ALSO] = [*extra.get(ALSO, ()), pair.generator_2]
            shared += 1
        else:
            repeated += 1
    if len(found) == identical:
        raise DataError(f"{source}: holds no pair of different outputs")
    return ReadPairs(list(found.values()), identical, repeated, shared)


def bare_row(pair: Pair) -> dict[str, Any]:
    """The row of a pair that nobody has labelled."""
    row = JudgedPair(pair, Preference(pair.id, None, "unparsed")).to_row()
    return {name: row[name] for name in PAIR_COLUMNS if name in row}


def beside(file: Path, ending: str) -> Path:
    """The place beside a file, by its name: a.v1.jsonl and a.v1.jsonl.gz have a.v1 and the `ending`."""
    name = file.name.removesuffix(".gz")
    return file.with_name(f"{Path(name).stem}{ending}")


def read_known(source: str, option: str, scale: str | None = None) -> list[tuple[Pair, Mapping[str, Any]]]:
    """Read pairs with a known answer. Raises `DataError` if a row has none, or two contradict each other."""
    found = dict[str, tuple[Pair, Mapping[str, Any]]]()
    for where, _, people in read_labelled_pairs(source, scale, average=True):
        for judged in people:
            pair, p2 = replace(judged.pair, occurrence=0), judged.p2
            if p2 not in (0.0, 1.0):
                raise DataError(
                    f"{where}: {option} takes pairs with a known answer, and this one has none: take it out"
                )
            p2_of_first = p2 if pair.id not in found or found[pair.id][0].output_1 == pair.output_1 else 1 - p2
            if found.setdefault(pair.id, (pair, {"p2": p2_of_first}))[1]["p2"] != p2_of_first:
                raise DataError(f"{where}: {option} has this pair twice, with opposite answers: take one out")
    if not found:
        raise DataError(f"{option} {source}: holds no pairs")
    return list(found.values())


def read_runs(runs: Sequence[str], output_dir: Path) -> dict[str, list[JudgedPair]]:
    """Read what was judged in runs, by system; a directory of runs stands for all of them.

    Raises `DataError` if they have no reference in common, or differ in a system's outputs.
    """
    opened = [
        run
        for name in runs
        for run in (open_runs(name) if (Path(name) / "runs").is_dir() else [open_run(name, output_dir)])
    ]
    found: dict[str, dict[str, JudgedPair]] = {}
    references: dict[str, None] = {}
    outputs: dict[tuple[str, str], tuple[str, str]] = {}  # of each system to each instruction, with the run's name
    for run in opened:
        main = {(r.pair.generator_1, r.pair.generator_2, r.pair.instruction.id): r for r in run.judgements()[::-1]}
        for judged in main.values():  # not what also met the reference at another temperature
            pair, task = judged.pair, judged.pair.instruction.id
            references[pair.generator_1] = None
            for system, output in ((pair.generator_1, pair.output_1), (pair.generator_2, pair.output_2)):
                first, name = outputs.setdefault((system, task), (output, run.name))
                if first != output:
                    raise DataError(
                        f"--from-run: {run.name} has other outputs of {system!r} than {name}, by another seed or "
                        "temperature (as best_of_n's reference has), so that people could not compare their systems: "
                        "leave one of them out, and name each other run with --from-run"
                    )
            found.setdefault(pair.generator_2, {})[task] = judged
    if len(references) != 1:
        names = ", ".join(references) or "none"
        raise DataError(f"--from-run {' '.join(runs)}: systems must share one reference; theirs are: {names}")
    return {system: list(judged.values()) for system, judged in found.items()}


def draw_pairs(
    judged: Mapping[str, Sequence[JudgedPair]], finalists: int, n: int, seed: int
) -> tuple[list[tuple[Pair, Mapping[str, Any]]], list[str]]:
    """Draw at most `n` pairs of the `finalists` systems with the highest win rates.

    Returns them and the finalists. Raises `DataError` if there are fewer systems, or none of their instructions is
    every one's.
    """
    read = {system: [row.win for row in rows if row.win is not None] for system, rows in judged.items()}
    rates = {system: fmean(wins) for system, wins in read.items() if wins}
    names = sorted(rates, key=lambda system: (-rates[system], system))[:finalists]
    if len(names) < finalists:
        raise DataError(
            f"systems with labels in these runs: {len(names)} ({', '.join(names)}); name more with --from-run RUN "
            f"--from-run RUN … or a directory of runs, or ask for --finalists {max(1, len(names))}"
        )
    by_task = {name: {row.pair.instruction.id: row for row in judged[name] if row.win is not None} for name in names}
    shared = sorted(set.intersection(*(set(rows) for rows in by_task.values())))
    strata: dict[str, list[str]] = {DIFFER: [], SAME: []}
    for id in shared:
        wins = {by_task[name][id].win for name in names}
        strata[DIFFER if len(wins) > 1 or len(names) == 1 else SAME].append(id)
    if not shared:
        raise DataError(f"{', '.join(names)} were judged on no instruction in common")
    drawn: list[tuple[Pair, Mapping[str, Any]]] = []
    for id, columns in draw_tasks(strata, max(1, n // len(names)), seed):
        drawn += [(replace(by_task[name][id].pair, occurrence=0), columns) for name in names]
    return drawn, names


def draw_tasks(strata: Mapping[str, Sequence[str]], n: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield instructions in the order that they are drawn, each with the columns of its draw.

    They are fewer than `n` if there are fewer, or if a stratum runs out, after which no draw would stand for all.
    """
    count = sum(map(len, strata.values()))
    left = {name: sorted(ids, key=lambda id: seeding.uniform(seed, "people", id)) for name, ids in strata.items()}
    shares = {name: len(ids) / count for name, ids in strata.items()}
    focus = focus_on(len(strata[DIFFER]), len(strata[SAME]), n)
    order = list[tuple[str, str]]()
    for number in range(min(n, count)):
        remaining = {name: len(ids) / (count - number) for name, ids in left.items()}
        if focus is not None and not all(left.values()):
            break
        chance = remaining[DIFFER] if focus is None else focus
        name = DIFFER if seeding.uniform(seed, "stratum", number) < chance else SAME
        order.append((left[name].pop(0), name))
    goes = shares if focus is None else {DIFFER: focus, SAME: 1 - focus}
    drawn = Counter(name for _, name in order)
    for number, (id, name) in enumerate(order):
        chance = len(order) / count if focus is None else drawn[name] / len(strata[name])
        likely = {"draw_probability": goes[name], "probability": chance}
        yield id, {"stratum": name, "stratum_share": shares[name], **likely, "draw_number": number}


def focus_on(differ: int, same: int, n: int) -> float | None:
    """The probability that a draw goes to the first of two strata, so that neither runs out.

    None if it could not be above its share: then every instruction that is left is equally likely.
    """
    if not (differ and same) or n >= differ + same:
        return None
    most, least = ((differ - 2 * differ**0.5) / n, 1 - (same - 2 * same**0.5) / n)
    focus = max(min(FOCUS, most), least)
    return focus if differ / (differ + same) < focus <= most else None
