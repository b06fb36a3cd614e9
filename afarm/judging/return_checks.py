"""Answers of judges and labels of annotators, held to what is stored and counted.

Each function raises `PluginError` that names the component, its plugin, the promise, and what it returned instead.
"""

from __future__ import annotations

import math

from afarm.core.errors import ConfigError, attribute_failures, require_promise, type_name
from afarm.core.judge import Capabilities, Completion, Judge
from afarm.storage.record_fields import require_record
from afarm.storage.text import without_keys


def require_judge(judge: object, name: str) -> Judge:
    """Return what a judge's class made, if it is a judge that says who it is and what it takes."""
    require_promise(isinstance(judge, Judge), "judges", name, f"makes a {type_name(judge)}, no afarm.Judge", judge)
    assert isinstance(judge, Judge)
    takes = f"capabilities must be an afarm.Capabilities, not {type_name(judge.capabilities)}"
    require_promise(isinstance(judge.capabilities, Capabilities), "judges", name, takes, judge)
    return judge


def identify_judge(judge: Judge) -> str:
    """Return the name of a judge in the ledger. Raises `ConfigError` if it holds a key: it is shown."""
    with attribute_failures("judges", type(judge).__qualname__, judge):
        identity = judge.identity
    fits = isinstance(identity, str) and bool(identity)
    broken = f"identity must be a text that is not empty, not {identity!r}"
    require_promise(fits, "judges", type(judge).__qualname__, broken, judge)
    if (shown := without_keys(identity)) != identity:
        raise ConfigError(f"judge {shown}: a key goes into an environment variable, never into a URL or a model's name")
    return identity


def require_completion(returned: object, judge: str, owner: object = None) -> Completion:
    """Return the answer, if it is a text with counts of tokens and a price that can be added up."""
    require_record(returned, Completion, "judges", judge, "an answer must be an afarm.Completion", owner)
    assert isinstance(returned, Completion)
    for count in (returned.input_tokens, returned.output_tokens, returned.cached_input_tokens):
        broken = f"counts of tokens must be whole numbers of at least 0, not {count!r}"
        require_promise(count >= 0, "judges", judge, broken, owner)
    require_price(returned.price, judge, "the price of an answer", owner)
    return returned


def require_price(price: object, judge: str, what: str, owner: object = None) -> None:
    """Check that a price is an amount of dollars, or None if it is unknown."""
    amount = price is None or (isinstance(price, int | float) and math.isfinite(price) and price >= 0)
    broken = f"{what} must be dollars of at least 0, or None if it is unknown, not {price!r}"
    require_promise(amount, "judges", judge, broken, owner)
