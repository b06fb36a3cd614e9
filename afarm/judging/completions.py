"""Answers of a judge held to what the ledger stores and the budget counts.

Each function raises `PluginError` that names the judge, the promise, and what it returned instead.
"""

from __future__ import annotations

import math

from afarm.core.errors import require_promise, type_name
from afarm.core.judge import Completion


def require_completion(returned: object, judge: str) -> Completion:
    """Return the answer, if it is a text with counts of tokens and a price that can be added up."""
    broken = f"an answer must be an afarm.Completion, not {type_name(returned)}"
    require_promise(isinstance(returned, Completion), "judges", judge, broken)
    assert isinstance(returned, Completion)
    broken = f"the text of an answer must be text, not {type_name(returned.text)}"
    require_promise(isinstance(returned.text, str), "judges", judge, broken)
    for count in (returned.input_tokens, returned.output_tokens, returned.cached_input_tokens):
        broken = f"counts of tokens must be whole numbers of at least 0, not {count!r}"
        require_promise(isinstance(count, int) and count >= 0, "judges", judge, broken)
    require_price(returned.price, judge, "the price of an answer")
    return returned


def require_price(price: object, judge: str, what: str) -> None:
    """Check that a price is an amount of dollars, or None if it is unknown."""
    amount = price is None or (isinstance(price, int | float) and math.isfinite(price) and price >= 0)
    broken = f"{what} must be dollars of at least 0, or None if it is unknown, not {price!r}"
    require_promise(amount, "judges", judge, broken)
