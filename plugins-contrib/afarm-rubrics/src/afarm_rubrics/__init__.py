"""Rubrics: weighted checklists as annotator and evaluator, by hand or induced from labels."""

from __future__ import annotations

from typing import Any

from afarm import Register, hookimpl


@hookimpl
def register_annotators(register: Register) -> None:
    from afarm_rubrics.checklist import ChecklistConfig

    register(
        "rubric",
        "afarm_rubrics.annotator:RubricAnnotator",
        config=ChecklistConfig,
        summary="each output checked against weighted criteria; the higher score is preferred: rubric:FILE.yaml",
        spec="FILE",
    )


@hookimpl
def register_evaluators(register: Register) -> None:
    register(
        "rubric",
        "afarm_rubrics.evaluator:RubricScore",
        summary="mean score by a rubric, difference to the reference, and the share that meets each criterion",
    )


@hookimpl
def register_sections(sections: dict[str, Any]) -> None:
    from afarm_rubrics.evaluator import write_section

    sections["The rubric"] = write_section


@hookimpl
def register_commands(app: Any) -> None:
    """Add `afarm judge rubric` to the group `judge`."""
    from afarm_rubrics.command import add_commands

    add_commands(app)
