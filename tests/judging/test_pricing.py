"""What judges charge: given, in a file, listed, or unknown, and never zero by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from afarm.core.errors import ConfigError
from afarm.core.judge import Capabilities, ChatRequest, Completion, Judge, Price
from afarm.core.records import Message
from afarm.judging.pricing import Prices, listed
from afarm.storage.text import dollars


def test_a_price_is_charged_for_fresh_and_cached_input_and_for_output_apart() -> None:
    price = Price(2.0, 8.0, 0.5)
    assert price.of(1_000_000, 0) == 2.0
    assert price.of(1_000_000, 500_000, 400_000) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.5 * 8)
    assert Price(2.0, 8.0).of(1_000_000, 0, 400_000) == 2.0, "where no cached price is known it is the full one"


def test_an_option_goes_before_the_file_and_the_file_before_the_list(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(
        "openai:gpt-4.1: {input: 7, output: 9, cached_input: 1, batch: 0.25}\n"
        "'openai-compatible:llama3:8b@http://host:1/v1': {input: 0, output: 0}\n"
    )
    given = {"openai:gpt-5": "1/2", "anthropic:x": "3/4/0.5"}
    prices = Prices(str(file), given)
    assert prices.of("openai:gpt-5", "openai", "gpt-5") == Price(1, 2)
    assert prices.of("anthropic:x", "anthropic", "x") == Price(3, 4, 0.5)
    assert prices.of("openai:gpt-4.1", "openai", "gpt-4.1") == Price(7, 9, 1, 0.25)
    spec = "openai-compatible:llama3:8b@http://host:1/v1"
    assert prices.of(spec, "openai-compatible", "llama3:8b") == Price(0, 0), "free is a price"
    assert Prices("", {spec: "1/2"}).of(spec, "whatever", "it calls itself") == Price(1, 2)
    assert Prices(str(file), {"openai:gpt-4.1": "1/1"}).of("openai:gpt-4.1", "openai", "gpt-4.1") == Price(1, 1)


def test_listed_prices_have_cached_input_apart_and_unknown_models_have_none() -> None:
    pytest.importorskip("genai_prices")
    known = listed("openai", "gpt-4.1")
    assert known is not None
    assert 0 < (known.cached_input or 0) < known.input < known.output
    tiered = listed("anthropic", "claude-sonnet-4-5")
    assert tiered is not None
    assert tiered.input < tiered.output
    assert listed("openai", "no such model") is None
    assert listed("no such vendor", "gpt-4.1") is None
    assert Prices().of("openai-compatible:x@http://y", "openai-compatible", "x") is None


def test_every_problem_of_options_and_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(
        "a: 3\nb: {input: 1}\nc: {input: -1, output: yes}\n"
        "d: {input: 1, output: 2, cached: 3}\ne: {input: 1, output: 1}\n"
    )
    given = {"openai:gpt-5": "1", "x": "1/2/3/4", "y": "one/two", "z": "1/-2", "w": "nan/1"}
    with pytest.raises(ConfigError) as caught:
        Prices(str(file), given)
    problems = "\n".join(caught.value.problems)
    for place in ("a", "b, output", "c, input", "c, output", "d, cached"):
        assert f"{file}, {place}: " in problems
    for name, text in given.items():
        assert f"--price {name}={text} is not of the form" in problems
    assert ", e" not in problems
    with pytest.raises(ConfigError, match=r"missing\.yaml cannot be read"):
        Prices(str(tmp_path / "missing.yaml"))
    file.write_text("- a list")
    with pytest.raises(ConfigError, match="maps judges to prices"):
        Prices(str(file))


class Priced(Judge):
    capabilities = Capabilities()
    identity = "priced"

    def __init__(self, price: Price | None):
        self._price = price

    def price(self) -> Price | None:
        return self._price

    async def complete(self, request: ChatRequest) -> Completion:
        raise NotImplementedError


def test_the_worst_case_is_a_token_for_each_byte_and_all_of_the_answer() -> None:
    request = ChatRequest("strong", (Message("user", "ü" * 500),), max_tokens=100)
    worst = Priced(Price(1.0, 10.0)).worst_case_price(request)
    assert worst is not None
    assert worst >= (1000 * 1.0 + 100 * 10.0) / 1e6
    assert worst < (1100 * 1.0 + 100 * 10.0) / 1e6
    assert Priced(None).worst_case_price(request) is None


def test_nothing_above_zero_is_shown_as_zero() -> None:
    amounts = [0.0, 0.5, 1234.567, 0.01, 0.0151, 0.00999, 0.000123, 4e-9]
    assert [dollars(amount) for amount in amounts] == [
        *("$0.00", "$0.50", "$1,234.57", "$0.01", "$0.015", "$0.01", "$0.00012", "$0.000000004"),
    ]
