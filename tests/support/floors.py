"""The rooms of afarm, and which of them each may import."""

from __future__ import annotations

FLOORS = {
    "core": (),
    "launching": ("core",),
    "storage": ("core",),
    "judging": ("storage", "core"),
    "statistics": ("core",),
    "evaluation": ("statistics", "storage", "core"),
    "backend": ("storage", "core"),
    "experiment": ("launching", "judging", "evaluation", "statistics", "storage", "backend", "core"),
    "comparison": ("experiment", "judging", "evaluation", "statistics", "storage", "core"),
    "leaderboard": ("evaluation", "statistics", "storage", "core"),
    "analysis": ("experiment", "judging", "evaluation", "storage", "core"),
    "studies": ("leaderboard", "experiment", "evaluation", "statistics", "storage", "core"),
    "report": ("studies", "leaderboard", "analysis", "evaluation", "storage", "core"),
    "bundles": ("report", "studies", "experiment", "judging", "storage", "core"),
    "view": ("report", "analysis", "experiment", "judging", "evaluation", "storage", "core"),
    "testing": ("studies", "launching", "judging", "backend", "core"),
}
"""A room, and the rooms below that it may import: in any way, also for type checkers and inside functions."""

FLOORS["cli"] = tuple(FLOORS)

NARROW = {
    "judging": {"storage": {"afarm.storage.disk", "afarm.storage.record_fields", "afarm.storage.text"}},
    "backend": {
        "storage": {
            "afarm.storage.checkpoints",
            "afarm.storage.conversations",
            "afarm.storage.gguf",
            "afarm.storage.model_files",
            "afarm.storage.names",
            "afarm.storage.prompt_templates",
            "afarm.storage.safetensors",
        }
    },
    "statistics": {"core": {"afarm.core.errors", "afarm.core.seeding"}},
    "testing": {"studies": {"afarm.studies.study"}},
}
"""Rooms that may import certain modules of a room only."""

BACKEND_IN_FUNCTIONS = {
    "experiment": {"afarm.experiment.components"},
    "testing": {"afarm.testing.contexts", "afarm.testing.models", "afarm.testing.samplers"},
}
"""The modules that may import the backend, inside functions: loading torch takes seconds."""
