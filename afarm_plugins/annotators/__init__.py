"""The prompt annotators: the pool of 13 (AlpacaFarm, App. C), its members by name, and greedy_gpt4.

An annotator here is data: an entry in `members.yaml` and a template under `prompts/`. See docs/annotators.md.
"""

from __future__ import annotations

from pydantic import field_validator

from afarm.config import Config, setting
from afarm.errors import did_you_mean
from afarm.hookspecs import Register, hookimpl

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


class PromptAnnotatorConfig(Config):
    """Which entries judge. A single annotator is a pool of one."""

    members: list[str] = setting(
        list(POOL), "the annotators one of which is drawn for each pair; one named twice is drawn twice as often"
    )
    max_reasks: int = setting(
        2, "how often a pair whose answer cannot be read is asked again, alone, before it is unparsed", ge=0
    )
    requests_per_chunk: int = setting(
        512, "requests sent before what they taught is stored; bounds memory", ge=1, changes_result=False
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


@hookimpl
def register_annotators(register: Register) -> None:
    target = "afarm_plugins.annotators.annotator:PromptAnnotator"
    register("pool", target, config=PromptAnnotatorConfig, summary="one of 13 prompt annotators, drawn for each pair")
    for name, summary in {**POOL, **OTHERS}.items():
        register(name, target, config=PromptAnnotatorConfig, defaults={"members": [name]}, summary=summary)
