"""`afarm evaluate --annotations SIMULATED --humans HUMAN`: prediction-powered win rates by people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from afarm.cli.console import err
from afarm.core.errors import DataError
from afarm.core.records import JudgedPair, Pair
from afarm.evaluation.matching import counted, in_first_form
from afarm.evaluation.metrics import BY_PEOPLE
from afarm.experiment.comparison.annotations import AnnotationComparison
from afarm.storage.conversations import Tasks
from afarm.storage.labelled_pairs import read_annotations
from afarm.storage.rows import preferences_on_disk

Label = tuple[JudgedPair, str]
"""A person's judgement, and the file and row it stands in."""


def with_people(
    compared: Sequence[AnnotationComparison], files: Sequence[Path], leave_out: bool = False, scale: str | None = None
) -> list[AnnotationComparison]:
    """Add people's labels to the comparisons of systems that they labelled too; name the others.

    Labels about other outputs than the judge's are an error, or left out and counted if `leave_out`. `scale` is the
    scale of the files' labels. Raises `DataError` naming file, row and field, or if no label fits.
    """
    labels = [(judged, where) for path in files for where, _, judged in read_annotations(path, scale)]
    found = [_labels(one, labels, leave_out) for one in compared]
    if not any(found):
        pairs = dict.fromkeys((label.pair.generator_2, label.pair.generator_1) for label, _ in labels)
        raise DataError(
            f"people compared {_named(pairs)}, and the judge "
            f"{_named((one.system, one.reference_name) for one in compared)}: no pair is in both (the fields "
            "'generator_1' and 'generator_2' say whose outputs those are)"
        )
    if without := [one.system for one, mine in zip(compared, found, strict=True) if not mine]:
        err().print(f"Without labels by people, judged alone: {', '.join(without)}", markup=False)
    return [replace(one, people=mine) for one, mine in zip(compared, found, strict=True)]


def _labels(one: AnnotationComparison, labels: Sequence[Label], leave_out: bool) -> list[JudgedPair]:
    """Select the labels about the pairs of `one`, its system second. Raises as `with_people` does."""
    players = one.reference_name, one.system
    mine = [(label, where) for label, where in labels if {*players} == {label.pair.generator_1, label.pair.generator_2}]
    rows = preferences_on_disk(one.stored.rows) if mine else ()
    tasks = Tasks(row.pair.instruction for row in rows)
    mine = [(in_first_form(label, tasks), where) for label, where in mine]
    judged: dict[str, set[tuple[int, int]]] = {}  # the outputs that the judge saw, as `_outputs`, by instruction
    for row in rows:
        judged.setdefault(row.pair.instruction.id, set()).add(_outputs(row.pair))
    fit, others = [], 0
    for label, where in mine:
        pair, turned = label.pair, label.pair.generator_1 == one.system
        outputs = _outputs(pair.swapped() if turned else pair)
        known = judged.get(pair.instruction.id, {outputs})
        if outputs in known or not any((pair.output_1, pair.output_2)):  # a file without texts has labels alone
            fit.append(JudgedPair(pair.swapped(), label.preference.swapped(), label.annotator) if turned else label)
        elif leave_out:
            others += 1
        else:
            reference_too = all(theirs != outputs[0] for theirs, _ in known)
            field = "output_1" if reference_too != turned else "output_2"
            raise DataError(
                f"{where}: field {field!r}: people labelled another output to {pair.instruction.instruction[:60]!r} "
                f"than the judge of {one.system!r}; use labels of those judged, or leave others out: --on-missing skip"
            )
    if others:
        told = f"{one.system}: {counted(others, 'label')} by people left out, about other outputs than the judge's"
        err().print(told, markup=False)
    return fit


def _outputs(pair: Pair) -> tuple[int, int]:
    """Hash both outputs; a hash stands for its text within one process."""
    return hash(pair.output_1), hash(pair.output_2)


def _named(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{system!r} with {reference!r}" for system, reference in pairs)


def people_rows(results: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the win rates by people among a record's results, as labels and texts."""
    for result in results:
        if result["evaluator"] == BY_PEOPLE:
            m = result["metrics"]
            yield (
                "win rate by people",
                (
                    f"{_percent(m, BY_PEOPLE)}, from {m['n_human']} instructions labelled by people too and "
                    f"{m['n_simulated']} by the judge only"
                ),
            )
            yield "", f"people alone: {_percent(m, 'people')}; the judge alone: {_percent(m, 'judge')}"
            yield (
                "",
                (
                    f"the judge's labels weigh {m['trust']:.2f}; together as precise as {m['effective']:.0f} "
                    f"instructions labelled by people: {m['saved']} need no human label"
                ),
            )


def _percent(metrics: Mapping[str, Any], name: str) -> str:
    low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
    bounds = "" if low is None or high is None else f" (95 % interval {low:.1f} to {high:.1f})"
    return f"{metrics[name]:.1f} %{bounds}"
