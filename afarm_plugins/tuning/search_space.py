"""Settings of a method that tuning searches over, and the next values to try.

A method states them in a line, `search_space = {"learning_rate": (1e-5, 1e-3), "beta": [0.03, 0.1, 0.3]}`: a pair is a
range, searched on the scale of the logarithm if it begins above 0; a list holds the values to choose from. The search
is Optuna's tree-structured Parzen estimator (Bergstra et al. 2011).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from afarm import Config, ConfigError, PluginError, did_you_mean, seeding
from afarm.experiments import Component

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

SearchSpace = Mapping[str, tuple[Any, Any] | list[Any]]
"""Settings by name, each with its range (low, high) or the list of its values."""

RANDOM_TRIALS = 6
"""Trials that are drawn at random before the estimator learns from them."""

ATTEMPTS = 20
"""Times that the estimator is asked for values that were not tried yet, before one of those left is drawn."""

FEW_LEFT = 1_000
"""Configurations left of a finite space among which one is drawn."""

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
        found = [_value(part) for part in ((low, high) if colon else values.split(","))]
    except yaml.YAMLError:
        found = []
    if not (equals and dot and setting and found) or None in found:
        raise ConfigError([f"--space {text!r}: write METHOD.SETTING=LOW:HIGH, or METHOD.SETTING=A,B,C"])
    return method, setting, (found[0], found[1]) if colon else found


def _value(text: str) -> Any:
    """Read a value as YAML does, but 1e-4 as the number that is meant. Raises `yaml.YAMLError`."""
    value = yaml.safe_load(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def space_problems(component: Component, space: object) -> list[str]:
    """List what is wrong with a method's space, one sentence each, before anything runs.

    The space may be any value that a plugin states.
    """
    if not isinstance(space, Mapping):
        return [f"{component.name}: its search_space maps no settings to ranges or lists of values: {space!r}"]
    fields = component.config.model_fields if component.config else {}
    problems = []
    for name, values in space.items():
        where = f"{component.name}.{name}"
        if name not in fields:
            problems.append(f"{where}: no such setting to search.{did_you_mean(name, fields)}")
        elif not isinstance(values, tuple | list):
            problems.append(f"{where}: {values!r} is neither a range, a pair (low, high), nor a list of values")
        elif isinstance(values, tuple) and not (
            len(values) == 2
            and all(isinstance(value, int | float) and math.isfinite(value) for value in values)
            and values[0] < values[1]
        ):
            problems.append(f"{where}: {values} is no range: two numbers, the lower first")
        elif isinstance(values, list) and len(_distinct(values)) < 2:
            problems.append(f"{where}: {values} leaves nothing to choose: name two values or more")
        else:
            refused = [f"{where}: {why}" for value in values if (why := _refusal(component.config, name, value))]
            problems += refused or _fractions_refused(component, name, values)
    return problems


def _fractions_refused(component: Component, name: str, values: Sequence[Any]) -> list[str]:
    """Say that a setting takes whole numbers alone, and its range has others; empty if it takes them."""
    if _choices(values) is not None:
        return []
    low, high = values
    between = low + (high - low) / math.pi  # no whole number
    if not (why := _refusal(component.config, name, between)):
        return []
    whole = f"{math.ceil(low)}:{math.floor(high)}"
    return [f"{component.name}.{name}: {low}:{high} has numbers that it does not take ({why}): write {whole}"]


def _refusal(config: type[Config] | None, name: str, value: Any) -> str:
    """Say why the config refuses this value by itself; empty if it takes it."""
    assert config is not None
    try:
        config.model_validate({name: value})
    except ValidationError as error:
        own = [problem["msg"] for problem in error.errors() if problem["loc"][:1] == (name,)]
        return f"{value!r} is refused: {own[0]}" if own else ""
    return ""


def count_configurations(space: SearchSpace) -> int | None:
    """Count the configurations of a space; None if a range of it holds any number of them."""
    choices = [_choices(values) for values in space.values()]
    return None if None in choices else math.prod(len(some) for some in choices if some is not None)


def _choices(values: Sequence[Any]) -> Sequence[Any] | None:
    """List the values of a setting; None for a range of numbers that are not whole."""
    if isinstance(values, list):
        return _distinct(values)
    low, high = values
    return range(low, high + 1) if isinstance(low, int) and isinstance(high, int) else None


def _distinct(values: Sequence[Any]) -> list[Any]:
    return [value for number, value in enumerate(values) if value not in values[:number]]


def next_values(
    space: SearchSpace, tried: Sequence[tuple[Mapping[str, Any], float]], seed: int, method: str
) -> dict[str, Any] | None:
    """Choose values that were not tried yet for the next trial; None if all were.

    They follow from the seed and from what was `tried` (values, and what they are worth: higher is better) alone, so a
    search that was stopped goes on as if it had not been. Raises `PluginError` if Optuna is not installed.
    """
    before = [dict(values) for values, _ in tried]
    for attempt in range(ATTEMPTS):
        values = _suggestion(space, tried, seeding.integer(seed, "tune", method, len(tried)) + attempt)
        if values not in before:
            return values
    if count_configurations(space) is None:
        return values
    columns = [_choices(choices) or () for choices in space.values()]
    every = (dict(zip(space, row, strict=True)) for row in itertools.product(*columns))
    left = list(itertools.islice((values for values in every if values not in before), FEW_LEFT))
    return seeding.choice(left, seed, "tune", method, len(tried)) if left else None


def require_optuna() -> None:
    """Raise `PluginError` if Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise PluginError("tuning needs Optuna: pip install 'afarm[tune]'") from error


def _suggestion(space: SearchSpace, tried: Sequence[tuple[Mapping[str, Any], float]], seed: int) -> dict[str, Any]:
    """Ask the estimator for values. Raises `PluginError` if Optuna is not installed."""
    require_optuna()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {name: _distribution(values) for name, values in space.items()}
    sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, multivariate=True, seed=seed % 2**31)
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
        return CategoricalDistribution(_distinct(values))
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
