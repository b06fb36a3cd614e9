"""The rooms of afarm, and which of them each may import."""

from __future__ import annotations

FLOORS = {
    "core": (),
    "storage": ("core",),
    "judging": ("storage", "core"),
    "evaluation": ("storage", "core"),
    "backend": ("storage", "core"),
    "experiment": ("judging", "evaluation", "storage", "backend", "core"),
    "report": ("experiment", "evaluation", "storage", "core"),
    "results": ("judging", "evaluation", "storage", "core"),
    "experiments": ("experiment", "judging", "core"),
    "testing": ("experiment", "judging", "storage", "backend", "core"),
}
"""A room, and the rooms below that it may import: in any way, also for type checkers and inside functions."""

FLOORS["cli"] = tuple(FLOORS)

NARROW = {
    "judging": {
        "storage": {
            "afarm.storage.disk",
            "afarm.storage.record_fields",
            "afarm.storage.text",
            "afarm.storage.thoughts",
            "afarm.storage.user_files",
        }
    },
    "backend": {
        "storage": {
            "afarm.storage.checkpoints",
            "afarm.storage.conversations",
            "afarm.storage.model_files",
            "afarm.storage.names",
            "afarm.storage.prompt_templates",
            "afarm.storage.record_fields",
            "afarm.storage.weight_files",
        }
    },
    "testing": {
        "experiment": {
            "afarm.experiment.launching.launcher",
            "afarm.experiment.launching.schedule",
            "afarm.experiment.studies.findings",
            "afarm.experiment.studies.study",
        },
        "storage": {"afarm.storage.checkpoints", "afarm.storage.record_fields"},
    },
}
"""Rooms that may import certain modules of a room only."""

BACKEND_IN_FUNCTIONS = {
    "experiment": {"afarm.experiment.components"},
    "testing": {"afarm.testing.contexts", "afarm.testing.models", "afarm.testing.samplers"},
}
"""The modules that may import the backend, inside functions: loading torch takes seconds."""
