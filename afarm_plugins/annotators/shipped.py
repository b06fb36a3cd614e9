"""The YAML files that ship with the annotators: prompts, demonstrations, judges by role and year."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

PACKAGE = "afarm_plugins.annotators"
# Read at every start of the command line, where libyaml's parser takes a seventh of the time.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def shipped_yaml(file: str) -> dict[str, Any]:
    """The contents of a YAML file of the package."""
    contents: dict[str, Any] = yaml.load(resources.files(PACKAGE).joinpath(file).read_bytes(), Loader=_Loader)
    return contents
