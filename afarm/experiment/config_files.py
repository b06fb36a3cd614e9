"""YAML files that people write: read within bounds, and validated as a config."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from afarm.core.errors import ConfigError
from afarm.experiment.setting_errors import explain_validation_error
from afarm.storage.user_files import open_user_file

M = TypeVar("M", bound=BaseModel)

LARGEST, MOST_VALUES = 300_000, 50_000
"""Bytes of a file, and values in it: those behind aliases count each time."""
AS_TEXTS: dict[str | None, Any] = {"tag:yaml.org,2002:timestamp": yaml.SafeLoader.construct_yaml_str}


def read_config_file(path: Path, model: type[M]) -> M:
    """Read a YAML file as a config. Raises `ConfigError` with all problems, each with its field."""
    values = read_user_yaml(path)
    if values is not None and not isinstance(values, dict):
        raise ConfigError([f"{path}: must be a mapping of {', '.join(model.model_fields)}"])
    try:
        return model.model_validate(values or {})
    except ValidationError as error:
        raise ConfigError(explain_validation_error(error, model, f"{path}: ", unknown="unknown field")) from error


def read_user_yaml(path: Path, called: str = "") -> Any:
    """Read the value of a YAML file, `called` so in errors; None if it is empty. Dates stay texts.

    Raises `ConfigError`, for more than 300 kB or 50,000 values too.
    """
    name = called or path
    try:
        with open_user_file(path) as handle:
            text = handle.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ConfigError([f"{name} is larger than {LARGEST:,} bytes: put long texts into files of their own"])
        loader = yaml.SafeLoader(text.decode("utf-8"))
        loader.yaml_constructors = loader.yaml_constructors | AS_TEXTS  # type: ignore[misc]
        node = loader.get_single_node()
        if node is not None and _count(node, {}) > MOST_VALUES:
            raise ConfigError([f"{name} has more than {MOST_VALUES:,} values: its aliases (*name) multiply"])
        value = loader.construct_document(node) if node is not None else None
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
        return value
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except UnicodeEncodeError as error:
        problem = f"has {error.object[error.start : error.end]!r}, half of a character: write the whole of it"
    except UnicodeDecodeError:
        problem = "is no UTF-8 text: save it as UTF-8"
    except RecursionError:
        problem = "is no valid YAML: it is nested too deeply"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = f"is no valid YAML: {place}{error.problem}"
    except (yaml.YAMLError, ValueError) as error:  # such as 0b_, a number without digits
        problem = f"is no valid YAML: {error}"
    raise ConfigError([f"{name} {problem}"])


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values of a node with its aliases written out; one that holds itself has no end."""
    if id(node) not in known:
        known[id(node)] = MOST_VALUES + 1
        inside = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 if isinstance(node, yaml.ScalarNode) else 1 + sum(_count(one, known) for one in inside)
    return known[id(node)]
