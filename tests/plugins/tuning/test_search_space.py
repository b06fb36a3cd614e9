"""Settings that tuning searches over, and the values that it tries next."""

from __future__ import annotations

import math

import pytest

from afarm.core.plugins import discover
from afarm_plugins.tuning.search_space import next_values, space_problems

SPACE = {"learning_rate": (1e-6, 1e-3), "epochs": [1, 2, 3], "steps": (1, 9)}


def test_every_method_of_ours_states_a_space_that_its_settings_take() -> None:
    stated = {c.name: (c, c.load().search_space) for c in discover().registry if c.kind == "methods"}
    assert {name for name, (_, space) in stated.items() if space} == {
        "dpo",
        "expert_iteration",
        "feedme",
        "ppo",
        "quark",
        "reward_conditioning",
    }
    assert [space_problems(component, space) for component, space in stated.values() if space] == [[]] * 6


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        ("beta", "dpo: its search_space maps no settings to ranges or lists of values: 'beta'"),
        ([("beta", (0.1, 0.2))], "dpo: its search_space maps no settings"),
        ({"beta": 0.5}, "dpo.beta: 0.5 is neither a range, a pair (low, high), nor a list of values"),
        ({"beta": "0.1:0.5"}, "dpo.beta: '0.1:0.5' is neither"),
        ({"beta": {0.1, 0.2}}, "is neither"),
        ({"num_train_epochs": range(1, 4)}, "dpo.num_train_epochs: range(1, 4) is neither"),
        ({"beta": (0.1, 0.2, 0.3)}, "dpo.beta: (0.1, 0.2, 0.3) is no range"),
    ],
)
def test_a_space_of_another_shape_is_named(space: object, problem: str) -> None:
    """A third-party method may state anything."""
    [said] = space_problems(discover().registry.get("methods", "dpo"), space)
    assert problem in said


def test_a_range_with_a_point_of_a_setting_of_whole_numbers_is_refused_with_the_range_that_is_meant() -> None:
    """Its ends are whole, and nearly all between is refused: a search of it would be a row of failures."""
    method = discover().registry.get("methods", "expert_iteration")
    [said] = space_problems(method, {"n": (2.0, 8.0)})
    assert "2.0:8.0 has numbers that it does not take (3.9" in said
    assert said.endswith("write 2:8")
    assert space_problems(method, {"n": (2, 8), "num_train_epochs": (1.0, 2.0)}) == []


def test_values_lie_in_their_ranges_and_follow_from_seed_and_trials_alone() -> None:
    tried: list[tuple[dict[str, object], float]] = []
    for number in range(12):
        values = next_values(SPACE, tried, 7, "m")
        assert values == next_values(SPACE, tried, 7, "m")
        assert 1e-6 <= values["learning_rate"] <= 1e-3
        assert values["epochs"] in (1, 2, 3)
        assert values["steps"] in range(1, 10)
        tried.append((values, -abs(math.log10(values["learning_rate"]) + 4) - number / 1e3))
    assert next_values(SPACE, [], 7, "m") != next_values(SPACE, [], 8, "m")
    assert next_values(SPACE, [], 7, "m") != next_values(SPACE, [], 7, "other"), "methods draw apart"


@pytest.mark.parametrize("own", [None, 5e-3, "auto"])
def test_the_recipes_own_value_may_lie_outside(own: object) -> None:
    values = next_values(SPACE, [({"learning_rate": own, "epochs": 2, "steps": 3}, 50.0)], 7, "m")
    assert set(values) == set(SPACE)


def test_values_come_near_to_what_won() -> None:
    """A range of six decades, in which two are good."""
    space = {"rate": (1e-6, 1.0)}
    tried: list[tuple[dict[str, float], float]] = []
    for _ in range(40):
        values = next_values(space, tried, 3, "m")
        tried.append((values, 50 - 10 * abs(math.log10(values["rate"]) + 3)))
    late = [abs(math.log10(values["rate"]) + 3) < 1 for values, _ in tried[20:]]
    assert sum(late) > 11, "at random 20 / 3 would be"
