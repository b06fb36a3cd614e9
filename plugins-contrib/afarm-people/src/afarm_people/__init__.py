"""People in the loop: the page `afarm label`, their labels as an annotator, and boards in their units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afarm import Register, hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def register_annotators(register: Register) -> None:
    from afarm_people.settings import HumanConfig  # the help needs the command alone

    register(
        "human",
        "afarm_people.annotator:HumanAnnotator",
        config=HumanConfig,
        summary="people's labels from a file, no call: human:FILE, as afarm label exports them",
        spec="FILE",
    )


@hookimpl
def register_evaluators(register: Register) -> None:
    from afarm_people.settings import PeoplesConfig

    register(
        "people",
        "afarm_people.evaluator:PeoplesWinRates",
        config=PeoplesConfig,
        summary="win rates as people would have given them, by their labels in LABELS of some of the pairs",
        spec="LABELS",
    )


@hookimpl
def register_commands(app: typer.Typer) -> None:
    from afarm_people.command import add_commands

    add_commands(app)
