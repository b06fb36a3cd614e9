"""Annotators: the pool of 13 prompts (AlpacaFarm, App. C), each by its name, greedy_gpt4, pools of your own, ratings,
ratings by criteria, and reward models.

A prompt annotator here is data: an entry in `members.yaml` and a template under `prompts/`.
See docs/guides/annotators.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import field_validator

from afarm import Config, Register, did_you_mean, hookimpl, setting
from afarm.judging.pairwise import JudgingConfig

if TYPE_CHECKING:
    import typer

POOL = {
    "gpt4_1": "strong judge, batches of 4, explains in JSON before it decides",
    "gpt4_2": "strong judge, batches of 5, an admirer of long, elaborate, correct sentences",
    "gpt4_3": "strong judge, batches of 5, no persona",
    "gpt4_4": "strong judge, one pair a time, six demonstrations with reasons in the turn after",
    "gpt4_5": "strong judge, batches of 5, an impatient reader who likes short texts and lists",
    "chatgpt_1": "light judge, one pair a time, two demonstrations in one message",
    "chatgpt_2": "light judge, one pair a time, explains in JSON before it decides",
    "chatgpt_3": "light judge, gpt4_4's prompt",
    "chatgpt_4": "light judge, one pair a time, two demonstrations as turns",
    "davinci003_1": "completion judge, batches of 4, demonstrations with reasons",
    "davinci003_2": "completion judge, one pair a time, six demonstrations",
    "davinci003_3": "completion judge, batches of 5, six demonstrations",
    "davinci003_4": "completion judge, one pair a time, two demonstrations of one line",
}
"""The members of the default pool, in the paper's order, each with a line about it."""

OTHERS = {"greedy_gpt4": "strong judge at temperature 0, batches of 5: the paper's single low-variance annotator"}
"""Entries that are not in the pool."""

BEYOND = {
    "pool": "one of 13 prompt annotators, drawn for each pair; pool:FILE.yaml is a pool of your own",
    "ratings": "each output scored alone from 1 to 7, the pair derived from the scores",
    "criteria": "each output scored alone from 1 to 7, by criteria drawn up once for its instruction",
    "reward": "a reward model as annotator, no call: reward:NAME, or reward:DIRECTORY of a fitted one",
}
"""The annotators that are no single prompt that compares."""


class PromptAnnotatorConfig(JudgingConfig):
    """Which entries judge, and how often. A single annotator is a pool of one."""

    members: list[str] = setting(
        list(POOL), "the annotators one of which is drawn for each pair; one named twice is drawn twice as often"
    )

    @field_validator("members")
    @classmethod
    def _known(cls, members: list[str]) -> list[str]:
        if not members:
            raise ValueError("name at least one annotator")
        known = [*POOL, *OTHERS]
        for name in members:
            if name not in known:
                raise ValueError(f"no prompt annotator {name!r}.{did_you_mean(name, known)}")
        return members


class RatingsConfig(Config):
    """Each output scored alone from 1 to 7; the better score is preferred, equal ones are a draw."""

    role: str = setting("strong", "the family role whose judge scores: strong, light or completion")
    temperature: float = setting(1.0, "sampling temperature", ge=0)
    max_tokens: int = setting(20, "the longest answer in tokens", ge=1)
    max_reasks: int = setting(
        2, "how often an output whose score cannot be read is scored again, before its pairs are unparsed", ge=0
    )


class CriteriaConfig(RatingsConfig):
    """Each output scored alone from 1 to 7, by criteria drawn up once for its instruction from auxiliary answers."""

    auxiliary: list[str] = setting(
        [], "files of outputs that are compared to draw up the criteria; none: from the instruction alone"
    )
    n_auxiliary: int = setting(3, "how many of them are shown for an instruction, drawn where there are more", ge=1)
    criteria_tokens: int = setting(400, "the longest list of criteria in tokens", ge=1)


class RewardAnnotatorConfig(Config):
    """A reward model's scores as labels."""

    soft: bool = setting(
        False, "label with the sigmoid of the difference of the rewards, not with 1 or 0 for the higher one"
    )


@hookimpl
def register_annotators(register: Register) -> None:
    target = "afarm_plugins.annotators.pool:PromptAnnotator"
    register(
        "pool",
        target,
        config=PromptAnnotatorConfig,
        summary=BEYOND["pool"],
        spec="FILE",
    )
    for name, summary in {**POOL, **OTHERS}.items():
        register(name, target, config=PromptAnnotatorConfig, defaults={"members": [name]}, summary=summary)
    register(
        "ratings",
        "afarm_plugins.annotators.ratings:RatingsAnnotator",
        config=RatingsConfig,
        summary=BEYOND["ratings"],
    )
    register(
        "criteria",
        "afarm_plugins.annotators.criteria:CriteriaAnnotator",
        config=CriteriaConfig,
        summary=BEYOND["criteria"],
    )
    register(
        "reward",
        "afarm_plugins.annotators.reward_labels:RewardAnnotator",
        config=RewardAnnotatorConfig,
        summary=BEYOND["reward"],
        spec="MODEL",
    )


@hookimpl
def register_commands(app: typer.Typer) -> None:
    from afarm_plugins.annotators.command import add_to

    add_to(app)
