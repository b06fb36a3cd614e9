"""The settings of the study `instructions`."""

from __future__ import annotations

from functools import partial
from typing import Literal

from afarm import Config, setting

_option = partial(setting, changes_result=False)
"""Declares a setting of the study, which is in no artifact's key."""


class InstructionsConfig(Config):
    """Verbs, objects and lengths of a data set's instructions, and how far its sets differ."""

    instructions: list[str] = _option(
        list, "a file of instructions, as FILE or NAME=FILE; no data set is read; repeatable"
    )
    splits: str = _option(
        "sft,preference,unlabeled,validation,evaluation",
        "without such files: the splits of the recipe's data set, with commas between",
    )
    verbs: int = _option(20, "the commonest verbs that are shown", ge=1)
    tagger: Literal["auto", "rules", "spacy"] = _option(
        "auto", "what finds verbs and objects: spaCy's parser (spacy), own rules, or auto: spaCy if it is installed"
    )
