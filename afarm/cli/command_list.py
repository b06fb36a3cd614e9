"""afarm's own commands, as `afarm --help` lists them without importing any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Listed(NamedTuple):
    """A command in the help: the module of this room whose `add_commands` brings it, and what it does."""

    module: str
    summary: str
    is_group: bool = False


STEPS: Mapping[str, Listed] = {
    "sft": Listed("stage_commands", "Train the starting policy on demonstrations."),
    "sample": Listed("stage_commands", "Sample the outputs that will be compared."),
    "annotate": Listed("stage_commands", "Have the annotator compare the sampled outputs."),
    "fit-reward": Listed("stage_commands", "Fit the reward model to the preferences."),
    "train": Listed("stage_commands", "Train a method's policy."),
}

BY_PLUGINS = "Brought by plugins"
"""The panel of commands that name no other as their `rich_help_panel`."""

COMMANDS: Mapping[str, Mapping[str, Listed]] = {
    "The pipeline": {
        "run": Listed("run", "Run the whole experiment, from SFT to the report."),
        "compare": Listed(
            "compare", "Run several methods on the same samples, preferences and reward model, and rank them."
        ),
        **STEPS,
        "evaluate": Listed("evaluate", "Compare a policy, or files of outputs, with a reference."),
        "report": Listed("stage_commands", "Write a run's report again."),
        "leaderboard": Listed("leaderboard", "Show all evaluated systems, in one board for each way of judging them."),
        "diff": Listed(
            "diff", "Show what sets two runs apart: settings, versions, judging, figures, and flipped instructions."
        ),
        "export": Listed(
            "export", "Write a run's policy for transformers, its preferences for TRL and its outputs for AlpacaEval."
        ),
    },
    "Judges and their cost": {
        "annotators": Listed(
            "annotators", "List the annotators and the judges of their roles, or compare them.", is_group=True
        ),
        "cost": Listed(
            "cost", "Estimate what the judges of a run, or of files of outputs, would cost, and send nothing."
        ),
        "ledger": Listed(
            "ledger", "Show what judges have cost: by run, judge, annotator and day, and what was not paid again."
        ),
    },
    "Look up": {
        "settings": Listed(
            "settings", "List the settings of a method, a judge, any plugin or the run, for --set and recipes."
        ),
        "recipes": Listed("listing", "List the recipes, or show one."),
        "plugins": Listed("listing", "List every plugin, and why a broken one is broken."),
        "cluster": Listed("cluster", "Check the machines that a launcher runs stages on.", is_group=True),
        "artifacts": Listed("artifacts", "What is stored, what can go, and what was reused.", is_group=True),
    },
}
"""afarm's own commands by the panels of the help, those of the pipeline first."""

OWN: Mapping[str, Listed] = {name: command for group in COMMANDS.values() for name, command in group.items()}
