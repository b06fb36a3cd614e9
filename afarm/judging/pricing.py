"""Prices of judges: from the user's options or file, or else from genai-prices.

A price that is not known is None, never zero: whoever shows a sum says how many calls are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from afarm.core.config import Config, setting
from afarm.core.errors import ConfigError
from afarm.core.judge import Price
from afarm.storage.user_files import read_user_text


class PriceRow(Config):
    """The price of one judge in the YAML file, in US dollars per million tokens."""

    input: float = setting(..., "prompt tokens", ge=0)
    output: float = setting(..., "answer tokens", ge=0)
    cached_input: float | None = setting(None, "prompt tokens from the vendor's cache; full price unless given", ge=0)
    batch: float = setting(0.5, "the share of it that an answer through a batch endpoint costs", ge=0)


_FILE = TypeAdapter(dict[str, PriceRow])


class Prices:
    """Prices by judge spec, such as "openai:gpt-5", in US dollars per million tokens.

    `given` maps specs to INPUT/OUTPUT or INPUT/OUTPUT/CACHED, and goes before the YAML `file`, which maps specs to
    `{input: …, output: …, cached_input: …, batch: …}`. Raises `ConfigError` with every problem of both.
    """

    def __init__(self, file: str = "", given: Mapping[str, str] | None = None):
        problems: list[str] = []
        self.known: dict[str, Price] = {**_read(file, problems), **_parse(given or {}, problems)}
        if problems:
            raise ConfigError(problems)

    def of(self, spec: str, provider: str, model: str) -> Price | None:
        """The price of the judge `spec`, which asks `provider`, if it is one that is listed, for `model`.

        None if nobody knows it.
        """
        for name in (spec, f"{provider}:{model}"):
            if name in self.known:
                return self.known[name]
        return listed(provider, model) if provider else None  # reading the lists takes 0.15 s


def listed(provider: str, model: str) -> Price | None:
    """The vendor's list price, from genai-prices; the first tier of several, since prompts are short."""
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    try:
        listing: Any = calc_price(Usage(input_tokens=1, output_tokens=1), model_ref=model, provider_id=provider)
    except LookupError:
        return None
    prices = listing.model_price
    rates = [getattr(rate, "base", rate) for rate in (prices.input_mtok, prices.output_mtok, prices.cache_read_mtok)]
    if rates[0] is None or rates[1] is None:
        return None
    return Price(*(None if rate is None else float(rate) for rate in rates))  # type: ignore[arg-type]


def _parse(given: Mapping[str, str], problems: list[str]) -> dict[str, Price]:
    """Parse prices such as those of `--price openai:gpt-5=1.25/10/0.125`."""
    known: dict[str, Price] = {}
    for spec, text in given.items():
        try:
            rates = [float(part) for part in str(text).split("/")]
            if len(rates) not in (2, 3) or not all(0 <= rate < math.inf for rate in rates):
                raise ValueError(text)
            known[spec] = Price(*rates)
        except ValueError:
            problems.append(malformed(f"{spec}={text}"))
    return known


def malformed(option: str) -> str:
    """The message about a `--price` that cannot be read."""
    return (
        f"--price {option} is not of the form JUDGE=INPUT/OUTPUT or JUDGE=INPUT/OUTPUT/CACHED, in dollars per million "
        "tokens, such as openai:gpt-5=1.25/10/0.125"
    )


def _read(file: str, problems: list[str]) -> dict[str, Price]:
    if not file:
        return {}
    try:
        rows = _FILE.validate_python(yaml.safe_load(read_user_text(file)))
        return {spec: Price(**row.model_dump()) for spec, row in rows.items()}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problems.append(f"prices file {file} cannot be read: {getattr(error, 'strerror', error)}")
    except ValidationError as error:
        form = "it maps judges to prices, such as 'openai:gpt-5: {input: 1, output: 2}'"
        for found in error.errors():
            where = ", ".join([file, *map(str, found["loc"])])
            problems.append(f"prices file {where}: {found['msg']}, not {found['input']!r:.80}; {form}")
    return {}
