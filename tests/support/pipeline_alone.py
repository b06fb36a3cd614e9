"""The command line with the plugins that the demo needs alone."""

from __future__ import annotations

PIPELINE = [
    *("sft", "feedme", "reward_conditioning", "dpo", "best_of_n", "expert_iteration", "ppo", "quark", "reward_model"),
    *("judges", "annotators", "evaluators", "toy"),
]

ALONE = f"""
import importlib.metadata, sys
every = importlib.metadata.entry_points
def entry_points(**wanted):
    found = every(**wanted)
    return [p for p in found if p.name in {PIPELINE!r}] if wanted.get("group") == "afarm" else found
importlib.metadata.entry_points = entry_points
from afarm.cli import main
main(sys.argv[1:])
"""
"""A program that is `afarm` as it would be if no other plugin were installed."""
