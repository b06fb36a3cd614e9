"""`afarm evaluate --annotations SIMULATED --humans HUMAN`: win rates by people, from a few of their labels and many
simulated ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.cli.console import err
from afarm.errors import DataError
from afarm.figures import BY_PEOPLE
from afarm.files import judged_pair, read_rows

if TYPE_CHECKING:
    from afarm.stored_comparison import StoredComparison


def with_people(compared: Sequence[StoredComparison], files: Sequence[Path]) -> list[StoredComparison]:
    """Those of the comparisons whose systems people labelled as well, with their labels; tells which they did not.

    Raises `DataError` where there is none, or naming file, row and field of a label that cannot be read.
    """
    from afarm.wins import wins

    rows = [judged_pair(row, f"{path}: row {number}") for path in files for number, row in enumerate(read_rows(path))]
    people = {}
    for reference in dict.fromkeys(one.reference_name for one in compared):
        if against := [row for row in rows if reference in (row.pair.generator_1, row.pair.generator_2)]:
            people[reference] = wins(against, reference)
    labelled = [
        one for one in compared if one.reference_name in people and one.system in people[one.reference_name].systems
    ]
    if not labelled:
        pairs = dict.fromkeys((row.pair.generator_2, row.pair.generator_1) for row in rows)
        raise DataError(
            f"people compared {_named(pairs)}, and the judge "
            f"{_named((one.system, one.reference_name) for one in compared)}: no pair is in both (the fields "
            "'generator_1' and 'generator_2' say whose outputs those are)"
        )
    if left_out := [one.system for one in compared if one not in labelled]:
        err().print(f"Without labels by people, left out: {', '.join(left_out)}", markup=False, highlight=False)
    return [replace(one, people=people[one.reference_name]) for one in labelled]


def _named(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{system!r} with {reference!r}" for system, reference in pairs)


def lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a record's results say of win rates by people."""
    found = []
    for result in results:
        if result["evaluator"] == BY_PEOPLE:
            m = result["metrics"]
            found += [
                f"Win rate by people {_percent(m, BY_PEOPLE)}, from {m['n_human']} instructions labelled by people too "
                f"and {m['n_simulated']} by the judge only",
                f"People alone: {_percent(m, 'people')}. The judge alone: {_percent(m, 'judge')}.",
                f"The judge's labels have a weight of {m['trust']:.2f}; together as precise as {m['effective']:.0f} "
                f"instructions labelled by people: {m['saved']} need no human label.",
            ]
    return found


def _percent(metrics: Mapping[str, Any], name: str) -> str:
    low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
    bounds = "" if low is None or high is None else f" (95 % interval {low:.1f} to {high:.1f})"
    return f"{metrics[name]:.1f} %{bounds}"
