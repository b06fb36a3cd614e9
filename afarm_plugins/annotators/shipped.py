"""The YAML files that ship with the annotators: prompts, demonstrations, judges by role and year."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

PACKAGE = "afarm_plugins.annotators"


@cache
def shipped_yaml(file: str) -> dict[str, Any]:
    """The contents of a YAML file of the package."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser takes a seventh of the time
    return yaml.load(resources.files(PACKAGE).joinpath(file).read_bytes(), Loader=loader)
