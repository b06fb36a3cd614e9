"""The study `instructions`: verbs, objects and lengths of what instructions ask for, by set."""

from __future__ import annotations

from afarm import Register, hookimpl


@hookimpl
def register_studies(register: Register) -> None:
    from afarm_plugins.instructions.settings import InstructionsConfig  # the help needs no settings

    register(
        "instructions",
        "afarm_plugins.instructions.study:Instructions",
        config=InstructionsConfig,
        summary="verbs, objects and lengths of a data set's instructions, and how far its sets differ",
    )
