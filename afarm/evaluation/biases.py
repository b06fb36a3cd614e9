"""Which family a model is of, by its name: to see whether a judge prefers its own kind."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
"""Family by a pattern in the names of its models, and of the models that were made from them."""


def family_of(name: str, known: Mapping[str, str]) -> str | None:
    """The family of the model or annotator called `name`, from `known` or else by its name; None where neither tells.

    The name must tell one family: `alpaca_eval_gpt4` is a prompt's name and a model's, so it must be in `known`.
    """
    if name in known:
        return known[name]
    found = {family for family, pattern in FAMILIES.items() if re.search(pattern, name.lower())}
    return found.pop() if len(found) == 1 else None


def family_of_judge(judge: str, known: Mapping[str, str]) -> str | None:
    """The family of the judge with this identity: its vendor, where that is one ("openai:…"), or else its model's.

    What follows the name, such as a server's address or a digest, tells none.
    """
    vendor, _, rest = judge.partition(":")
    model = re.split(r"[@\[]", rest)[0]
    for name in (judge, model):
        if name in known:
            return known[name]
    return vendor if vendor in FAMILIES else family_of(model, known)
