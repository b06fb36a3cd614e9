"""Wrong settings in plain words: the setting, the fault and the nearest name that there is."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ValidationError

from afarm.core.errors import did_you_mean


def fields_at(model: type[BaseModel], path: Iterable[int | str]) -> list[str]:
    """The names of the fields of the config at `path` inside `model`; none if there is no config."""
    for name in path:
        field = model.model_fields.get(str(name))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


def explain_validation_error(
    error: ValidationError, model: type[BaseModel], prefix: str = "", *, unknown: str, missing: str = "is missing"
) -> list[str]:
    """Explain each finding of pydantic in a sentence: `prefix`, the field and what is wrong.

    `unknown` and `missing` word a field that `model` does not have, and one that it needs ("{field}" is its name).
    """
    problems = []
    for finding in error.errors():
        path, kind = finding["loc"], finding["type"]
        field = ".".join(map(str, path))
        if kind == "extra_forbidden":
            problem = f"{unknown}.{did_you_mean(str(path[-1]), fields_at(model, path[:-1]))}"
        elif kind == "missing":
            problem = missing.format(field=field)
        elif kind == "value_error":  # a check of our own says it all
            problem = str(finding["ctx"]["error"])
        else:
            problem = f"{finding['msg']} (given: {finding['input']!r})"
        place = f"{prefix}{field}" if field else prefix.rstrip(".: ")
        problems.append(f"{place}: {problem}" if place else problem)
    return problems
