"""Options that give settings: contradictions among them, and names given without their option."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from afarm.core.errors import ConfigError

JUDGING = ("both_orders", "votes", "vote")
"""The settings of an annotator that have options: they go to the section of the annotator in use."""

OPTIONS = {
    "annotate.annotator": "--annotator",
    "annotate.label_noise": "--label-noise",
    "eval_set": "--eval-set",
    "evaluate.annotator": "--annotator",
    "evaluate.evaluators": "--evaluator",
    "evaluate.label_noise": "--label-noise",
    "files.path": "--data",
    "on_unusable": "--on-unusable",
    "reward_model": "--reward-model",
}
"""The options that are not called like the settings they give."""


def refuse_contradictions(given: Mapping[str, Any], settings: Sequence[str]) -> None:
    """Raise `ConfigError` if --set gives a setting that an option gives as well, and another value."""
    from afarm.experiment.recipe import parse_override
    from afarm.storage.reuse import flatten

    by_option = flatten(given)
    problems = []
    for text in settings:
        override: dict[str, Any] = {}
        with suppress(ConfigError):  # one that cannot be read is reported with all else that is wrong
            override = parse_override(text)
        for name, value in flatten(override).items():
            if name in by_option and by_option[name] != value:
                leaf = name.rpartition(".")[2]
                own = f"--{leaf.replace('_', '-')}" if leaf in JUDGING else f"--{name.partition('.')[0]}"
                option = OPTIONS.get(name, own)
                problems.append(f"{option} {by_option[name]} and --set {text} contradict each other: give one")
    if problems:
        raise ConfigError(problems)


def parse_judges(options: list[str]) -> dict[str, str]:
    """Read --judge: `strong=openai:x` names a role; a spec alone answers for all other roles."""
    judges = {}
    for option in options:
        role, equals, spec = option.partition("=")
        named = equals and ":" not in role and "@" not in role
        judges[role if named else "*"] = spec if named else option
    return judges


def parse_prices(options: list[str]) -> dict[str, str]:
    """Split prices such as `openai:gpt-5=1.25/10`. Raises `ConfigError` if one has no equals sign."""
    from afarm.judging.pricing import malformed

    parts = {option: option.rpartition("=") for option in options}
    if wrong := [option for option, (spec, _, _) in parts.items() if not spec]:
        raise ConfigError(map(malformed, wrong))
    return {spec: rates for spec, _, rates in parts.values()}


NAMED_BY_OPTION = {
    "recipes": "--recipe",
    "methods": "--method",
    "annotators": "--annotator",
    "reward_models": "--reward-model",
    "judges": "--judge",
    "datasets": "--dataset",
    "evaluators": "--evaluator",
}
"""The options that take the name of a recipe or a component, by its kind."""


def refuse_stray(name: str, options: Collection[str]) -> None:
    """Raise `ConfigError` if one of a command's `options` takes `name`, which a component or a recipe has."""
    from afarm.core.plugins import discover
    from afarm.experiment.recipe import recipe_names

    registry = discover(check_configs=False).registry
    kinds = {c.kind for c in registry if name in registry.list_names(c)}
    kinds |= {"recipes"} if name in recipe_names() else set()
    taking = [option for kind, option in NAMED_BY_OPTION.items() if kind in kinds]
    if named := [f"{option} {name}" for option in taking if option in options]:
        raise ConfigError([f"{name!r} must be named by its option: {' or '.join(named)}"])
