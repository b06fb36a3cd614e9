"""Text features that judges are known to favour: length, lists, and models of the judge's own family.

Red flags, the agreement of annotators and leaderboards measure a judge's bias by these definitions, from AlpacaEval's
analysis of evaluators.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

SIGNIFICANT_LENGTH = 30
"""Characters by which two outputs must differ for one to count as the longer."""

_LIST_ITEM = re.compile(r"\s*(?:[-*+•–]|\d{1,3}[.)]|[a-zA-Z][.)])\s+\S")

# -------------------------------------------------------------------------------------------------- length and lists


def longer(output_1: str, output_2: str) -> int | None:
    """The number (1 or 2) of the output longer by over `SIGNIFICANT_LENGTH` characters, else None."""
    difference = len(output_2) - len(output_1)
    return None if abs(difference) <= SIGNIFICANT_LENGTH else 2 if difference > 0 else 1


@lru_cache(maxsize=4096)  # the reference's outputs come again with each system
def has_list(text: str) -> bool:
    """Return True if at least two lines start as list items: with a bullet, a number or a letter."""
    return sum(_LIST_ITEM.match(line) is not None for line in text.split("\n")) > 1


def with_list(output_1: str, output_2: str) -> int | None:
    """The number (1 or 2) of the output that has a list, None if both have one or neither."""
    return exactly_one(has_list(output_1), has_list(output_2))


def exactly_one(first: bool, second: bool) -> int | None:
    """The number (1 or 2) of the one that is true, None if both are or neither."""
    return None if first == second else 1 if first else 2


# ---------------------------------------------------------------------------------------------------- model families

FAMILIES: Mapping[str, str] = {
    "openai": r"gpt-?\d|gpt-?oss|chatgpt|davinci|curie|babbage|openai|\bo[134]\b",
    "anthropic": r"claude|anthropic",
    "google": r"gemini|gemma|palm|bard|google",
    "meta": r"llama|alpaca|vicuna|guanaco|koala|wizardlm|tulu",
    "mistral": r"mistral|mixtral|zephyr",
    "qwen": r"qwen|qwq",
    "deepseek": r"deepseek",
    "cohere": r"cohere|command-?r",
}
"""Model family to a pattern for the names of its models, and of models derived from them."""
FORMULAS = ("fitted", "offline")
"""Judges that are no language model."""


def find_family(name: str, known: Mapping[str, str]) -> str | None:
    """Return the family of the model or annotator `name`, from `known` or by its name; else None.

    The name must match one family only: `alpaca_eval_gpt4` names a prompt and a model, so it must be in `known`.
    """
    if name in known:
        return known[name]
    families = {family for family, pattern in FAMILIES.items() if re.search(pattern, name.lower())}
    return families.pop() if len(families) == 1 else None


def family_of_judge(judge: str, known: Mapping[str, str]) -> str | None:
    """The family of the judge with this identity: its vendor ("openai:…") or else its model's.

    What follows the model's name in an identity (a server's address, a digest) is ignored. A formula has no family,
    whatever the directory that it was fitted into is called.
    """
    vendor, _, rest = judge.partition(":")
    if vendor in FORMULAS:
        return known.get(judge)
    model = re.split(r"[@\[]", rest)[0]
    for name in (judge, model):
        if name in known:
            return known[name]
    return vendor if vendor in FAMILIES else find_family(model, known)
