"""afarm's own commands, as `afarm --help` lists them without importing any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Listed(NamedTuple):
    """A command: what it does, and examples of words after its name.

    `target` is its MODULE:FUNCTION in this room, unless both have its name. Groups and steps have `add_commands`.
    """

    summary: str
    examples: tuple[str, ...] = ()
    target: str = ""
    is_group: bool = False
    bare_is_help: bool = False
    """Called with no word, it shows its help."""


STEPS: Mapping[str, Listed] = {
    "sft": Listed(
        "Train the starting policy on demonstrations.",
        ("--set sft.num_train_epochs=1", "--data mine.json --model HuggingFaceTB/SmolLM2-135M"),
        target="stage_commands",
    ),
    "sample": Listed(
        "Sample the outputs that will be compared.", ("--set sample.n=4", "--policy ppo"), target="stage_commands"
    ),
    "annotate": Listed(
        "Have the annotator compare the sampled outputs.",
        ("--annotator gpt4_4 --judge openai:gpt-4o", "--label-noise 0 --dry-run"),
        target="stage_commands",
    ),
    "fit-reward": Listed(
        "Fit the reward model to the preferences.",
        ("--set bradley_terry.num_train_epochs=2", "--annotator pool --label-noise 0.1"),
        target="stage_commands",
    ),
    "train": Listed(
        "Train a method's policy.",
        ("--method dpo --set dpo.beta=0.2", "--method ppo --dry-run"),
        target="stage_commands",
    ),
}

BY_PLUGINS = "Brought by plugins"
"""The panel of commands that name no other as their `rich_help_panel`."""

COMMANDS: Mapping[str, Mapping[str, Listed]] = {
    "The pipeline": {
        "run": Listed(
            "Run the whole experiment, from SFT to the report.",
            ("--method dpo --seed 1", "--judge openai:gpt-4o --budget 5 --dry-run"),
        ),
        "compare": Listed(
            "Run several methods on the same samples, preferences and reward model, and rank them.",
            ("--methods ppo,best_of_n --seeds 1,2", "--methods all --dry-run"),
        ),
        **STEPS,
        "evaluate": Listed(
            "Compare a policy, or files of outputs, with a reference.",
            ("mine.json --reference theirs.json --judge openai:gpt-4o", "--method dpo --seed 1"),
            bare_is_help=True,
        ),
        "report": Listed("Write a run's report again.", ("", "toy-ppo-pool-seed42-1a2b3c"), target="stage_commands"),
        "leaderboard": Listed(
            "Show all evaluated systems, in one board for each way of judging them.",
            ("", "afarm-runs leaderboard.csv --output board.html"),
        ),
        "export": Listed(
            "Write a run's policy for transformers, its preferences for TRL and its outputs for AlpacaEval.",
            ("toy-dpo-pool-seed42-1a2b3c policy/", "toy-dpo-pool-seed42-1a2b3c --push-to-hub me/policy --private"),
            target="export:export_policy",
        ),
    },
    "Judges and their cost": {
        "cost": Listed(
            "Estimate what the judges of a run, or of files of outputs, would cost, and send nothing.",
            ("--judge openai:gpt-4o", "mine.json --reference theirs.json --judge openai:gpt-4o"),
            target="evaluate",
        ),
        "ledger": Listed(
            "Show what judges have cost: by run, judge, annotator and day, and what was not paid again.", ("", "--json")
        ),
    },
    "Look up": {
        "settings": Listed(
            "List the settings of a method, a judge, any plugin or the run, for --set and recipes.",
            ("ppo", "dpo --recipe paper"),
            target="listing",
        ),
        "recipes": Listed("List the recipes, or show one.", ("", "toy"), target="listing"),
        "plugins": Listed(
            "List every plugin, and why a broken one is broken, or show one.", ("", "ppo"), target="listing"
        ),
        "artifacts": Listed("What is stored, what can go, and what was reused.", is_group=True),
    },
}
"""afarm's own commands by the panels of the help, those of the pipeline first."""

OWN: Mapping[str, Listed] = {name: command for group in COMMANDS.values() for name, command in group.items()}
