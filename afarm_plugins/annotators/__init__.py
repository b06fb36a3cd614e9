"""Annotators: the pool of 13 prompts (AlpacaFarm, App. C), ratings, criteria and reward models.

A prompt annotator here is data: an entry in `members.yaml` and a template under `prompts/`.
See docs/guides/annotators.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afarm import Register, hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def register_annotators(register: Register) -> None:
    from afarm_plugins.annotators.settings import (  # the help needs the command alone
        PROMPTS,
        TASKS,
        CriteriaConfig,
        PoolConfig,
        RatingsConfig,
        RewardAnnotatorConfig,
    )

    target = "afarm_plugins.annotators.pool:PoolAnnotator"
    register(
        "pool",
        target,
        config=PoolConfig,
        summary="one of 13 prompt annotators, drawn for each pair; pool:FILE.yaml is a pool of your own",
        spec="FILE",
    )
    for name, summary in PROMPTS.items():
        register(name, target, config=PoolConfig, defaults={"members": [name]}, summary=summary)
    for name, what in (("dialogue", "the next turn of a conversation"), ("summary", "summaries of a text")):
        register(
            f"{name}_pool",
            target,
            config=PoolConfig,
            defaults={"members": TASKS[name]},
            summary=f"one of {len(TASKS[name])} prompt annotators of {what}, drawn for each pair",
        )
    register(
        "ratings",
        "afarm_plugins.annotators.ratings:RatingsAnnotator",
        config=RatingsConfig,
        summary="each output scored alone from 1 to 7, the pair derived from the scores",
    )
    register(
        "criteria",
        "afarm_plugins.annotators.criteria:CriteriaAnnotator",
        config=CriteriaConfig,
        summary="each output scored alone from 1 to 7, by criteria drawn up once for its instruction",
    )
    register(
        "reward",
        "afarm_plugins.annotators.reward_labels:RewardAnnotator",
        config=RewardAnnotatorConfig,
        summary="a reward model as annotator, no call: reward:NAME, or reward:DIRECTORY of a fitted one",
        spec="MODEL",
    )


@hookimpl
def register_commands(app: typer.Typer) -> None:
    from afarm_plugins.annotators.command import add_commands

    add_commands(app)
