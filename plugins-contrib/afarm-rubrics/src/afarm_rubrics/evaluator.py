"""The evaluator `rubric`: mean scores, what is met, and the difference to the reference."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import fmean

from afarm import (
    DataError,
    Evaluation,
    EvaluationInputs,
    Evaluator,
    JudgedPair,
    RunRecord,
    match_judgements,
    standard_error,
)
from afarm.results import StoredRun, accuracy_interval

MOST_SHOWN = 30
"""Criteria whose shares are shown; beyond that, which tasks' own criteria may have, none are."""

Tally = tuple[list[float], list[float]]
"""What the reference's and the system's outputs met of a criterion: 1.0 or 0.0 for each pair."""


def tally_criteria(judged: Sequence[JudgedPair]) -> dict[str, Tally]:
    """Collect what was met on pairs, by criterion."""
    found: dict[str, Tally] = {}
    for one in judged:
        for name, *both in one.preference.attributes:
            for values, value in zip(found.setdefault(name, ([], [])), both, strict=True):
                values.append(value)
    return found


def warn_of_constant(found: dict[str, Tally]) -> str:
    """Say which criteria are met by all outputs, or by none; empty if all tell outputs apart."""
    met = {name: [*theirs, *mine] for name, (theirs, mine) in found.items()}
    if met and not any(map(sum, met.values())):
        outputs = max(map(len, met.values()))
        return f"none of {outputs} outputs meets any of the {len(met)} criteria: the rubric says nothing about them"
    same = [name for name, values in met.items() if len(values) > 2 and len({*values}) == 1]
    shown = ", ".join(same[:5]) + (f" and {len(same) - 5} more" if len(same) > 5 else "")
    told = f"{len(same)} of {len(met)} criteria are met by all outputs or by none, and tell nothing: {shown}"
    return told if same else ""


class RubricScore(Evaluator):
    """The mean score by the rubric that judged, 1 for all points, and its difference to the reference.

    `met_NAME` is the share of outputs that meet a criterion, up to 30 of them. Errors are clustered by instruction.
    Identical outputs, which nobody checks, are a difference of 0 and count in it only; pairs without scores are left
    out and counted (`n_unscored`). `rubric_warning` flags criteria that tell no outputs apart.
    """

    needs = frozenset({"judgements", "ratings"})

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raise `DataError` if no rubric judged, or if judgements and outputs do not belong together."""
        judged = list(match_judgements(inputs))
        scored = [row for row in judged if row.preference.scores and row.preference.attributes]
        same = [row.pair.instruction.id for row in judged if row.pair.identical]
        if not scored:
            raise DataError(
                f"{inputs.system}: none of {len(judged)} judgements is by a rubric: judge with --annotator "
                "rubric:FILE.yaml"
            )
        tasks = [row.pair.instruction.id for row in scored]
        theirs, mine = zip(*(row.preference.scores or () for row in scored), strict=True)
        gaps = [b - a for a, b in zip(theirs, mine, strict=True)] + [0.0] * len(same)
        found = tally_criteria(scored)
        shares = {f"met_{name}": fmean(values) for name, (_, values) in found.items()}
        warning = warn_of_constant(found)
        return Evaluation(
            "rubric",
            inputs.system,
            {
                "rubric": fmean(mine),
                "rubric_se": standard_error(mine, tasks),
                "rubric_reference": fmean(theirs),
                "rubric_difference": fmean(gaps),
                "rubric_difference_se": standard_error(gaps, tasks + same),
                "n_total": len(gaps),
                "n_identical": len(same),
                "n_unscored": len(judged) - len(scored) - len(same),
                **(shares if len(shares) <= MOST_SHOWN else {}),
                **({"rubric_warning": warning} if warning else {}),
            },
            tuple({"instruction": task, "rubric": value} for task, value in zip(tasks, mine, strict=True)),
        )


def write_section(record: RunRecord) -> str:
    """Write the section of a report as HTML: what is met, by criterion; empty for a run without a rubric."""
    run = StoredRun(record.directory)
    found = tally_criteria([row for row in run.judgements() if row.preference.scores])
    if not found:
        return ""
    rows = [("criterion", "met, %", "by the reference, %", "pairs")]
    for name, (theirs, mine) in [*found.items()][:MOST_SHOWN]:
        rows.append((escape(name), _share(mine), _share(theirs), str(len(mine))))
    table = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    more = f"{len(found) - MOST_SHOWN} more criteria." if len(found) > MOST_SHOWN else ""
    warning = warn_of_constant(found)
    return f"<p>{escape(warning and f'{warning}.')}</p><table>{table}</table><p>{more}</p>"


def _share(values: Sequence[float]) -> str:
    low, high = accuracy_interval(fmean(values), len(values))
    return f"{100 * fmean(values):.0f} ({low:.0f}–{high:.0f})"
