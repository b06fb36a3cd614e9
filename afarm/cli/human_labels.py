"""`afarm evaluate --annotations SIMULATED --humans HUMAN`: win rates by people, from a few of their labels and many
simulated ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.cli.console import err, out
from afarm.errors import DataError
from afarm.files import judged_pair, read_rows
from afarm.records import JudgedPair

if TYPE_CHECKING:
    from afarm.statistics import Estimate, PredictionPowered
    from afarm.wins import Wins


def evaluate(simulated: Sequence[Path], human: Sequence[Path], reference: str | None, as_json: bool) -> None:
    """Print the win rate by people of each system that both kinds of files hold judgements of.

    Raises `DataError` where they have no system in common, or too few instructions.
    """
    from afarm.wins import prediction_powered_win_rate

    judge, people = _wins(simulated, reference), _wins(human, reference)
    shared = [system for system in judge.systems if system in people.systems]
    if not shared:
        theirs, mine = (", ".join(map(repr, found.systems)) for found in (people, judge))
        raise DataError(
            f"people labelled {theirs} and the judge {mine}: no system is in both (the field 'generator_2' says whose "
            "output_2 is; where some rows have it the other way round, name the reference with --reference)"
        )
    found = {system: prediction_powered_win_rate(judge, people, system) for system in shared}
    if as_json:
        rows = [_row(system, judge.reference, powered) for system, powered in found.items()]
        sys.stdout.write(json.dumps({"systems": rows}, ensure_ascii=False) + "\n")
    console = err() if as_json else out()
    for system, powered in found.items():
        for line in _lines(system, judge.reference, powered):
            console.print(line, soft_wrap=True, highlight=False, markup=False)


def _wins(files: Sequence[Path], reference: str | None) -> Wins:
    from afarm.wins import wins

    return wins(_rows(files), reference)


def _rows(files: Iterable[Path]) -> Iterator[JudgedPair]:
    for path in files:
        for number, row in enumerate(read_rows(path)):
            yield judged_pair(row, f"{path}: row {number}")


def _lines(system: str, reference: str, found: PredictionPowered) -> list[str]:
    saved = f"as precise as {found.effective:.0f} instructions labelled by people: {found.saved} need no human label"
    return [
        f"{system}: win rate by people {_percent(found.combined)} against {reference}, "
        f"from {found.n_human} instructions labelled by people too and {found.n_simulated} by the judge only",
        f"  People alone: {_percent(found.human)}. The judge alone: {_percent(found.simulated)}.",
        f"  The judge's labels have a weight of {found.trust:.2f}; together {saved}.",
    ]


def _percent(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return f"{100 * found.value:.1f} %"
    return f"{100 * found.value:.1f} % (95 % interval {100 * found.low:.1f} to {100 * found.high:.1f})"


def _row(system: str, reference: str, found: PredictionPowered) -> dict[str, Any]:
    """In percent, as all win rates in results."""
    rates = {
        name: {key: 100 * value for key, value in asdict(estimate).items() if key in ("value", "error", "low", "high")}
        for name, estimate in (("combined", found.combined), ("human", found.human), ("simulated", found.simulated))
    }
    counts = {"n_human": found.n_human, "n_simulated": found.n_simulated, "saved": found.saved}
    return {"system": system, "reference": reference, **rates, **counts, "trust": found.trust}
