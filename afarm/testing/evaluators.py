"""Promises of every evaluator."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

from afarm.core.interfaces import EvaluationInputs, Evaluator
from afarm.core.records import Evaluation
from afarm.core.registry import FIRST_PARTY, Component
from afarm.storage.record_fields import require_evaluation
from afarm.testing.conformance import as_in_a_run, require, unless_refused
from afarm.testing.examples import board_inputs, evaluation_inputs

NEEDS = {"judgements", "ratings", "reward_model", "human"}


def check_evaluator(evaluator: Evaluator, inputs: EvaluationInputs | None = None) -> None:
    """Check that an evaluator is pure, gives flat JSON numbers and refuses rows that do not match.

    `inputs` are for an evaluator that accepts no others. Raises `ConformanceError` naming the broken promise.
    """
    if inputs is None:
        inputs = board_inputs() if evaluator.many else evaluation_inputs()
    unknown = set(evaluator.needs) - NEEDS
    require(not unknown, f"needs {sorted(unknown)}, which afarm does not know; known: {sorted(NEEDS)}")
    before = copy.deepcopy(inputs)
    found = evaluator.evaluate(inputs)
    require(inputs == before, "an evaluator must leave its inputs as they are")
    require(evaluator.evaluate(inputs) == found, "equal inputs must give equal evaluations")
    component = Component("evaluators", getattr(found, "evaluator", ""), FIRST_PARTY, "", type(evaluator))
    with as_in_a_run():
        require_evaluation(found, component.name, [component], component, inputs.system, evaluator)
    require(bool(found.evaluator) and bool(found.metrics), "an evaluation names its evaluator and has metrics")
    if evaluator.many:
        _check_board(evaluator, inputs, found)
    else:
        _check_mismatches(evaluator, inputs, found)


def _check_board(evaluator: Evaluator, inputs: EvaluationInputs, whole: Evaluation) -> None:
    """Check for one row per system, and a `DataError` without judgements or for a system against itself."""
    pairs = [row.pair for row in inputs.judgements]
    systems = sorted({name for pair in pairs for name in (pair.generator_1, pair.generator_2)})
    named = sorted(str(row.get("system")) for row in whole.rows)
    require(named == systems, f"rows are one per system, named in `system`: {systems}, not {named}")
    turned = evaluator.evaluate(replace(inputs, judgements=inputs.judgements[::-1]))
    require(turned == whole, "the order of the judgements must not matter")
    alone = replace(inputs.judgements[0], pair=replace(pairs[0], generator_1=pairs[0].generator_2))
    broken = {
        "no judgements": replace(inputs, judgements=()),
        "a system compared with itself": replace(inputs, judgements=(alone, *inputs.judgements[1:])),
    }
    for name, changed in broken.items():
        found = unless_refused(partial(evaluator.evaluate, changed), name)
        require(found is None, f"{name} must be a DataError, not a figure")


def _check_mismatches(evaluator: Evaluator, inputs: EvaluationInputs, whole: Evaluation) -> None:
    """Check that mismatched inputs are a `DataError`, unless the evaluator does not read them."""
    judged, scored = "judgements" in evaluator.needs, "reward_model" in evaluator.needs
    none = {"outputs": (), "judgements": (), "scores": (), "reference": (), "reference_scores": ()}
    turned = (*inputs.judgements[1:], inputs.judgements[0])
    broken: list[tuple[str, dict[str, Any], bool]] = [
        ("no outputs", none, True),
        ("a judgement too few", {"judgements": inputs.judgements[:-1]}, judged),
        ("judgements of other rows", {"judgements": turned}, judged),
        ("a score too few", {"scores": inputs.scores[:-1]}, scored),
        ("a reference output too few", {"reference": inputs.reference[:-1]}, False),
        ("a reference score too few", {"reference_scores": inputs.reference_scores[:-1]}, False),
        ("a reference for other instructions", {"reference": (inputs.outputs[0], *inputs.reference[:-1])}, False),
    ]
    for name, fields, is_read in broken:
        changed = replace(inputs, **fields)
        found = unless_refused(partial(evaluator.evaluate, changed), name)
        passed_over = not is_read and found == whole
        require(found is None or passed_over, f"{name} must be a DataError, not a figure")
