"""The prompt annotators that ship, and the settings of all annotators here."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import field_validator

from afarm import Config, did_you_mean, setting
from afarm.judging import JudgingConfig
from afarm_plugins.annotators.shipped import shipped_yaml

_ENTRIES = shipped_yaml("members.yaml")
PROMPTS: Mapping[str, str] = {name: entry["summary"] for name, entry in _ENTRIES.items()}
"""The prompt annotators that ship, each with a line about it, in the paper's order."""

POOL = [name for name, entry in _ENTRIES.items() if entry.get("in_pool", True)]
"""The members of the default pool."""

TASKS = {task: [name for name in _ENTRIES if name.startswith(f"{task}_")] for task in ("dialogue", "summary")}
"""The members of the pools for other tasks than single instructions."""


class PoolConfig(JudgingConfig):
    """The prompts that judge, and how often. A single annotator is a pool of one."""

    members: list[str] = setting(
        list(POOL), "the annotators one of which is drawn for each pair; one named twice is drawn twice as often"
    )

    @field_validator("members")
    @classmethod
    def _check_members(cls, members: list[str]) -> list[str]:
        if not members:
            raise ValueError("name at least one annotator")
        for name in members:
            if name not in PROMPTS:
                raise ValueError(f"no prompt annotator {name!r}.{did_you_mean(name, PROMPTS)}")
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
    """Each output scored alone from 1 to 7, by criteria drawn up once per instruction."""

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
