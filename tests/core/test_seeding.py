"""Keyed draws: the same in every process, and fair."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from afarm.core.seeding import choice, digest, integer, uniform

PROGRAM = """
from afarm.core.seeding import *
print(digest("a", 1, None, {"b": 2.5, "a": "ü"}), uniform(7, "order", "x"), integer(7, "x"), choice("abcdefg", 1))
"""


def test_draws_are_equal_in_processes_with_different_hash_seeds() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    expected = digest("a", 1, None, {"b": 2.5, "a": "ü"}), uniform(7, "order", "x"), integer(7, "x")
    assert said == {f"{expected[0]} {expected[1]} {expected[2]} {choice('abcdefg', 1)}\n"}


def test_draws_never_change_between_versions() -> None:
    # Stored labels, splits and artifact keys rest on these: a change of them is a change of every result.
    assert digest("pair", 1, [True, None], length=32) == "6aa469188e5c1e593f3867910990ff0a"
    assert digest("Größe", "色", "😀") == "80855eeae2ff9dd8f680d845"
    assert uniform(42, "noise", "pair") == 0.9649674981478853
    assert integer(42, "sample") == 419901490441407077
    assert choice(["a", "b", "c", "d", "e"], 42, "member", "pair") == "c"


def test_keys_that_look_alike_are_told_apart() -> None:
    keys: list[tuple[object, ...]] = [("ab", "c"), ("a", "bc"), ("abc",), (1, "x"), ("1", "x"), (None,), ("",), ()]
    assert len({digest(*key) for key in keys}) == len(keys)
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_half_a_surrogate_pair_can_be_part_of_a_key() -> None:
    assert digest("\ud800") != digest("\ud801")


def test_uniform_draws_are_uniform_and_independent_between_purposes() -> None:
    draws = [uniform(0, "order", i) for i in range(20_000)]
    assert 0 <= min(draws) < max(draws) < 1
    tenths = [sum(int(d * 10) == i for d in draws) for i in range(10)]
    # Each tenth is binomial with mean 2000 and standard deviation 42.
    assert all(abs(count - 2000) < 5 * 42.5 for count in tenths)
    both = sum(d < 0.5 and uniform(0, "noise", i) < 0.5 for i, d in enumerate(draws))
    assert abs(both - 5000) < 5 * 61.3


def test_choice_gives_each_option_its_share_and_refuses_an_empty_list() -> None:
    drawn = [choice(range(13), "member", i) for i in range(13_000)]
    assert all(abs(drawn.count(option) - 1000) < 5 * 30.4 for option in range(13))
    with pytest.raises(ValueError):
        choice([], 1)


def test_integers_fit_what_libraries_take() -> None:
    drawn = {integer(i) for i in range(1000)}
    assert len(drawn) == 1000
    assert all(0 <= value < 2**63 for value in drawn)
