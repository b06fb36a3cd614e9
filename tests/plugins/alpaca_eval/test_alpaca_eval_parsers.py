"""AlpacaEval's seven parsers, on answers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from afarm.core.judge import Completion
from afarm.judging import ParsedVerdict
from afarm_plugins.alpaca_eval.parsers import DRAWS, Parser, checked, verdict

FIRST: ParsedVerdict = 1.0
SECOND: ParsedVerdict = 0.0
DRAW: ParsedVerdict = "draw"
NONE: ParsedVerdict = None
LETTERS = {"outputs_to_match": {1: r"(?:^|\n) ?Output \(a\)", 2: r"(?:^|\n) ?Output \(b\)"}}
CHAIN = {"parsers_to_kwargs": {"json_parser": {"annotation_key": "ranks"}, "ranking_parser": {"model_1_name": "m"}}}
RANKS = '[{"model": "m", "rank": %d}, {"model": "M", "rank": %d}]'


def read(name: str, text: str, size: int = 1, **arguments: Any) -> list[ParsedVerdict]:
    return Parser(name, arguments).read(Completion(text), size)


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("Output (a)", 1, [FIRST]),
        (" Output (b)", 1, [SECOND]),
        ("Output (a)\nOutput (b)\nOutput (b)", 3, [FIRST, SECOND, SECOND]),
        ("Output (b)Output (a)", 2, [SECOND, FIRST]),  # after a match the rest begins anew
        ("I prefer Output (a)", 1, [NONE]),
        ("Output (a)\nOutput (b)", 1, [NONE]),  # two verdicts for one comparison
        ("Output (a)", 2, [NONE, NONE]),
        ("", 1, [NONE]),
    ],
)
def test_patterns_are_found_in_turn(text: str, size: int, expected: list[ParsedVerdict]) -> None:
    assert read("regex_parser", text, size, **LETTERS) == expected


def test_the_earliest_pattern_wins_and_the_first_of_equals() -> None:
    assert read("regex_parser", "yes no", outputs_to_match={1: "no.*", 2: "yes.*"}) == [SECOND]
    assert read("regex_parser", "yes", outputs_to_match={2: "y.*", 1: "yes"}) == [SECOND]
    assert read("regex_parser", "same", outputs_to_match={1: "first", 2: "second", 0: "same"}) == [DRAW]
    assert read("regex_parser", "anything", outputs_to_match={1: "x*"}) == [NONE]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7 1", FIRST), ("1 7.5\nbecause …", SECOND), ("4 4", DRAW), ("8,9", SECOND), ("8", NONE), ("8 of 10", NONE)],
)
def test_scores_are_compared(text: str, expected: ParsedVerdict) -> None:
    assert read("lmsys_parser", text) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[{'model': 'model_1', 'rank': 1}, {'model': 'model_2', 'rank': 2}]", FIRST),
        ("[{'model': 'model_2', 'rank': 1}, {'model': 'model_1', 'rank': 2}]", SECOND),
        ("[{'model': 'model_1', 'rank': 3}]", NONE),
        ("[{'model': 'model_2', 'rank': 1}]", NONE),
        ("Sure! [{'model': 'model_1', 'rank': 1}]", NONE),
        ("[" * 5000, NONE),
        ("__import__('os')", NONE),
    ],
)
def test_a_ranking_is_read_as_a_literal(text: str, expected: ParsedVerdict) -> None:
    assert read("ranking_parser", text) == [expected]


def test_json_is_read_with_or_without_a_fence() -> None:
    assert read("json_parser", '{"better": 2, "why": "…"}', annotation_key="better") == [SECOND]
    assert read("json_parser", 'So:\n```json\n{"better": 1}\n``` done', annotation_key="better") == [FIRST]
    assert read("json_parser", '[{"better": 1}, {"better": 1.5}]', 2, annotation_key="better") == [FIRST, DRAW]
    assert read("json_parser", '{"worse": 2}', annotation_key="better") == [NONE]
    assert read("json_parser", "1.25", annotation_key=None) == [NONE]
    assert read("json_parser", "[" * 100_000, annotation_key="better") == [NONE]


def test_a_literal_is_a_value_or_a_list_of_them() -> None:
    assert read("eval_parser", "1.25") == [0.75]
    assert read("eval_parser", "[1, 2, 0]", 3) == [FIRST, SECOND, DRAW]
    assert read("eval_parser", "[1, None, 2]", 3) == [FIRST, NONE, SECOND]
    assert read("eval_parser", "2 ** 9") == [NONE]


def test_true_and_false_are_no_preferences() -> None:
    assert read("eval_parser", "True") == read("eval_parser", "False") == [NONE]
    assert [verdict(value) for value in (1, 2.0, 1.25, 0, 1.5, 3, 0.5, "1", None, math.nan)] == [
        *(FIRST, SECOND, 0.75, DRAW, DRAW),
        *(NONE, NONE, NONE, NONE, NONE),
    ]


def weigh(*positions: dict[str, float], size: int = 1, **own: Any) -> list[ParsedVerdict]:
    """With probabilities, not their logarithms."""
    arguments = {"numerator_token": "m", "denominator_tokens": ["m", "M"], "is_binarize": False, **own}
    logprobs = tuple({token: math.log(p) for token, p in position.items()} for position in positions)
    return Parser("logprob_parser", arguments).read(Completion("", logprobs=logprobs), size)


def test_a_weighted_preference_is_the_share_of_one_token() -> None:
    [found] = weigh({"m": 0.2, "M": 0.6, "The": 0.2})
    assert found == pytest.approx(0.25, abs=1e-12)
    assert weigh({"M": 0.9, "x": 0.1}) == [SECOND]
    assert weigh({"m": 1e-9}) == [FIRST]
    assert weigh({"x": 1.0}) == [NONE]
    assert weigh({"m": 0.5, "M": 0.5}) == [DRAW]


def test_a_weighted_preference_can_be_made_binary_and_read_at_one_place() -> None:
    assert weigh({"m": 0.4, "M": 0.3}, is_binarize=True) == [FIRST]
    assert weigh({"m": 0.4, "M": 0.4}, is_binarize=True) == [SECOND]  # the first must be likelier
    thought = ({"Let": 1.0}, {"m": 0.9, "M": 0.1}, {"M": 1.0})
    assert weigh(*thought, log_prob_index=-1) == [SECOND]
    assert weigh(*thought) == [NONE]  # three places for one comparison
    assert weigh({"m": 1.0}, {"x": 1.0}, {"M": 1.0}, size=3) == [FIRST, NONE, SECOND]
    assert weigh({"m": 1.0}, log_prob_index=4) == [NONE]


def test_without_probabilities_the_token_that_was_written_counts_only_where_that_was_agreed_to() -> None:
    parser = Parser("logprob_parser", {"numerator_token": "m", "denominator_tokens": ["m", "M"]})
    assert parser.read(Completion("M", degraded=("top_logprobs",)), 1) == [SECOND]
    assert parser.read(Completion("I say: m ", degraded=("top_logprobs",)), 1) == [FIRST]
    assert parser.read(Completion("neither", degraded=("top_logprobs",)), 1) == [NONE]
    assert parser.read(Completion("M"), 1) == [NONE]


def test_parsers_can_be_chained() -> None:
    assert read("pipeline_meta_parser", '{"why": "…", "ranks": ' + RANKS % (2, 1) + "}", **CHAIN) == [SECOND]
    assert read("pipeline_meta_parser", '{"ranks": 3}', **CHAIN) == [NONE]
    three = {"json_parser": {"annotation_key": None}, "regex_parser": {"outputs_to_match": {"[1]": "a", "[2]": "b"}}}
    assert read("pipeline_meta_parser", '["b", "a"]', 2, parsers_to_kwargs={**three, "eval_parser": None}) == [
        *(SECOND, FIRST)
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "size"),
    [
        ("regex_parser", LETTERS, 1),
        ("regex_parser", LETTERS, 4),
        ("regex_parser", {"outputs_to_match": {1: r"(?i)output \(a\)", 2: r"(?i)output \(b\)", 0: "tie$"}}, 1),
        ("regex_parser", {"outputs_to_match": {1: ": true", 2: ": false"}}, 2),
        ("lmsys_parser", {}, 1),
        ("ranking_parser", {"model_1_name": "m"}, 1),
        ("json_parser", {"annotation_key": "better"}, 1),
        ("eval_parser", {}, 1),
        ("pipeline_meta_parser", CHAIN, 1),
    ],
)
def test_labels_are_what_the_parser_reads(name: str, arguments: Any, size: int) -> None:
    parser = Parser(name, arguments)
    labels = parser.labels(size)
    assert len(labels) >= 2
    for label, value in zip(labels, (FIRST, SECOND, DRAW), strict=False):
        assert parser.read(Completion("\n".join([label] * size)), size) == [value] * size


def test_no_label_is_made_up_where_none_is_found() -> None:
    assert Parser("regex_parser", {"outputs_to_match": {1: r"[Aa]{3}(?=\d)", 2: "b"}}).labels(1) == ()
    assert Parser("regex_parser", {"outputs_to_match": {1: "a"}}).labels(1) == ()
    assert Parser("json_parser", {"annotation_key": "better"}).labels(2) == ()
    only = {"numerator_token": "m", "denominator_tokens": ["m"]}
    assert Parser("logprob_parser", only).labels(1) == ()


def test_arguments_are_checked_down_a_chain() -> None:
    said = checked("pipeline_meta_parser", {"parsers_to_kwargs": {"json_parser": {}, "logprob_parser": {"x": 1}}})
    assert any("json_parser needs 'annotation_key'" in problem for problem in said)
    assert any("logprob_parser takes no 'x'" in problem for problem in said)
    assert any("stands in no chain" in problem for problem in said)
    keys = {"regex_parser": {"outputs_to_match": {"[1]": "a"}}, "eval_parser": {}}
    assert checked("pipeline_meta_parser", {"parsers_to_kwargs": keys}) == []
    assert checked("logprob_parser", {"numerator_token": 1, "denominator_tokens": "m", "log_prob_index": "last"})
    assert DRAWS == (0, 1.5)


def test_a_published_pattern_that_python_warns_of_is_taken_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    assert checked("regex_parser", {"outputs_to_match": {1: r"[[a]\w+", 2: r"[[b]\w+"}}) == []
    assert list(recwarn) == []
