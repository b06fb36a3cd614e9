"""Settings of a method that tuning searches over, and the next values to try.

A method states them in a line, `search_space = {"learning_rate": (1e-5, 1e-3), "beta": [0.03, 0.1, 0.3]}`: a pair is a
range, searched on the scale of the logarithm if it begins above 0; a list holds the values to choose from. The search
is Optuna's tree-structured Parzen estimator (Bergstra et al. 2011).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from afarm.core.config import Config
from afarm.core.errors import ConfigError, PluginError, did_you_mean
from afarm.core.registry import Component
from afarm.core.seeding import integer

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

SearchSpace = Mapping[str, tuple[Any, Any] | list[Any]]
"""Settings by name, each with its range (low, high) or the list of its values."""

RANDOM_TRIALS = 6
"""Trials that are drawn at random before the estimator learns from them."""

WORST = -1e9
"""What a trial that failed counts, in percent."""


def parse_space(text: str) -> tuple[str, str, tuple[Any, Any] | list[Any]]:
    """Read `method.setting=LOW:HIGH` or `method.setting=A,B,C`.

    Returns the method, the setting and its range or values. Raises `ConfigError` if it is neither.
    """
    name, equals, values = text.partition("=")
    method, dot, setting = name.partition(".")
    low, colon, high = values.partition(":")
    try:
        found = [yaml.safe_load(part) for part in ((low, high) if colon else values.split(","))]
    except yaml.YAMLError:
        found = []
    if not (equals and dot and setting and found) or None in found:
        raise ConfigError([f"--space {text!r}: write METHOD.SETTING=LOW:HIGH, or METHOD.SETTING=A,B,C"])
    return method, setting, (found[0], found[1]) if colon else found


def space_problems(component: Component, space: SearchSpace) -> list[str]:
    """List what is wrong with a method's space, one sentence each, before anything runs."""
    fields = component.config.model_fields if component.config else {}
    problems = []
    for name, values in space.items():
        where = f"{component.name}.{name}"
        if name not in fields:
            problems.append(f"{where}: no such setting to search.{did_you_mean(name, fields)}")
        elif isinstance(values, tuple) and not _is_range(values):
            problems.append(f"{where}: {values} is no range: two numbers, the lower first")
        elif isinstance(values, list) and len(values) < 2:
            problems.append(f"{where}: {values} leaves nothing to choose: name two values or more")
        else:
            problems += [f"{where}: {why}" for value in values if (why := _refusal(component.config, name, value))]
    return problems


def _is_range(values: tuple[Any, ...]) -> bool:
    numbers = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return len(values) == len(numbers) == 2 and numbers[0] < numbers[1]


def _refusal(config: type[Config] | None, name: str, value: Any) -> str:
    """Say why the config refuses this value by itself; empty if it takes it."""
    assert config is not None
    try:
        config.model_validate({name: value})
    except ValidationError as error:
        own = [problem["msg"] for problem in error.errors() if problem["loc"][:1] == (name,)]
        return f"{value!r} is refused: {own[0]}" if own else ""
    return ""


def next_values(
    space: SearchSpace, tried: Sequence[tuple[Mapping[str, Any], float]], seed: int, method: str
) -> dict[str, Any]:
    """Choose the values of the next trial.

    They follow from the seed and from what was `tried` (values, and what they are worth: higher is better) alone, so a
    search that was stopped goes on as if it had not been. Raises `PluginError` if Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise PluginError("tuning needs Optuna: pip install 'afarm[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {name: _distribution(values) for name, values in space.items()}
    draws = integer(seed, "tune", method, len(tried)) % 2**31
    sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, multivariate=True, seed=draws)
    study: Study = optuna.create_study(direction="maximize", sampler=sampler)
    for values, worth in tried:
        inside = {name: values[name] for name in values if _contains(distributions.get(name), values[name])}
        study.add_trial(
            optuna.trial.create_trial(
                params=inside, distributions={name: distributions[name] for name in inside}, value=worth
            )
        )
    return study.ask(distributions).params


def _distribution(values: Sequence[Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(values, list):
        return CategoricalDistribution(values)
    low, high = values
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=low > 0)
    return FloatDistribution(low, high, log=low > 0)


def _contains(distribution: BaseDistribution | None, value: Any) -> bool:
    """Tell if a value can be told to the estimator: a recipe's own may lie outside of the space."""
    if distribution is None:
        return False
    try:
        return distribution._contains(distribution.to_internal_repr(value))
    except (TypeError, ValueError):
        return False
